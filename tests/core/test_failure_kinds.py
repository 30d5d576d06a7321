"""The table of failure kinds is the only place that defines what a kind means: a new kind is one entry."""

from __future__ import annotations

import ast
import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import rollbook
from rollbook.cli.main import main
from rollbook.core import (
    FAILURE_KINDS,
    Failure,
    FailureKind,
    Limits,
    Message,
    ModelSpec,
    Rollout,
    Sampling,
    Task,
    Turn,
    choose_exit_code,
    choose_hint,
    find_unknown_rules,
    reopens,
)
from rollbook.engine import AttemptClock, ModelCaller
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models import Completion
from support.sums import write_script

HOME = Path(rollbook.__file__).parent
NEW_KIND = "quota_used_up"
OUT_OF_QUOTA = f"""
from rollbook import Environment, Task
from rollbook.errors import RolloutFailed


class Sums(Environment):
    def tasks(self):
        yield Task(id="sum-0", prompt="What is 0 + 0?", answer="0")

    async def verify(self, task, rollout):
        raise RolloutFailed("{NEW_KIND}", "verify", "none left until tomorrow")
"""


@pytest.fixture(autouse=True)
def new_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    row = FailureKind("infra", 2, "buy more quota", exit_code=9, delayed=False, repeats_call=True)
    monkeypatch.setitem(FAILURE_KINDS, NEW_KIND, row)  # type: ignore[arg-type]


def run_command(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def read_failures(run: Path) -> list[dict[str, object]]:
    files = sorted(run.glob("journals/*.failures.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_a_new_kind_has_its_side_attempts_hint_and_exit_code_and_is_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sums.py").write_text(OUT_OF_QUOTA)
    run, script = tmp_path / "run", write_script(tmp_path, count=1)
    assert run_command("run", f"{tmp_path}/sums.py:Sums", "-m", script, "-o", str(run)) == 9
    assert "; buy more quota" in capsys.readouterr().err
    failed = read_failures(run)
    assert [(line["attempt"], line["final"]) for line in failed] == [(1, False), (2, True)]
    assert {line["failure"]["side"] for line in failed} == {"infra"}  # type: ignore[index]
    assert run_command("resume", str(run)) == 9
    assert len(read_failures(run)) == 4
    assert run_command("resume", str(run), "--retry", "none") == 9
    assert len(read_failures(run)) == 4


class UnreliableModel:
    """Answers every third call."""

    spec = ModelSpec("m", "scripted")
    version: str | None = None
    calls = 0

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: object) -> Completion:
        self.calls += 1
        if self.calls % 3:
            raise RolloutFailed(NEW_KIND, "model", "none left")
        return Completion(Message("assistant", "so"), Turn())


def test_a_call_that_failed_in_a_new_way_is_made_again_at_once_within_its_budget() -> None:
    rollout = Rollout(task=Task("t", "p"), sample=0, seed=0, turns=[Turn()])
    model = UnreliableModel()
    ask = ModelCaller(model, Sampling(), Limits(), rollout, "t#0", AttemptClock(), budgets={NEW_KIND: 3})
    assert asyncio.run(asyncio.wait_for(ask([]), 0.4)).message.text == "so"
    assert model.calls == 3
    too_few = ModelCaller(model, Sampling(), Limits(), rollout, "t#0", AttemptClock(), budgets={})
    with pytest.raises(RolloutFailed):
        asyncio.run(too_few([]))
    assert model.calls == 5


def collections_of_kinds(path: Path) -> Iterator[str]:
    """Every literal collection that names two failure kinds or more."""
    for node in ast.walk(ast.parse(path.read_text())):
        parts = [*node.keys, *node.values] if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        if sum(isinstance(part, ast.Constant) and part.value in FAILURE_KINDS for part in parts) > 1:
            yield f"{path.relative_to(HOME)}:{node.lineno}"  # type: ignore[attr-defined]


def test_no_other_module_has_a_table_of_failure_kinds() -> None:
    found = [place for path in sorted(HOME.rglob("*.py")) for place in collections_of_kinds(path)]
    assert len(found) == 1
    assert found[0].startswith("core/failure.py:")


def test_a_hint_is_left_out_where_the_message_has_its_own_or_the_kind_is_unknown() -> None:
    assert choose_hint(NEW_KIND, "HTTP 503: overloaded") == "buy more quota"
    for message in ("HTTP 401: bad key; set KEY", "probable cause: judge: HTTP 404: no model"):
        assert choose_hint(NEW_KIND, message) == ""
    assert choose_hint("of_a_later_version", "HTTP 503: overloaded") == ""
    assert choose_hint("of_a_later_version", "HTTP 401: bad key") == ""


def test_the_table_decides_what_is_tried_again_and_how_a_command_exits() -> None:
    error = RolloutFailed(NEW_KIND, "verify", "x" * 3000)
    assert (choose_exit_code(error), choose_exit_code(UsageError("?"))) == (9, 2)
    failure = Failure.from_error(error)
    assert (failure.side, failure.message) == ("infra", "x" * 2000)
    assert [reopens([rule], NEW_KIND) for rule in ("all", "infra", NEW_KIND, "data", "worker_lost")] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert find_unknown_rules(["infra", "all", "data", "worker_lost", "worker_lot"]) == ["worker_lot"]
