"""A built-in environment is stored by its name and a scoring version, not by where its code is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollbook.book import Book
from rollbook.core import EnvironmentSpec
from rollbook.engine import Request, check_unchanged, plan_request
from rollbook.environments import load_environment, load_instance, resolve
from rollbook.environments.builtin import GSM8K
from rollbook.environments.registry import BUILT_IN, INTERNAL
from rollbook.environments.snapshot import find_changed_file
from rollbook.errors import UsageError

OLD_TARGET = "rollbook.environments.gsm8k:GSM8K"
OLD_DIGEST = "f990bf825ccbc437a06b78485e02c6502c0483e108806c386fbc7f9874ea7a9a"


@pytest.fixture
def book(tmp_path: Path) -> Book:
    (tmp_path / "script.jsonl").write_text('{"answer": "7"}\n')
    plan_request(Request(env="gsm8k", model=[f"scripted:{tmp_path}/script.jsonl"], limit=1, out=str(tmp_path / "run")))
    return Book(tmp_path / "run")


def test_run_json_names_no_module(book: Book) -> None:
    stored = json.loads((book.path / "run.json").read_text())["environments"]["gsm8k"]
    assert (stored["target"], stored["digest"]) == ("builtin:gsm8k", "scoring-version-1")


def test_a_raised_scoring_version_ends_the_runs_of_the_one_before(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_unchanged(book) == []
    monkeypatch.setattr(GSM8K, "scoring_version", 2)
    with pytest.raises(UsageError, match=r"gsm8k is not what .* was planned with; start a new run"):
        check_unchanged(book)


def test_the_last_digest_that_was_stored_is_version_one(tmp_path: Path) -> None:
    spec = EnvironmentSpec("gsm8k", OLD_TARGET, digest=OLD_DIGEST)
    assert (spec.target, spec.digest) == ("builtin:gsm8k", "scoring-version-1")
    assert find_changed_file(spec, tmp_path) is None
    assert isinstance(load_environment(spec), GSM8K)


def test_another_digest_is_another_meaning(tmp_path: Path) -> None:
    spec = EnvironmentSpec("gsm8k", OLD_TARGET, digest="0" * 64)
    assert find_changed_file(spec, tmp_path) == "gsm8k"


def test_an_instance_and_a_module_spec_are_the_same_environment_as_the_name() -> None:
    by_name = resolve("gsm8k").spec
    assert load_instance(GSM8K()).spec.target == by_name.target
    assert resolve("rollbook.environments.builtin.gsm8k:GSM8K").spec.target == by_name.target


@pytest.mark.parametrize("name", [*BUILT_IN, *INTERNAL, "http", "gym", "gym+agent", "gym+head", "gym+step", "harness"])
def test_every_environment_of_ours_is_found_by_its_stored_name(name: str) -> None:
    from rollbook.environments.registry import import_class

    assert import_class(f"builtin:{name}").scoring_version >= 1


def test_a_name_of_another_version_is_one_line() -> None:
    with pytest.raises(UsageError, match="built-in environment 'chess' is not part of this version"):
        load_environment(EnvironmentSpec("chess", "builtin:chess"))
