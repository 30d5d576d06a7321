"""A Python session as the tool of the real embedded model, its calls held to a schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.book import Book, rollouts

pytestmark = [pytest.mark.model, pytest.mark.slow]


def test_a_small_model_calls_python_and_is_scored(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model's runtime is not installed")
    data = tmp_path / "rows.jsonl"
    shown = [
        {"role": "user", "content": "What is 4 * 5? Use the tool."},
        {"role": "assistant", "content": '{"calls": [{"name": "python", "arguments": {"code": "print(4 * 5)"}}]}'},
        {"role": "user", "content": "Result of python:\n20"},
        {"role": "assistant", "content": '{"answer": "20"}'},
    ]
    asked = [(7, 3), (6, 6)]
    rows = [
        {
            "id": f"{a}x{b}",
            "answer": str(a * b),
            "messages": [*shown, {"role": "user", "content": f"What is {a} * {b}? Use the tool."}],
        }
        for a, b in asked
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["-k", "2", "--max-turns", "2", "--max-tokens", "40", "--temperature", "0.5", "-o", str(tmp_path / "r")]
    done = subprocess.run(
        [sys.executable, "-m", "rollbook", "run", "python_tool", "--data", str(data), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["scored"] == 4
    found = list(rollouts(Book(tmp_path / "r")))
    assert sum(rollout.outcome["calls"] for rollout in found) > 0
    results = [message.text for rollout in found for message in rollout.messages if message.role == "tool"]
    assert results
    assert all(isinstance(text, str) and text for text in results)
