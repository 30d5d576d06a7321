"""Names that have moved: documented ones keep working with a warning, the others say where to look."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from rollbook._exports import RENAMED
from rollbook._moved import DOCUMENTED, HOME, RUN_BY_NAME, _explain, old_modules
from rollbook.core.manifest import _FIRST_VERSION_TARGETS, translate_target
from rollbook.environments.registry import import_class
from support.commands import Commands
from support.sums import SUMS, write_script, write_sums

GOLDEN = Path(__file__).parent / "golden"
PUBLIC_NAMES = (GOLDEN / "public_names.txt").read_text().split()
"""Every name that the `__init__` of a package exported at revision 32db08b. Names are never removed from this list."""
DOCUMENTED_NAMES = (GOLDEN / "documented_names.txt").read_text().split()
"""Every module and name that the documentation showed at revision 32db08b. Names are never removed from this list."""
DEFINITION = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NAMES = [(*old.split(":"), home) for old, home in DOCUMENTED.items()]


def is_public(dotted: str) -> bool:
    """Whether a package exports this name today."""
    package, _, name = dotted.rpartition(".")
    return package not in old_modules() and name in importlib.import_module(package).__all__


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("dotted", sorted({*PUBLIC_NAMES, *DOCUMENTED_NAMES}))
def test_a_name_that_was_public_or_documented_can_still_be_imported(dotted: str) -> None:
    package, _, name = dotted.rpartition(".")
    found: dict[str, object] = {}
    try:
        exec(f"from {package} import {name}", found)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rollbook"):
            raise
        pytest.skip(f"{error.name} IS NOT INSTALLED HERE")
    assert found[name] is getattr(importlib.import_module(package), name)


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


@pytest.mark.parametrize("name", [name for name in old_modules() if is_public(name) and name not in RUN_BY_NAME])
def test_importing_an_old_module_never_hides_a_public_name(name: str) -> None:
    package, _, last = name.rpartition(".")
    with pytest.raises(ModuleNotFoundError, match="no longer exists"):
        exec(f"from {name} import no_such_name", {})
    assert not isinstance(getattr(importlib.import_module(package), last), ModuleType)


@pytest.mark.parametrize(
    "target", [target for target in _FIRST_VERSION_TARGETS if target.split(":")[0] in old_modules()]
)
def test_a_built_in_environment_is_imported_from_its_old_module_with_a_warning(target: str) -> None:
    module, _, name = target.partition(":")
    found: dict[str, object] = {}
    with pytest.warns(FutureWarning, match="has moved: write `from (.+) import (.+)`") as warned:
        exec(f"from {module} import {name}", found)
    exec(str(warned[0].message).split("`")[1], found)
    assert found[name] is import_class(translate_target(target, "")[0])


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("from rollbook.collect.run import run_request", "write `from rollbook.engine import run_request`"),
        ("from rollbook.book.marks import ChunkRule", "ChunkRule is now in rollbook.book.counted_lines"),
        ("from rollbook.view.charts import pie", "its contents are in rollbook.viewer, where nothing is named pie"),
        (
            "import rollbook.book.marks\nrollbook.book.marks.ChunkRule",
            "ChunkRule is now in rollbook.book.counted_lines",
        ),
    ],
)
def test_a_name_of_a_module_that_is_gone_says_where_it_is_now(statement: str, says: str) -> None:
    with pytest.raises(
        (ModuleNotFoundError, AttributeError), match=rf"^rollbook\.\w+\.\w+ no longer exists: .*{says}$"
    ):
        exec(statement, {})


def test_a_hint_never_names_a_place_that_does_not_have_the_name() -> None:
    """Every old module is asked for every name that many modules define, and for one that none has."""
    trees = {path: ast.parse(path.read_text()) for path in HOME.rglob("*.py") if "noray" not in path.parts}
    defined = Counter(node.name for tree in trees.values() for node in tree.body if isinstance(node, DEFINITION))
    for name in [*(name for name, _ in defined.most_common(12)), "no_such_name"]:
        for top in {".".join(module.split(".")[:2]) for module in old_modules()}:
            said = _explain(f"{top}.no_such_module", name)
            places = re.findall(r"from (\S+) import", said) or re.findall(r"is now in (.+)", said)
            for place in places[0].split(" or ") if places else ():
                path = HOME.parent.joinpath(*place.split("."))
                tree = trees.get(path / "__init__.py") or trees[path.with_suffix(".py")]
                assert f"'{name}'" in ast.dump(tree), said


@pytest.mark.parametrize("name", ["rollbook.nothing", "rollbook.book.nothing", "rollbook.collect.nothing"])
def test_a_module_that_never_existed_is_not_found(name: str) -> None:
    assert importlib.util.find_spec(name) is None
    with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$"):
        importlib.import_module(name)


def test_no_old_module_exists_again() -> None:
    assert not [name for name in old_modules() if HOME.parent.joinpath(*name.split(".")).with_suffix(".py").exists()]


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
    assert (
        "rollbook.collect.run no longer exists: write `from rollbook.engine import run_request` (mine.py:1)"
        in done.stderr
    )


@pytest.mark.parametrize("verify", ["def verify", "async def verify"])
def test_a_stored_environment_that_imports_what_has_moved_gets_one_line(verify: str, tmp_path: Path) -> None:
    gone = "import os\nif os.environ.get('UPGRADED'):\n    from rollbook.collect.run import run_request\n"
    spec = write_sums(tmp_path, gone + SUMS.replace("def verify", verify))
    script, rollbook = write_script(tmp_path), Commands(tmp_path)
    assert rollbook.run("plan", spec, "-m", script, "-o", "planned").code == 0
    assert rollbook.run("run", spec, "-m", script, "-o", "run").code == 0
    before = read_files(tmp_path / "run")
    for words in ("resume planned", "extend run -k 2", "reverify run -o again"):
        done = rollbook.run(*words.split(), UPGRADED="1")
        assert done.code == 2
        assert "write `from rollbook.engine import run_request`" in done.complaint
        assert re.search(r"\((planned|run|again)/source/\w+\.py:3\)$", done.complaint), done.complaint
        assert read_files(tmp_path / "run") == before


def read_files(folder: Path) -> dict[Path, bytes]:
    """The content of every file in a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
