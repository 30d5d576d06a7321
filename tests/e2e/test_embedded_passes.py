"""Many tries help the real embedded model: where it is right sometimes, pass@8 is above pass@1."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.slow]

SUMS = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
QUESTIONS = [
    ("Which one is an animal?", ["dog", "table", "river", "song"], "A"),
    ("Which one can you eat?", ["stone", "bread", "cloud", "chair"], "B"),
    ("Which one is a colour?", ["seven", "walk", "blue", "table"], "C"),
    ("Which one is a number?", ["cat", "green", "house", "five"], "D"),
]


def numbers(tmp_path: Path, env: str, *options: str) -> dict[str, float]:
    pytest.importorskip("xllamacpp", reason="the embedded model's runtime is not installed")
    words = [sys.executable, "-m", "rollbook", "run", env, "-k", "8", "-o", str(tmp_path / "run"), "--json", *options]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)["overall"]
    return found


def test_sums(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    found = numbers(tmp_path, SUMS, "-n", "4", "--max-tokens", "32", "--temperature", "0.7")
    assert 0 < found["pass@1"] < found["pass@8"] <= 1


def test_multiple_choice(tmp_path: Path) -> None:
    rows = [{"question": q, "options": options, "answer": letter} for q, options, letter in QUESTIONS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("--data", str(tmp_path / "rows.jsonl"))
    found = numbers(tmp_path, "mcqa?grading=lenient", *data, "--max-tokens", "12", "--temperature", "1.0")
    assert 0 < found["pass@1"] < found["pass@8"] <= 1
