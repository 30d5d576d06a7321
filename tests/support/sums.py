"""The ten-line environment and its relatives, importable by environment processes as files."""

from __future__ import annotations

import json
from pathlib import Path

SUMS = """
from rollbook import Environment, Score, Task


class Sums(Environment):
    def __init__(self, tasks=10):
        self.count = tasks

    def tasks(self):
        for i in range(self.count):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return rollout.text.strip().endswith(task.answer)
"""


def write_sums(folder: Path, source: str = SUMS) -> str:
    """Write the environment; gives its spec."""
    path = folder / "sums_env.py"
    path.write_text(source)
    return f"{path}:Sums"


def write_script(folder: Path, count: int = 10, right: int = 3, **extra: object) -> str:
    """A script that answers `right` of four sums rightly; gives its target."""
    path = folder / "script.jsonl"
    lines = []
    for i in range(count):
        answer = str(2 * i) if i % 4 < right else "I do not know"
        lines.append(json.dumps({"prompt": f"What is {i} + {i}?", "answer": answer, **extra}))
    path.write_text("\n".join(lines) + "\n")
    return f"scripted:{path}"
