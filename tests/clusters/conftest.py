from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fakeslurm import Fakes

from support.commands import Commands
from support.sums import write_script, write_sums


@pytest.fixture
def fakes(tmp_path: Path, commands: Commands) -> Fakes:
    """A machine with fake Slurm programs, before all others on the path."""
    made = Fakes(tmp_path / "bin")
    commands.environ["PATH"] = f"{made.folder}:{os.environ['PATH']}"
    return made


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """`rollbook ARGUMENTS` in an empty folder."""
    return Commands(tmp_path)


@pytest.fixture
def sums(tmp_path: Path) -> list[str]:
    """An environment of ten sums, and a script that answers it."""
    return [write_sums(tmp_path), "-m", write_script(tmp_path)]
