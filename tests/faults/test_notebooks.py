"""Notebooks: a run survives the death of the kernel; cells show pictures, tables and errors of one line."""

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
import pytest
from nbclient import NotebookClient

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


SHOWN = (
    CELLS[0].replace("40", "3"),
    CELLS[1],
    'result = rollbook.run(Sums, "scripted:answers.jsonl", out="run", progress=False)\nresult',
    'rollbook.load("run").plot()',
    'import matplotlib.pyplot\nrollbook.load("run").plot()',
    "rollbook.check(Sums)",
    'rollbook.run("no_such_environment", "scripted:answers.jsonl")',
    'Sums.verify = lambda self, task, rollout: 0.5\nrollbook.run(Sums, "scripted:answers.jsonl", out="changed")',
)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[nbformat.NotebookNode]]:
    """What each of the cells showed."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "answers.jsonl").write_text('{"answer": "4"}\n')
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in SHOWN]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, allow_errors=True, resources=resources).execute()
    return [[out for out in cell.outputs if out.output_type != "stream"] for cell in notebook.cells]


def test_a_cell_shows_the_plot_of_a_run_as_a_picture(outputs: list[list[nbformat.NotebookNode]]) -> None:
    for cell in (3, 4):
        (shown,) = outputs[cell]
        assert shown.data["image/png"].startswith("iVBOR")


def test_a_cell_shows_a_result_and_the_findings_of_a_check_as_tables(
    outputs: list[list[nbformat.NotebookNode]],
) -> None:
    for cell, text in ((2, "3 of 3 scored"), (5, "Sums: sound, 3 tasks")):
        (shown,) = outputs[cell]
        assert "<table>" in shown.data["text/html"]
        assert text in shown.data["text/plain"]


def test_a_cell_shows_an_error_as_one_line(outputs: list[list[nbformat.NotebookNode]]) -> None:
    for cell, text in ((6, "unknown environment 'no_such_environment'"), (7, "Sums.verify changed after")):
        (shown,) = outputs[cell]
        assert len("\n".join(shown.traceback).splitlines()) == 1
        assert shown.traceback[0].startswith("UsageError: ")
        assert text in shown.traceback[0]
