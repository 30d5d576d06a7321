import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def rollbook(tmp_path, monkeypatch):
    """Run `rollbook ARGUMENTS` as people do: in a process of its own, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("COLUMNS", "110")

    def run(*arguments):
        command = [sys.executable, "-c", "from rollbook.cli.main import main; main()", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)

    return run
