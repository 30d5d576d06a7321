"""Progress of a call from Python: a bar in a notebook, a panel on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from support.sums import SUMS, write_script, write_sums

RUN = 'import rollbook\nresult = rollbook.run("{sums}", "{script}", out="{out}", concurrency=2{more})'
ASYNC = RUN.replace("rollbook.run(", "await rollbook.run_async(")
POISON = SUMS.replace("        return roll", "        if task.id == 'sum-3':\n            1 / 0\n        return roll")


def fill(cell: str, folder: Path, out: str, source: str = SUMS, more: str = "") -> str:
    return cell.format(sums=write_sums(folder, source), script=write_script(folder, delay_s=0.2), out=out, more=more)


def play(folder: Path, *cells: str) -> list[list[nbformat.NotebookNode]]:
    """The outputs of each cell in a real kernel."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    return [cell.outputs for cell in client.execute().cells]


def test_a_notebook_shows_one_bar_for_each_run_with_its_final_state(tmp_path: Path) -> None:
    seen = "seen = []\n"
    more = ", on_progress=seen.append, allow_shortfall=True"
    blocking, awaited, silent, updates = play(
        tmp_path,
        seen + fill(RUN, tmp_path, "a", POISON, more),
        fill(ASYNC, tmp_path, "b", POISON, ", allow_shortfall=True"),
        fill(RUN, tmp_path, "c", POISON, ", allow_shortfall=True, progress=False"),
        "len(seen)",
    )
    for outputs in (blocking, awaited):
        (shown,) = outputs
        assert shown.output_type == "display_data"
        assert '<progress max="10" value="10"></progress>' in shown.data["text/html"]
        assert "failed 1 (verifier_error 1)" in shown.data["text/html"]
        assert shown.data["text/plain"].startswith("scored 9/10 · failed 1 (verifier_error 1) · pending 0")
    assert silent == []
    assert int(updates[0].data["text/plain"]) > 1


SCRIPT = """
import sys
import rollbook

result = rollbook.run(sys.argv[1], sys.argv[2], out=sys.argv[3], progress=sys.argv[4] == "shown")
print(result.report.scored, "IPython" in sys.modules)
"""


@pytest.mark.parametrize("progress", ["shown", "hidden"])
def test_a_script_shows_a_panel_on_a_terminal(tmp_path: Path, progress: str) -> None:
    ours, theirs = pty.openpty()
    words = [write_sums(tmp_path), write_script(tmp_path), str(tmp_path / "run"), progress]
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "110"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], stdout=subprocess.PIPE, stderr=theirs, timeout=60, env=environ
    )
    os.write(theirs, b"end")
    drawn = os.read(ours, 1 << 16)
    assert done.stdout == b"10 False\n", drawn
    assert (b"scored 10/10" in drawn) == (progress == "shown")
    assert (drawn == b"end") == (progress == "hidden")
