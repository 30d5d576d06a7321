"""The GRPO example's script that makes mistakes on purpose: each of them shows in the logprobs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed here: make test-grpo has an environment with it")

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/grpo"))

from logprob_gaps import collect_rows, measure_all  # noqa: E402
from tiny import load  # noqa: E402
from train import Plan  # noqa: E402


def test_each_mistake_makes_the_difference_of_the_logprobs_a_thousand_times_larger(tmp_path):
    torch.manual_seed(7)
    (model, tokenizer), plan = load(), Plan()
    rows = asyncio.run(collect_rows(plan, model, tokenizer, tmp_path))
    found = measure_all(plan, model, rows)
    right = found.pop("as it is")
    assert right["tokens"] == sum(sum(row.mask) for row in rows) > 100
    assert right["mean"] < 1e-6
    assert len(found) == 3
    assert all(gap["mean"] > 1000 * right["mean"] for gap in found.values()), found
