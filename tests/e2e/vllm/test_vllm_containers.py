"""Exact tokens of an agent program inside a container: its calls come out to the gateway, and from there to vLLM."""

import sys
from pathlib import Path

import pytest

from rollbook import run
from rollbook.book import Book, rollouts
from rollbook.core import Sampling

pytestmark = pytest.mark.slow

CONTAINERS = Path(__file__).parents[2] / "containers"
QUESTIONS = ["What is two plus two?", "Name a colour."]


@pytest.fixture
def task():
    sys.path.insert(0, str(CONTAINERS / "real"))
    from base_image import missing

    if why := missing():
        pytest.skip(f"NO CONTAINERS HERE: {why}")
    return CONTAINERS / "tasks" / "write-word"


def test_a_program_inside_a_container_has_exact_tokens_on_every_turn(vllm, task, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parent)
    run(
        f"harbor:{task}",
        vllm.url,
        agent="program:bash inside.sh",
        samples=3,
        concurrency=3,
        out=tmp_path / "run",
        sampling=Sampling(max_tokens=24),
    )
    asked = [{"model": "tiny", "messages": [{"role": "user", "content": question}]} for question in QUESTIONS]
    rendered = [vllm.ask("/tokenize", body)["tokens"] for body in asked]
    found = list(rollouts(Book(tmp_path / "run"), tokens=True))
    assert len(found) == 3
    for rollout in found:
        assert rollout.score.reward == 1.0
        assert [turn.prompt_ids for turn in rollout.turns] == rendered
        assert all(0 < len(turn.ids) == len(turn.logprobs) <= 24 for turn in rollout.turns)
    assert len({tuple(turn.ids) for rollout in found for turn in rollout.turns}) > 2  # sampled, not repeated
