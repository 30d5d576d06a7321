"""The child's side of life and death."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rollbook.processes.child import Child
from rollbook.processes.life import OOM, OOM_MOST, OOM_STEP

SAYS = "from rollbook.processes.life import OOM, die_with_parent; die_with_parent(); print(open(OOM).read())"


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: only Linux lets a process say who goes first")
def test_where_memory_runs_out_a_child_goes_before_its_parent(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", SAYS], log=tmp_path / "log")
    assert asyncio.run(child.exited(30)) == 0
    mine = int(Path(OOM).read_text())
    assert int((tmp_path / "log").read_text()) == min(OOM_MOST, mine + OOM_STEP)
