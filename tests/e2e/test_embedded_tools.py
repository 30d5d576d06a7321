"""The tool loop with the real embedded model: calls held to a schema, a state that is scored, one sequence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.book import Book, rollouts
from rollbook.tokens import merge

pytestmark = [pytest.mark.model, pytest.mark.slow]

LOCKERS = '''
from rollbook import Environment, Score, Task, tool

SHOWN = [
    {"role": "user", "content": "Open locker 2."},
    {"role": "assistant", "content": '{"calls": [{"name": "open_locker", "arguments": {"number": 2}}]}'},
    {"role": "user", "content": "Result of open_locker:\\nLocker 2 is open."},
    {"role": "assistant", "content": '{"answer": "Locker 2 is open."}'},
]


class Lockers(Environment):
    """Open the locker whose number is asked for."""

    def tasks(self):
        for number in (3, 5, 7, 9):
            asked = {"role": "user", "content": f"Open locker {number}."}
            yield Task(id=f"locker-{number}", messages=[*SHOWN, asked], answer=number)

    def open(self, task):
        return {"opened": []}

    @tool
    def open_locker(self, state, number: int) -> str:
        """Open a locker.

        Args:
            number: The number on its door, from 1 to 9.
        """
        if not 1 <= number <= 9:
            raise ValueError("lockers have the numbers 1 to 9")
        state["opened"].append(number)
        return f"Locker {number} is open."

    def outcome(self, state):
        return state

    def verify(self, task, rollout):
        opened = rollout.outcome["opened"]
        return Score(float(opened == [task.answer]), answer=str(opened))
'''


def test_a_model_of_135m_parameters_opens_lockers(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp", reason="the embedded model's runtime is not installed")
    (tmp_path / "lockers.py").write_text(LOCKERS)
    words = ["-k", "3", "--max-turns", "3", "--max-tokens", "40", "--temperature", "0.7", "-o", str(tmp_path / "r")]
    done = subprocess.run(
        [sys.executable, "-m", "rollbook", "run", str(tmp_path / "lockers.py"), *words, "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert (numbers["requested"], numbers["scored"], numbers["pending"]) == (12, 12, 0)
    assert numbers["environments"]["Lockers"]["pass@1"] > 0
    book = Book(tmp_path / "r")
    assert (book.manifest.model.kind, book.manifest.tool_format) == ("embedded", "schema")
    found = list(rollouts(book, tokens=True))
    for rollout in found:
        sequences = merge(rollout.turns)
        assert sum(sum(s.mask) for s in sequences) == rollout.usage.completion_tokens
    right = [r for r in found if r.reward == 1.0]
    for rollout in right:
        assert rollout.outcome == {"opened": [rollout.task.answer]}
        assert any(m.role == "tool" and m.text.startswith("Locker ") for m in rollout.messages)
    joined = [r for r in right if len(r.turns) > 1 and all(t.finish_reason == "stop" for t in r.turns)]
    assert joined
    for rollout in joined:
        (sequence,) = merge(rollout.turns)
        assert 0 in sequence.mask
