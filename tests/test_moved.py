"""Names that have moved: documented ones keep working with a warning, the others say where to look."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from rollbook._exports import RENAMED
from rollbook._moved import DOCUMENTED, PACKAGES, RUN_BY_NAME

GOLDEN = Path(__file__).parent / "golden"
PUBLIC_NAMES = (GOLDEN / "public_names.txt").read_text().split()
"""Every name that the `__init__` of a package exported at revision 32db08b. Names are never removed from this list."""
NAMES = [(*old.split(":"), home) for old, home in DOCUMENTED.items()]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dotted", PUBLIC_NAMES)
def test_a_name_that_was_public_can_still_be_imported(dotted: str) -> None:
    package, _, name = dotted.rpartition(".")
    try:
        assert getattr(importlib.import_module(package), name) is not None
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rollbook"):
            raise
        pytest.skip(f"{error.name} IS NOT INSTALLED HERE")


@pytest.mark.parametrize(("dotted", "new"), RENAMED.items())
def test_a_renamed_name_is_the_new_one_with_a_warning_at_its_import(dotted: str, new: str) -> None:
    package, _, name = dotted.rpartition(".")
    found: dict[str, object] = {}
    with pytest.warns(FutureWarning, match=f"write `from {package} import {new}`") as warned:
        exec(compile(f"from {package} import {name}", "user.py", "exec"), found)
    assert found[name] is getattr(importlib.import_module(package), new)
    assert {warning.filename for warning in warned} == {"user.py"}


@pytest.mark.parametrize(("module", "name", "home"), NAMES)
def test_a_documented_name_is_found_under_its_old_module_with_a_warning(module: str, name: str, home: str) -> None:
    package, _, new = home.partition(":")
    with pytest.warns(FutureWarning, match=f"has moved: write `from {package} import {new}`"):
        old = getattr(importlib.import_module(module), name)
    assert old is getattr(importlib.import_module(package), new)


def test_importing_an_old_module_does_not_hide_the_function_of_its_name() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from rollbook.environments.rows import rows as old\n"
        "from rollbook.environments import rows as new\n"
        "assert old is new and callable(new)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize("gone", PACKAGES)
def test_a_package_that_is_gone_names_its_successors(gone: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"{gone} is now {PACKAGES[gone]}"):
        importlib.import_module(f"{gone}.no_such_module")


def test_a_module_that_is_gone_names_the_interface_of_its_package() -> None:
    importlib.import_module("rollbook.book")
    with pytest.raises(ModuleNotFoundError, match=r"'rollbook\.book\.marks': import public names from rollbook\.book"):
        importlib.import_module("rollbook.book.marks")


@pytest.mark.parametrize(("old", "new"), RUN_BY_NAME.items())
def test_a_queued_script_finds_the_module_it_was_written_for(old: str, new: str) -> None:
    """Both are run without arguments: they fail alike, in the same file, or end alike."""
    ends = [
        subprocess.run([sys.executable, "-m", name], capture_output=True, text=True, timeout=60) for name in (old, new)
    ]
    assert ends[0].returncode == ends[1].returncode
    assert ends[0].stderr.splitlines()[-1:] == ends[1].stderr.splitlines()[-1:]
    assert "No module named" not in ends[0].stderr


def test_an_environment_that_imports_what_has_moved_gets_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("from rollbook.collect.run import run_request\n")
    command = [sys.executable, "-m", "rollbook", "plan", "mine.py:Mine", "-m", "scripted:x.jsonl", "-o", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "rollbook.collect is now rollbook.engine, rollbook.reports or rollbook.checks" in done.stderr
