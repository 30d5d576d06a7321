"""The tool of `make mutate` changes one thing at a time, and notices which tests fail."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from mutation import mutate

MODULE = '''
def grow(sizes: list[int], limit: int = 3, share: float = 0.5, *, name: str = "") -> list[int]:
    """Return sizes below a limit."""
    shown: "str" = cast("str", name)
    """What is shown."""
    if not sizes and 0 < limit < 9 < share:
        print("empty", shown)
    try:
        sizes.remove(0)
    except ValueError:
        limit = 0
    except Exception:
        pass
    return [size + 1 for size in sizes if size < limit]
'''
CHANGES = {
    "comparison", "comparison 2", "comparison 3", "operator", "drop not", "constant", "text", "negate condition",
    "return None", "drop call", "catch Exception", "drop handling",
}  # fmt: skip
CHANGED = [
    "limit: int=4", "share: float=1.5", "name: str='changed'", "print('', shown)", "0 <= limit < 9 < share",
    "0 < limit <= 9 < share", "0 < limit < 9 <= share", "except Exception:\n        limit = 0",
    "except ValueError:\n        pass", "limit = 1", "sizes or 0 < limit", "return None",
]  # fmt: skip


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    (tmp_path / "grow.py").write_text(MODULE)
    return Path("grow.py")


def test_each_change_is_one_change_of_a_body_and_leaves_a_program(module: Path) -> None:
    places = list(mutate.list_places(module))
    assert {place.change for place in places} == CHANGES
    seen = set()
    for place in places:
        before, after = mutate.mutate(place)
        ast.parse(after)
        assert before != after
        for fixed in (
            "limit: int=",
            '"""Return sizes below a limit."""',
            "shown: 'str' = cast('str', name)",
            "What is shown",
        ):
            assert fixed in after
        assert len(mutate.describe(place, before, after).splitlines()) <= 7
        seen.add(after)
    assert len(seen) == len(places)
    for changed in CHANGED:
        assert sum(changed in after for after in seen) == 1, changed


def test_a_default_is_run_with_the_body_and_a_handler_where_something_was_raised(module: Path) -> None:
    places = {place.change: place for place in mutate.list_places(module)}
    default = next(place for place in mutate.list_places(module) if "limit: int=4" in mutate.mutate(place)[1])
    assert mutate.find_lines(default) == range(2, 15)
    assert mutate.find_lines(places["drop handling"]) == range(10, 12)
    assert mutate.find_lines(places["comparison 3"]) == range(6, 7)


@pytest.mark.parametrize(
    ("test", "killed"), [("assert True", False), ("assert False", True), ("while True: pass", True)]
)
def test_a_mutant_is_killed_by_a_test_that_fails_or_hangs(tmp_path: Path, test: str, killed: bool) -> None:
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {test}\n")
    assert mutate.is_killed(tmp_path, [["test_it.py"]], within_s=60, test_within_s=5) == killed


def test_a_test_that_is_not_found_kills_no_mutant(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it():\n    assert True\n")
    assert not mutate.is_killed(tmp_path, [["test_it.py::test_other"]], within_s=60)


def test_a_mutant_that_cannot_be_imported_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("1 / 0\n\ndef test_it():\n    assert True\n")
    assert mutate.is_killed(tmp_path, [["test_it.py::test_it"]], within_s=60)


def test_the_tests_that_name_a_module_run_first() -> None:
    near, others = mutate.choose_tests(Path("src/rollbook/book/leases.py"))
    assert "tests/book/test_lease_peers.py" in near + others
    assert "tests/book/test_book_leases.py" in near
    assert not set(near) & set(others)


PACKAGE = {
    "src/rollbook/__init__.py": "",
    "src/rollbook/book/__init__.py": "",
    "src/rollbook/book/sizes.py": "def grow(size):\n    if size > 2:\n        size += 1\n    return size\n",
    "tests/book/test_sizes.py": (
        "from rollbook.book.sizes import grow\n"
        "def test_small_sizes_stay():\n    assert grow(1) == 1\n"
        "def test_large_sizes_grow():\n    assert grow(5) == 6\n"
        "def test_a_long_test():\n    __import__('time').sleep(0.2)\n    assert grow(1) == 1\n"
    ),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the root of a package of one module with tests, which takes the place of this one."""
    plugin = (mutate.ROOT / "tests/mutation/contexts.py").read_text()
    for name, text in {**PACKAGE, "tests/mutation/contexts.py": plugin}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\nmarkers =\n    slow\n    model\n")
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    monkeypatch.setattr(mutate, "copy_files", lambda to: shutil.copytree(tmp_path, to, dirs_exist_ok=True))
    monkeypatch.setattr("sys.argv", ["mutate", "--packages", "book", "--mutants", "99"])
    return tmp_path


def test_only_a_change_that_no_test_of_its_line_notices_survives(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mutate.main() == 1
    printed = capsys.readouterr().out
    assert "tests/book without a change: 3 passed" in printed
    assert [line for line in printed.splitlines() if "SURVIVED" in line]
    for survivor in ("size >= 2", "size > 3"):  # no test has a size of 2 or 3
        assert survivor in printed
    assert "3 killed, 2 survived" in printed
    assert (package / "src/rollbook/book/sizes.py").read_text() == PACKAGE["src/rollbook/book/sizes.py"]


@pytest.mark.parametrize(("at_least", "status"), [([], 1), (["--at-least", "0.61"], 1), (["--at-least", "0.6"], 0)])
def test_too_many_survivors_are_an_error(
    package: Path, monkeypatch: pytest.MonkeyPatch, at_least: list[str], status: int
) -> None:
    monkeypatch.setattr(mutate, "try_all", lambda sample, within_s: len(sample) * 3 // 5)
    monkeypatch.setattr("sys.argv", ["mutate", "--packages", "book", "--mutants", "99", *at_least])
    assert mutate.main() == status


def test_the_tests_of_a_line_are_those_that_run_it(package: Path) -> None:
    recorded = mutate.record_tests("book", package, package / "records", within_s=60)
    places = {
        mutate.mutate(place)[1].splitlines()[number]: place
        for place in mutate.list_places(Path("src/rollbook/book/sizes.py"))
        for number in (2, 3)
    }
    small, large = (f"tests/book/test_sizes.py::test_{name}" for name in ("small_sizes_stay", "large_sizes_grow"))
    assert recorded.find_tests(places["        size += 2"]) == [large]
    *short, last = recorded.find_tests(places["    return None"])
    assert set(short) == {small, large}
    assert last == "tests/book/test_sizes.py::test_a_long_test"  # short tests come first


def test_tests_that_fail_without_a_change_are_an_error_in_one_line_and_kill_no_mutant(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (package / "tests/book/test_sizes.py").open("a") as file:
        file.write("def test_the_machine():\n    import a_package_that_is_not_installed\n")
    for _ in range(2):  # a failure is not kept
        assert mutate.main() == 2
        printed = capsys.readouterr()
        assert "killed" not in printed.out
        assert len(printed.err.splitlines()) == 1
        assert "tests/book fail without a change (1 failed, 3 passed" in printed.err
        assert "FAILED tests/book/test_sizes.py::test_the_machine" in printed.err
