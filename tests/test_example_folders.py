"""The examples that people copy: the commands of each README are run in a copy of its folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import SHELLS, Session, blocks, commands
from test_docs import places

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted(path.parent for path in (ROOT / "examples").glob("*/README.md"))

__all__ = ["places"]  # a fixture


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_commands_of_an_example_run_and_print_what_it_shows(example, places, tmp_path):
    folder = tmp_path / example.name
    shutil.copytree(example, folder, ignore=shutil.ignore_patterns("__pycache__"))
    session = Session(folder, places)
    text = (folder / "README.md").read_text()
    session.play(text)
    shown = [block for block in blocks(text) if block.language in SHELLS and not block.skipped]
    assert session.ran == sum(len(commands(block)) for block in shown)


def test_the_list_of_examples_is_complete():
    listed = (ROOT / "examples/README.md").read_text()
    folders = [path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert [name for name in folders if f"({name}" not in listed] == []
    assert len(EXAMPLES) >= 7


def test_the_tests_of_the_environment_package_pass(tmp_path):
    folder = tmp_path / "package"
    shutil.copytree(ROOT / "examples/environment_package", folder)
    done = subprocess.run([sys.executable, "-m", "pytest", "tests"], cwd=folder, capture_output=True, text=True)
    assert "3 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_the_examples_are_typed():
    """In one run: names are those of folders, since several examples have a file of the same name."""
    skipped = {"trl", "verl", "grpo", "tests"}
    sources = [path for path in (ROOT / "examples").rglob("*.py") if path.parent.name not in skipped]
    paths = [str(path.relative_to(ROOT)) for path in sources]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", *paths],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": f"{ROOT / 'src'}:{ROOT / 'examples/environment_package/src'}"},
    )
    assert done.returncode == 0, done.stdout
