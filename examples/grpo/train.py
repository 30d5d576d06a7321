"""GRPO in plain PyTorch, fed by `rollbook.Collector` with exact tokens.

    .venv-grpo/bin/python examples/grpo/train.py --model tiny --out runs/grpo        a minute on a processor
    make train-gpu                                                                   a language model on a GPU

Groups are collected while the trainer computes; then `pause`, new weights in the server, `resume`. Writes
steps.jsonl (a line per step), held_out.json (pass@1 on held-out tasks) and the run directories of the evaluations.
"""

import argparse
import asyncio
import copy
import dataclasses
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
import uvloop
from model import Model
from server import Server, Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from rollbook import Collector, Task, run_async
from rollbook.core import Group, Limits, Sampling
from rollbook.environments import resolve
from rollbook.reports import Report
from rollbook.trainers import sample_of

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Plan:
    """What to train, and how. Every field is an option of the command line."""

    environment: str = f"{HERE / 'digits.py'}:Digits"
    held_out: str = f"{HERE / 'digits.py'}:Digits?size=64&seed=1000000"
    steps: int = 40
    groups: int = 8
    samples: int = 8
    held_out_samples: int = 4
    evaluate_every: int = 20
    minutes: float = 60.0
    max_tokens: int = 6
    temperature: float = 1.0
    learning_rate: float = 3e-3
    warmup: int = 5
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_staleness: int = 1
    oversampling: int = 32
    slots: int = 64
    length: int = 32
    verify_s: float = 30.0
    seed: int = 7

    @property
    def sampling(self) -> Sampling:
        """How the model samples, in training and on held-out tasks."""
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)


@dataclass
class Row:
    """One sequence to train on: `mask` is 1 on the tokens that the model sampled, unless the rollout failed.

    `versions` has for each of these tokens the version of the weights it was sampled with, and None for the others.
    """

    task: str
    sample: int
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None
    advantage: float
    versions: list[str | None]


def make_rows(group: Group) -> list[Row]:
    """Return the sequences of a group. A failed rollout has no reward, no say in the mean, and an all-zero mask."""
    samples = [sample_of(rollout) for rollout in group.rollouts]
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    mean, spread = statistics.fmean(rewards), statistics.pstdev(rewards)
    rows = []
    for sample in samples:
        advantage = 0.0 if sample.reward is None else (sample.reward - mean) / (spread + 1e-4)
        sampled = (turn.model_version for turn in sample.rollout.turns for _ in turn.ids or ())
        for sequence in sample.sequences:
            blank = [0] * len(sequence.prompt_ids)
            row = Row(
                *sample.rollout.key,
                ids=sequence.prompt_ids + sequence.response_ids,
                mask=blank + sequence.mask,
                logprobs=[0.0] * len(blank) + sequence.logprobs,
                reward=sample.reward,
                advantage=advantage,
                versions=[None] * len(blank) + [next(sampled) if trained else None for trained in sequence.mask],
            )
            rows.append(row)
    return rows


def keep_version(row: Row, version: str) -> Row:
    """Return a row with the mask on the tokens of one version alone."""
    return dataclasses.replace(row, mask=[int(each == version) for each in row.versions])


