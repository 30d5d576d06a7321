"""Make mistakes in the trainer on purpose, and show that the difference of the logprobs finds each of them.

    .venv-grpo-gpu/bin/python examples/grpo/logprob_gaps.py --model smollm --out runs/gaps --environment SPEC

Takes the options of train.py. Collects one batch from the untrained model, and writes gaps.json: the mean and the
largest absolute difference between the server's logprobs and the trainer's, for the right trainer and for each mistake.
"""

import copy
import dataclasses
import json
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import torch
import uvloop
from model import Model
from server import Server, Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from train import Plan, Row, Trainer, Training, draw_tasks, load_model, make_rows, parse_options, say, take


async def collect_rows(plan: Plan, model: Model, tokenizer: Tokenizer, out: Path) -> list[Row]:
    """Return the rows of one step of training."""
    training = Training(plan, model, tokenizer, out)
    async with (
        Server(model, tokenizer, "model", slots=plan.slots, length=plan.length) as server,
        training.open_collector(server) as collector,
    ):
        collector.resume(model_version="0")
        stream = collector.groups(draw_tasks(plan), wanted=plan.groups, at_most=plan.groups * plan.oversampling)
        async with aclosing(take(stream, plan.groups)) as batches:
            return [row for group in await anext(batches) for row in make_rows(group)]


def measure(plan: Plan, model: Model, rows: Sequence[Row]) -> dict[str, float]:
    """Return the differences for the logprobs that a model gives to the rows."""
    gaps = Trainer(model, plan).measure_gaps(rows)
    return {"mean": float(gaps.mean()), "max": float(gaps.max()), "tokens": gaps.numel()}


def measure_all(plan: Plan, model: Model, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the differences of the right trainer and of every wrong one, by name."""
    found = {"as it is": measure(plan, model, rows)}
    if model.embeddings.weight.is_cuda:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            found["FlashAttention"] = measure(plan, model, rows)
        found["float32 instead of bfloat16"] = measure(plan, copy.deepcopy(model).float(), rows)
    found["one layer's query weights x 1.01"] = measure(plan, scale_queries(model), rows)
    found["first token of each prompt changed"] = measure(plan, model, [change_first(row) for row in rows])
    found["mask moved by one token"] = measure(plan, model, [move_mask(row) for row in rows])
    return found


def scale_queries(model: Model) -> Model:
    """Return a copy of which the query weights of the first layer are one percent larger."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.blocks[0].q.weight.mul_(1.01)
    return changed


def change_first(row: Row) -> Row:
    """Return a row with another first token."""
    return dataclasses.replace(row, ids=[0 if row.ids[0] else 1, *row.ids[1:]])


def move_mask(row: Row) -> Row:
    """Return a row that takes each logprob for the one of the token before."""
    mask, logprobs, versions = [*row.mask[1:], 0], [*row.logprobs[1:], 0.0], [*row.versions[1:], None]
    return dataclasses.replace(row, mask=mask, logprobs=logprobs, versions=versions)


def main() -> None:
    """Measure as the command line says."""
    plan, options = parse_options(__doc__)
    torch.manual_seed(plan.seed)
    model, tokenizer = load_model(options)
    options["out"].mkdir(parents=True, exist_ok=True)
    rows = uvloop.run(collect_rows(plan, model, tokenizer, options["out"]))
    found = measure_all(plan, model, rows)
    (options["out"] / "gaps.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, gap in found.items():
        say(f"{gap['mean']:.1e} mean, {gap['max']:.1e} at most, {gap['tokens']} tokens: {name}")


if __name__ == "__main__":
    main()
