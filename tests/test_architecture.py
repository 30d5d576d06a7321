"""What keeps the code base findable: packages with a public interface, unique names, folders of a bounded size."""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import rollbook

HOME = Path(rollbook.__file__).parent
ROOT = HOME.parent.parent
MAX_MODULES = 22
GUEST = "rollbook.sandbox.inner"
"""Runs inside guests, where Rollbook cannot be imported: it has no interface, and imports only itself."""
DATA = ("noray",)
"""Folders that only look like packages: they are put on another program's import path."""

SAME_NAME = {
    "Limits": "core.Limits are on disk under that name and bound a rollout; sandbox.Limits are public and bound code",
}
"""Public classes that share a name, each with the reason."""


WHITE_BOX = {
    "tests/faults/test_gateway.py": "it lets a server of the gateway fail from inside",
}
"""Tests of faults that need a module of a package, each with the reason."""


def module_name(path: Path) -> str:
    parts = path.relative_to(HOME.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    module_name(path): path for path in sorted(HOME.rglob("*.py")) if not set(DATA) & set(path.relative_to(HOME).parts)
}
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}
PACKAGES = [name for name, path in SOURCES.items() if path.name == "__init__.py" and not name.startswith(GUEST)]


def top(module: str) -> str:
    """The package directly below rollbook that a module is in.

    >>> top("rollbook.gym.client.fleet")
    'rollbook.gym'
    """
    return ".".join(module.split(".")[:2])


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every (module, name) that is imported, at the top or inside a function; the name is empty for `import module`.

    Relative imports are forbidden (ruff's TID252). An import by a literal name counts too.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield from ((str(each.value), "") for each in node.args[:1] if isinstance(each, ast.Constant))


def submodule_uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every (package, attribute) that is read of an imported package, as in `engine.worker`."""
    packages = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if f"{node.module}.{alias.name}" in PACKAGES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            yield packages[node.value.id], node.attr


def bypasses(module: str, name: str) -> bool:
    """Whether an import from another package goes past that package's interface to one of its modules."""
    target = f"{module}.{name}" if f"{module}.{name}" in SOURCES else module
    return target.count(".") > 1 and target in SOURCES and target not in PACKAGES


def test_the_tree_was_found() -> None:
    assert len(SOURCES) > 200
    assert len(PACKAGES) > 20
    assert bypasses("rollbook.book.journal", "Journal")
    assert bypasses("rollbook.book", "journal")
    assert not bypasses("rollbook.book", "Journal")


def test_no_two_public_classes_have_the_same_name() -> None:
    homes = defaultdict(list)
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    assert {name: found for name, found in homes.items() if len(found) > 1 and name not in SAME_NAME} == {}
    assert [name for name in SAME_NAME if len(homes[name]) < 2] == []
    assert len(SAME_NAME) <= 4


def test_no_two_files_of_tests_have_the_same_name() -> None:
    # The folders of the tests are no packages, so pytest imports each file by its name alone.
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_no_folder_has_too_many_modules() -> None:
    folders = Counter(path.parent for path in SOURCES.values() if path.name != "__init__.py")
    assert {str(folder): count for folder, count in folders.items() if count > MAX_MODULES} == {}


@pytest.mark.parametrize("name", PACKAGES)
def test_every_package_has_a_public_interface(name: str) -> None:
    package = importlib.import_module(name)
    assert len((package.__doc__ or "").split()) > 5
    assert package.__all__
    assert sorted(dir(package)) == sorted(package.__all__)
    assert len(set(package.__all__)) == len(package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_type_checkers_see_what_is_exported(name: str) -> None:
    node = next(node for node in TREES[name].body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name for each in node.body if isinstance(each, ast.ImportFrom) for alias in each.names
    }
    assert seen == set(importlib.import_module(name).__all__) - {"__version__"}


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "rollbook.trainers.verl"])
def test_every_exported_name_can_be_imported(name: str) -> None:
    package = importlib.import_module(name)
    missing = [each for each in package.__all__ if not hasattr(package, each)]
    assert missing == []


@pytest.mark.parametrize("name", PACKAGES)
def test_no_exported_name_is_a_submodule_too(name: str) -> None:
    assert [each for each in importlib.import_module(name).__all__ if f"{name}.{each}" in SOURCES] == []


def find_bypasses(here: str, tree: ast.AST) -> list[str]:
    return [
        f"{here} imports {module} {name}"
        for module, name in (*imports(tree), *submodule_uses(tree))
        if bypasses(module, name) and top(module if module != "rollbook" else f"{module}.{name}") != top(here)
    ]


def test_packages_import_each_other_by_their_interfaces() -> None:
    past = [found for here, tree in TREES.items() for found in find_bypasses(here, tree)]
    assert [each for each in past if not each.startswith("rollbook.__main__ ")] == []


@pytest.mark.parametrize(
    "source",
    [
        "from rollbook.book.journal import Journal",
        "import rollbook.book.journal as j",
        "from rollbook import book\nbook.journal.Journal",
        "import importlib\nimportlib.import_module('rollbook.book.journal')",
        "def f():\n    from rollbook.book import journal",
    ],
)
def test_every_way_past_an_interface_is_found(source: str) -> None:
    assert find_bypasses("rollbook.viewer.search", ast.parse(source))
    assert not find_bypasses("rollbook.book.claims", ast.parse(source))


def test_documentation_and_behaviour_tests_use_interfaces() -> None:
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    texts = {
        f"{page.name} block {number}": block
        for page in pages
        for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S))
    }
    for folder in ("tests/faults", "tests/e2e", "examples"):
        texts |= {str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}
    assert len(texts) > 50
    assert set(WHITE_BOX) <= set(texts)
    texts = {where: text for where, text in texts.items() if where not in WHITE_BOX}
    assert [found for where, text in texts.items() for found in find_bypasses(where, parse_snippet(text))] == []


def parse_snippet(text: str) -> ast.AST:
    """Parse a block of documentation; those with `await` at the top level are the body of a coroutine."""
    return compile(text, "snippet", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # type: ignore[return-value]


def test_inside_a_package_siblings_are_imported_not_the_interface() -> None:
    past = [
        f"{here} imports {module} {name}"
        for here, tree in TREES.items()
        if here not in PACKAGES
        for module, name in imports(tree)
        if module in PACKAGES and top(module) == top(here) and module.count(".") and f"{module}.{name}" not in SOURCES
    ]
    assert past == []


def test_the_map_of_the_code_names_files_that_exist() -> None:
    named = re.findall(r"`([a-z_]+/[\w/]*(?:\.py|/)|_\w+\.py)`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 50
    assert [each for each in named if not (HOME / each).exists() and not (ROOT / each).exists()] == []
