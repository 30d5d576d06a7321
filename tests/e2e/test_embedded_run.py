"""The whole line with the real embedded model: from a command to numbers, tokens and a training batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.book import Book, rollouts
from rollbook.tokens import batch, merge

pytestmark = pytest.mark.model

SUMS = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"


def test_a_real_model_does_sums_and_every_rollout_is_accounted_for(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model's runtime is not installed")
    command = [
        "run",
        SUMS,
        "-k",
        "4",
        "-n",
        "8",
        "--max-tokens",
        "32",
        "--temperature",
        "0.7",
        "-o",
        str(tmp_path / "r"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "rollbook", *command, "--json"], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert (numbers["requested"], numbers["scored"], numbers["pending"]) == (32, 32, 0)
    (metrics,) = numbers["environments"].values()
    assert 0 < metrics["pass@1"] < 1
    assert metrics["pass@4"] > metrics["pass@1"]
    book = Book(tmp_path / "r")
    assert book.manifest.model.kind == "embedded"
    found = list(rollouts(book, tokens=True))
    sequences = [s for r in found for s in merge(r.turns)]
    assert len(sequences) == 32
    made = batch(sequences, pad_id=0)
    assert [s.response_ids for s in made.sequences()] == [r.turns[0].ids for r in found]