class Trainer:
    """A clipped policy gradient, with float32 master weights of a model that may be in bfloat16."""

    chunk_tokens = 32_768

    def __init__(self, model: Model, plan: Plan) -> None:
        self.model, self.plan, self.version = model, plan, "0"
        self._versions = {self.version: copy.deepcopy(model)}
        self._masters = [weight.detach().float().clone() for weight in model.parameters()]
        self._optimizer = torch.optim.AdamW(
            self._masters, lr=plan.learning_rate, betas=(0.9, 0.99), weight_decay=0.0, foreach=True
        )

    def step(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Update the weights once by all rows, which makes the next version; return what to report."""
        trained = sum(sum(row.mask) for row in rows)
        versions = Counter(version for row in rows for version in row.versions if version is not None)
        stale = trained - versions[self.version]
        gaps = self.measure_gaps(rows)
        sums = torch.zeros(3, dtype=torch.float64)
        for chunk in split(rows, self.chunk_tokens):
            sums += self._backward(chunk, trained)
        loss, clipped, shift = sums.tolist()
        norm = self._update()
        return {
            "trained_tokens": trained,
            "stale": stale / trained,
            "versions": dict(versions),
            "logprob": sum(sum(row.logprobs) for row in rows if any(row.mask)) / trained,
            "logprob_gap": float(gaps.mean()),
            "logprob_gap_max": float(gaps.max()),
            "logprob_gap_tokens": gaps.numel(),
            "policy_shift": shift / trained,
            "clipped": clipped / trained,
            "loss": loss,
            "gradient_norm": norm,
        }

    @torch.no_grad()
    def measure_gaps(self, rows: Sequence[Row]) -> Tensor:
        """Return how far the server's logprob of each token is from ours, by the weights it was sampled with."""
        gaps = []
        for version, model in self._versions.items():
            for chunk in split([keep_version(row, version) for row in rows], self.chunk_tokens):
                batch = pad(chunk, model.embeddings.weight.device)
                gaps.append((self._logprobs(model, batch) - batch.logprobs).abs())
        return torch.cat(gaps)

    def _backward(self, rows: Sequence[Row], trained: int) -> Tensor:
        """Add the gradient of some rows; return the sums of loss, clipped tokens and change since sampling."""
        batch = pad(rows, self.model.embeddings.weight.device)
        change = self._logprobs(self.model, batch) - batch.logprobs
        ratio = change.exp()
        clipped = ratio.clamp(1 - self.plan.clip_low, 1 + self.plan.clip_high)
        loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages).sum() / trained
        loss.backward()
        return torch.stack(
            [each.detach().double() for each in (loss, (ratio != clipped).sum(), change.abs().sum())]
        ).cpu()

    def _logprobs(self, model: Model, batch: "Batch") -> Tensor:
        """Return the logprobs of the sampled tokens, at the temperature at which they were sampled."""
        logits = model.logits(model(batch.ids[:, :-1])[batch.sampled])
        spread = (logits / self.plan.temperature).log_softmax(-1)
        return spread.gather(1, batch.ids[:, 1:][batch.sampled][:, None])[:, 0]

    def _update(self) -> float:
        step = int(self.version) + 1
        for group in self._optimizer.param_groups:
            group["lr"] = self.plan.learning_rate * min(1.0, step / self.plan.warmup)
        for master, weight in zip(self._masters, self.model.parameters(), strict=True):
            master.grad, weight.grad = weight.grad.float(), None
        norm = torch.nn.utils.clip_grad_norm_(self._masters, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            for master, weight in zip(self._masters, self.model.parameters(), strict=True):
                weight.copy_(master)
        self.version = str(step)
        self._versions[self.version] = copy.deepcopy(self.model)
        self._versions.pop(str(step - self.plan.max_staleness - 1), None)
        return float(norm)


class Batch(NamedTuple):
    """Padded on the right; `logprobs` and `advantages` are of the sampled tokens alone."""

    ids: Tensor
    sampled: Tensor
    logprobs: Tensor
    advantages: Tensor


def split(rows: Sequence[Row], most_tokens: int) -> Iterator[Sequence[Row]]:
    """Yield chunks of the rows to train, by length, that have at most so many tokens with their padding."""
    chunk: list[Row] = []
    for row in sorted((row for row in rows if any(row.mask)), key=lambda row: len(row.ids)):
        if len(row.ids) * (len(chunk) + 1) > most_tokens and chunk:
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def pad(rows: Sequence[Row], device: torch.device) -> Batch:
    """Make a batch: what follows a token is predicted at its place."""
    ids, mask, logprobs = (
        pad_sequence([torch.tensor(getattr(row, name)) for row in rows], batch_first=True).to(device)
        for name in ("ids", "mask", "logprobs")
    )
    sampled = mask[:, 1:] == 1
    advantages = torch.tensor([[row.advantage] for row in rows], device=device).expand_as(sampled)
    return Batch(ids, sampled, logprobs[:, 1:][sampled], advantages[sampled])


@dataclass
class Training:
    """One training. For tests: `on_start` gets the server, `before_step` makes faults, `after_step` gets the rows."""

    plan: Plan
    model: Model
    tokenizer: Tokenizer
    out: Path
    name: str = "model"
    on_start: Callable[[Server], None] = lambda _: None
    before_step: Callable[[int], None] = lambda _: None
    after_step: Callable[[int, Sequence[Group], Sequence[Row]], None] = lambda *_: None
    steps: list[dict[str, Any]] = field(default_factory=list)
    held_out: list[dict[str, Any]] = field(default_factory=list)

    async def run(self) -> None:
        """Evaluate, train, evaluate."""
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "plan.json").write_text(json.dumps(dataclasses.asdict(self.plan), indent=1) + "\n")
        plan, trainer = self.plan, Trainer(self.model, self.plan)
        async with Server(self.model, self.tokenizer, self.name, slots=plan.slots, length=plan.length) as server:
            self.on_start(server)
            await self._evaluate(server, 0)
            async with self.open_collector(server) as collector:
                collector.resume(model_version=trainer.version)
                await self._train(trainer, server, collector)
            await self._run_held_out(server, "sample", samples=2, limit=4)

    def open_collector(self, server: Server) -> Collector:
        """Return a collector of groups with the settings of the plan."""
        plan = self.plan
        return Collector(
            plan.environment,
            server.url,
            samples=plan.samples,
            seed=plan.seed,
            sampling=plan.sampling,
            limits=Limits(verify_s=plan.verify_s),
            concurrency=plan.slots,
            window=2 * plan.groups,
            on_failure="mask",
            equal_rewards="drop",
            max_staleness=plan.max_staleness,
            call_s=120.0,
        )

    async def _train(self, trainer: Trainer, server: Server, collector: Collector) -> None:
        plan, began = self.plan, time.monotonic()
        wanted = plan.steps * plan.groups
        stream = collector.groups(draw_tasks(plan), wanted=wanted, at_most=wanted * plan.oversampling)
        async with aclosing(take(stream, plan.groups)) as batches:
            async for groups in batches:
                step = len(self.steps) + 1
                self.before_step(step)
                rows = [row for group in groups for row in make_rows(group)]
                metrics = await asyncio.to_thread(trainer.step, rows)  # groups are collected meanwhile
                await collector.pause()
                await server.update(self.model.state_dict(), trainer.version)
                self._report(step, groups, rows, metrics, collector, time.monotonic() - began)
                last = step == plan.steps or time.monotonic() - began > plan.minutes * 60
                if last or step % plan.evaluate_every == 0:
                    await self._evaluate(server, step)
                collector.resume(model_version=trainer.version)
                if last:
                    return

    def _report(
        self,
        step: int,
        groups: Sequence[Group],
        rows: Sequence[Row],
        metrics: dict[str, Any],
        collector: Collector,
        seconds: float,
    ) -> None:
        rewards = [rollout.reward for group in groups for rollout in group.scored]
        line = {
            "step": step,
            "seconds": round(seconds, 2),
            "reward": statistics.fmean(rewards),
            "response_tokens": metrics["trained_tokens"] / len(rewards),
            **metrics,
            **msgspec.structs.asdict(collector.counts),
        }
        self.steps.append(line)
        with (self.out / "steps.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        self.after_step(step, groups, rows)
        say(f"step {step}: reward {line['reward']:.3f}, logprob gap {line['logprob_gap']:.1e}, {seconds:.0f} s")

    async def _evaluate(self, server: Server, step: int) -> None:
        began = time.monotonic()
        report = await self._run_held_out(server, f"held-out-{step}", self.plan.held_out_samples)
        self.held_out.append(summarize(step, report))
        (self.out / "held_out.json").write_text(json.dumps(self.held_out, indent=1) + "\n")
        say(f"held out after {step} steps: {self.held_out[-1]}, {time.monotonic() - began:.0f} s")

    async def _run_held_out(self, server: Server, name: str, samples: int, limit: int | None = None) -> Report:
        return await run_held_out(self.plan, server.url, self.out / name, samples, limit)


async def run_held_out(plan: Plan, url: str, out: Path, samples: int, limit: int | None = None) -> Report:
    """Run the held-out tasks into a run directory of their own, with the sampling of the training."""
    result = await run_async(
        plan.held_out,
        url,
        samples=samples,
        limit=limit,
        out=out,
        seed=plan.seed,
        sampling=plan.sampling,
        limits=Limits(verify_s=plan.verify_s),
        concurrency=plan.slots,
        probe=False,
    )
    return result.report


def summarize(step: int, report: Report) -> dict[str, Any]:
    """Return pass@1 with its interval from Rollbook's own report."""
    numbers = report.overall
    return {
        "step": step,
        "pass@1": numbers.pass_at[1],
        "interval": numbers.pass_interval,
        "mean": numbers.mean,
        "tasks": numbers.tasks,
        "rollouts": numbers.scored,
    }


def draw_tasks(plan: Plan) -> Iterator[Task]:
    """Yield training tasks; none that is held out, whatever its number."""
    held_out = {task.prompt for task in resolve(plan.held_out).instance.tasks()}
    return (task for task in resolve(plan.environment).instance.tasks() if task.prompt not in held_out)


async def take(stream: AsyncIterator[Group], count: int) -> AsyncGenerator[list[Group], None]:
    """Yield lists of so many groups; closing it closes the stream."""
    async with aclosing(stream):
        batch = []
        async for group in stream:
            batch.append(group)
            if len(batch) == count:
                yield batch
                batch = []


def say(line: str) -> None:
    """Print at once, also into a file."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def parse_options(description: str, switches: Mapping[str, str] | None = None) -> tuple[Plan, dict[str, Any]]:
    """Read the command line: the plan, and what else was given; `switches` are further options with their help."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--model", choices=("tiny", "smollm"), default="tiny")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, help="the weights of smollm; by default the embedded model's")
    for switch, text in (switches or {}).items():
        parser.add_argument(switch, action="store_true", help=text)
    for option in dataclasses.fields(Plan):
        parser.add_argument("--" + option.name.replace("_", "-"), type=option.type, default=option.default)
    options = vars(parser.parse_args())
    plan = Plan(**{option.name: options.pop(option.name) for option in dataclasses.fields(Plan)})
    return plan, options


def load_model(options: dict[str, Any]) -> tuple[Model, Tokenizer]:
    """Return the model that the command line names, and its tokenizer."""
    if options["model"] == "tiny":
        from tiny import load

        return load()
    from smollm import load

    return load(options["gguf"])


def main() -> None:
    """Train as the command line says."""
    plan, options = parse_options(__doc__)
    torch.manual_seed(plan.seed)
    torch.set_float32_matmul_precision("high")
    model, tokenizer = load_model(options)
    sys.setswitchinterval(0.0005)  # the engine and the trainer each wait for the interpreter after every launch
    uvloop.run(Training(plan, model, tokenizer, options["out"], options["model"]).run())


if __name__ == "__main__":
    main()
