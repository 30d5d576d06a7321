"""The fuzzer finds what it is for, and a short run of it finds nothing in our readers."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from fuzz import coverage, fuzzer
from fuzz.fuzzer import fuzz_for, fuzz_reader, try_input
from fuzz.mutation import VALUES, mutate, mutate_values
from fuzz.oracles import CASES
from fuzz.readers import READERS, Reader, list_seeds
from fuzz.run_directory import find_fault, fuzz_run, summarize
from rollbook.errors import RolloutFailed, UsageError

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", READERS)
def test_no_reader_breaks_on_changed_examples(name: str) -> None:
    assert list(fuzz_reader(name, READERS[name], random.Random(name), 150)) == []


def test_every_example_is_read() -> None:
    refused = []
    for name, data in list_seeds():
        try:
            READERS[name].read(data)
        except RolloutFailed:
            refused.append((name, data))
    assert [name for name, _ in refused] == ["chat answer"]  # that of an endpoint that answers with an error


def test_a_crash_a_hang_and_a_message_of_several_lines_are_found() -> None:
    def crash(data: bytes) -> None:
        raise KeyError("no")

    def hang(data: bytes) -> None:
        while True:
            pass

    def chatter(data: bytes) -> None:
        raise UsageError("one\ntwo")

    def refuse(data: bytes) -> None:
        raise UsageError("one line")

    findings = [try_input("x", Reader(read, ()), b"", 0.2) for read in (crash, hang, chatter)]
    assert [finding.error.split(":")[0] for finding in findings if finding] == [
        "KeyError",
        "Hang",
        "a message of several lines",
    ]
    assert try_input("x", Reader(refuse, ()), b"") is None
    assert try_input("x", Reader(refuse, (), refuses=False), b"") is not None


def test_a_seed_gives_the_same_changes() -> None:
    data = [b'{"a": [1, 2, 3]}', b"other"]
    first, again = ([mutate(data[0], data, draw) for _ in range(50)] for draw in (random.Random(3), random.Random(3)))
    assert first == again
    assert len(set(first)) > 40


def test_a_short_time_is_enough_for_every_reader_and_is_kept() -> None:
    names = [*READERS, *CASES]
    began = time.process_time()
    inputs, found = fuzz_for(names, 0.0, 5)
    assert (inputs, found) == (len(names), [])
    assert time.process_time() - began < 20


def test_readers_that_hang_end_the_time_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(data: bytes) -> None:
        while True:
            pass

    names = [f"hangs {number}" for number in range(50)]
    monkeypatch.setattr(fuzzer, "READERS", dict.fromkeys(names, Reader(hang, (b"x",))))
    monkeypatch.setattr(fuzzer, "fuzz_reader", lambda name, reader, draw, count: [try_input(name, reader, b"", 0.2)])
    inputs, found = fuzz_for(names, 0.3, 1)
    assert 1 <= inputs == len(found) <= 3
    assert found[0].error.startswith("Hang: ")


def test_no_limit_of_libfuzzer_is_zero() -> None:
    assert [coverage.make_limit(seconds) for seconds in (0.0, 0.03, 1.0, 2.1)] == [
        f"-max_total_time={whole}" for whole in (1, 1, 1, 3)
    ]


def test_a_process_that_exceeds_its_share_is_killed_and_each_reader_has_an_equal_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fuzz(name: str, reader: Reader, seconds: float, seed: int) -> None:
        (tmp_path / name).write_text(f"{seconds:g}")
        if name == "hangs":
            time.sleep(60)
        os._exit(name == "breaks")

    monkeypatch.setattr(coverage, "fuzz_reader", fuzz)
    monkeypatch.setattr(coverage, "GRACE_S", 0.3)
    reader = READERS["seal"]
    began = time.monotonic()
    assert coverage.fuzz_all({"works": reader, "breaks": reader, "hangs": reader}, 0.6, 1) == 2
    assert time.monotonic() - began < 30
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("works", "breaks", "hangs"), "0.2"
    )


def test_values_of_json_are_changed_at_any_depth() -> None:
    value = {"a": [1, {"b": 2}], "c": "x"}
    changed = [json.loads(mutate_values(json.dumps(value).encode(), random.Random(seed))) for seed in range(200)]
    assert sum(each != value for each in changed) > 150
    assert any(each.get("a", [0])[1:] == [{"b": 3}] for each in changed if isinstance(each.get("a"), list))
    assert mutate_values(b"{}", random.Random(1)) == b"{}"


def test_the_values_that_are_put_in_stay_as_they_are() -> None:
    """They were changed in place, and could come to contain themselves."""
    before = json.dumps(VALUES)
    for seed in range(3000):
        mutate_values(b'{"a": [{"b": [0]}]}', random.Random(seed))
    assert json.dumps(VALUES) == before


def test_damage_of_a_run_is_never_silent(tmp_path: Path) -> None:
    run = tmp_path / "whole"
    shutil.copytree(GOLDEN / "book2", run)
    assert list(fuzz_run(run, tmp_path, random.Random(1), 40)) == []


def test_a_silent_change_of_a_run_would_be_found(tmp_path: Path) -> None:
    run = tmp_path / "whole"
    shutil.copytree(GOLDEN / "book2", run)
    requested, *others = summarize(run)
    assert find_fault(run, (requested, *others)) is None
    assert "no damage is named" in (find_fault(run, (0, *others)) or "")


def test_deeply_nested_json_from_a_server_is_a_bad_completion() -> None:
    """Found by the fuzzer: a RecursionError ended the worker."""
    with pytest.raises(RolloutFailed) as caught:
        READERS["chat answer"].read(b'{"choices": ' + b"[" * 100_000)
    assert caught.value.kind == "bad_completion"
