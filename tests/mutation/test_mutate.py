"""The tool of `make mutate` changes one thing at a time, and notices which tests fail."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutation import mutate

MODULE = '''
def grow(sizes: list[int], limit: int = 3) -> list[int]:
    """Return sizes below a limit."""
    if not sizes and limit > 0:
        print("empty")
    return [size + 1 for size in sizes if size < limit]
'''
CHANGES = {"comparison", "operator", "drop not", "constant", "negate condition", "return None", "drop call"}


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
        assert "limit: int=3" in after  # signatures stay
        assert len(mutate.describe(place, before, after).splitlines()) <= 7
        seen.add(after)
    assert len(seen) == len(places)


@pytest.mark.parametrize(
    ("test", "killed"), [("assert True", False), ("assert False", True), ("while True: pass", True)]
)
def test_a_mutant_is_killed_by_a_test_that_fails_or_hangs(tmp_path: Path, test: str, killed: bool) -> None:
    (tmp_path / "test_it.py").write_text(f"def test_it():\n    {test}\n")
    assert mutate.is_killed(tmp_path, [["test_it.py"]], within_s=60 if test.startswith("assert") else 5) == killed


def test_the_tests_that_name_a_module_run_first() -> None:
    near, others = mutate.choose_tests(Path("src/rollbook/book/leases.py"))
    assert "tests/book/test_lease_peers.py" in near + others
    assert "tests/book/test_book_leases.py" in near
    assert not set(near) & set(others)
