"""A run of a class that is defined in a notebook survives the death of the kernel."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import nbformat

from support.commands import Commands

CELLS = (
    """
    import rollbook
    from rollbook import Environment, Task

    COUNT = 40
    """,
    """
    class Sums(Environment):
        def tasks(self):
            for i in range(COUNT):
                yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

        def verify(self, task, rollout):
            return rollout.text == task.answer
    """,
    'rollbook.run(Sums, "scripted:answers.jsonl", samples=2, out="run", concurrency=2)',
)
PLAY = """
import nbformat, sys
from nbclient import NotebookClient
NotebookClient(nbformat.read(sys.argv[1], 4)).execute()
"""


def test_a_run_of_a_notebook_that_was_killed_is_resumed_from_another_process(
    rollbook: Commands, tmp_path: Path
) -> None:
    (tmp_path / "answers.jsonl").write_text('{"answer": "4", "delay_s": 0.4}\n')
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in CELLS]
    nbformat.write(notebook, tmp_path / "killed.ipynb")
    kernel = subprocess.Popen([sys.executable, "-c", PLAY, "killed.ipynb"], cwd=tmp_path, start_new_session=True)
    try:
        _wait_for_scores(tmp_path / "run")
    finally:
        os.killpg(kernel.pid, signal.SIGKILL)
        kernel.wait()
    _kill_workers(tmp_path / "run")
    resumed = rollbook.run("resume", "run", "-c", 40)
    assert "80/80 scored" in resumed.stdout, resumed.stderr


def _wait_for_scores(run: Path) -> None:
    deadline = time.monotonic() + 90
    while not any(path.stat().st_size for path in run.glob("journals/*.jsonl")):
        assert time.monotonic() < deadline, "nothing was scored"
        time.sleep(0.1)


def _kill_workers(run: Path) -> None:
    """Kill the kernel, which is in a session of its own."""
    for path in run.glob("workers/*.json"):
        with suppress(ProcessLookupError):
            os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
