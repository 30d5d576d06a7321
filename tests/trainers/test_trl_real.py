"""With the real TRL: a tiny random model learns, and TRL reads our tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed here: make test-trl has an environment with it")

from datasets import Dataset
from transformers.utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer

from rollbook.trainers.trl import Environments

EXAMPLE = Path(__file__).parents[2] / "examples/trl/train.py"
MOST_S = 300
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<say>{% endif %}"
    "{% for t in m.tool_calls or [] %}call {{ t.function.name }} {{ t.function.arguments | tojson }}{% endfor %}"
    "{{ m.content or '' }}<end>{% endfor %}{% if add_generation_prompt %}<say>{% endif %}"
)
RESPONSE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<say>",
    "fields": {"content": {"close_pattern": "<end>", "content": "text"}},
}
pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_tiny_random_model_learns_to_say_a_letter() -> None:
    command = [sys.executable, str(EXAMPLE)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "30 steps: mean reward" in ended.stdout


def test_trl_reads_the_schema_of_every_tool_of_the_workplace() -> None:
    environments = Environments("workplace", limit=1)
    environment = environments()
    methods = [name for name in dir(type(environment)) if not name.startswith("_") and name != "reset"]
    assert len(methods) == 29
    for name in methods:
        schema = get_json_schema(getattr(environment, name))["function"]
        assert schema["name"] == name
        assert schema["description"]
    environments.close()


def test_a_real_trainer_steps_with_our_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    from tiny import model, tokenizer

    environments = Environments("workplace", limit=2)
    tokens = tokenizer()
    tokens.chat_template, tokens.response_template = TEMPLATE, RESPONSE
    args = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=2,
        max_completion_length=8,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
    )
    trainer = GRPOTrainer(
        model=model(tokens, 1),
        args=args,
        processing_class=tokens,
        environment_factory=environments,
        reward_funcs=environments.reward,
        train_dataset=Dataset.from_list(environments.rows()),
    )
    trainer.train()
    environments.close()
    assert len(trainer.tools) == 29
    assert [entry["reward"] for entry in trainer.state.log_history if "reward" in entry] == [0.0]
