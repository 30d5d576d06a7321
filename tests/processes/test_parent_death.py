"""The child's side of life and death."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rollbook.processes.child import Child
from rollbook.processes.process_tree import MAX_OOM_SCORE, OOM_SCORE_FILE, OOM_SCORE_STEP

SAYS = (
    "from rollbook.processes.process_tree import OOM_SCORE_FILE, die_with_parent\n"
    "die_with_parent(); print(open(OOM_SCORE_FILE).read())"
)


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: only Linux lets a process say who goes first")
def test_where_memory_runs_out_a_child_goes_before_its_parent(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", SAYS], log=tmp_path / "log")
    assert asyncio.run(child.wait(30)) == 0
    mine = int(Path(OOM_SCORE_FILE).read_text())
    assert int((tmp_path / "log").read_text()) == min(MAX_OOM_SCORE, mine + OOM_SCORE_STEP)
