"""The same training with TRL's own trainer: Rollbook makes its rollouts, on the server of this folder.

    .venv-grpo-gpu/bin/python examples/grpo/train_trl.py --out runs/trl --environment SPEC --held-out SPEC

Takes the options of train.py that TRL has too, and two of its own. Before each batch of rollouts the server gets TRL's
weights. Writes plan.json, steps.jsonl, held_out.json and run directories like train.py.
"""

import asyncio
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import smollm
import torch
from datasets import Dataset
from server import Server
from train import Plan, draw_tasks, parse_options, run_held_out, say, summarize
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rollbook.trainers.trl import Rollouts

SWITCHES = {
    "--detect-anomaly": "end at the first gradient that is not a number, with the operation that made it",
    "--without-cudnn-attention": "compute attention with another kernel than cuDNN's",
}


class Training(TrainerCallback):
    """One training; as a callback of TRL's trainer, it writes a line per step."""

    def __init__(self, plan: Plan, out: Path, gguf: Path | None) -> None:
        self.plan, self.out = plan, out
        self._source, self._tokenizer = smollm.load_source(gguf)
        self._held_out: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Evaluate, train with TRL in a thread, evaluate."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "plan.json").write_text(json.dumps(dataclasses.asdict(self.plan), indent=1) + "\n")
        self._loop, plan = asyncio.get_running_loop(), self.plan
        model, tokenizer = smollm.convert(self._source), smollm.ChatTokenizer(self._tokenizer)
        async with Server(model, tokenizer, "smollm", slots=plan.slots, length=plan.length) as server:
            await self._evaluate(server, 0)
            rollouts = Rollouts(plan.environment, server.url, concurrency=plan.slots, seed=plan.seed)
            trainer = self._make_trainer(server, rollouts)
            self._began = time.monotonic()
            await asyncio.to_thread(trainer.train)
            rollouts.close()
            await self._update(server, "last")
            await self._evaluate(server, trainer.state.global_step)

    def _make_trainer(self, server: Server, rollouts: Rollouts) -> GRPOTrainer:
        def collect(prompts: Sequence[Any], trainer: Any) -> Mapping[str, Any]:
            version = str(trainer.state.global_step)
            asyncio.run_coroutine_threadsafe(self._update(server, version), self._loop).result()
            return rollouts(prompts, trainer)

        trained = {task.id for task in draw_tasks(self.plan)}
        trainer = GRPOTrainer(
            model=self._source,
            args=make_config(self.plan, self.out / "trl"),
            processing_class=self._tokenizer,
            rollout_func=collect,
            reward_funcs=rollouts.reward,
            train_dataset=Dataset.from_list([row for row in rollouts.rows() if row["task"] in trained]),
            callbacks=[self],
        )
        trainer.remove_callback(PrinterCallback)
        return trainer

    async def _update(self, server: Server, version: str) -> None:
        weights = smollm.rename_weights(self._source.state_dict(), self._source.config.num_hidden_layers)
        await server.update(weights, version)

    async def _evaluate(self, server: Server, step: int) -> None:
        report = await run_held_out(self.plan, server.url, self.out / f"held-out-{step}", self.plan.held_out_samples)
        self._held_out.append(summarize(step, report))
        (self.out / "held_out.json").write_text(json.dumps(self._held_out, indent=1) + "\n")
        say(f"held out after {step} steps: {self._held_out[-1]}")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Write what TRL reports of a step."""
        if not logs or "reward" not in logs:
            return
        line = {"step": state.global_step, "seconds": round(time.monotonic() - self._began, 2), **logs}
        with (self.out / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        say(f"step {state.global_step}: reward {float(logs['reward']):.3f}, {line['seconds']:.0f} s")


def make_config(plan: Plan, folder: Path) -> GRPOConfig:
    """Return TRL's settings for a plan; what the plan does not name is TRL's default."""
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=plan.steps,
        per_device_train_batch_size=plan.groups * plan.samples,
        num_generations=plan.samples,
        max_completion_length=plan.max_tokens,
        temperature=plan.temperature,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=plan.warmup,
        epsilon=plan.clip_low,
        epsilon_high=plan.clip_high,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        bf16=torch.cuda.is_available(),
        seed=plan.seed,
    )


def main() -> None:
    """Train as the command line says."""
    plan, options = parse_options(__doc__, SWITCHES)
    torch.autograd.set_detect_anomaly(options["detect_anomaly"])
    if options["without_cudnn_attention"]:
        torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(plan.seed)
    asyncio.run(Training(plan, options["out"], options["gguf"]).run())


if __name__ == "__main__":
    main()
