"""A user's mistake is a UsageError before anything runs, and never a failure of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Sandbox
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.limits import MAX_FILES, MAX_LIMIT, MAX_SECONDS, check_files, check_size, encode_stdin


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(size=1) as opened:
        yield opened


@pytest.mark.parametrize(
    "bad",
    [
        {"seconds": "5"},
        {"seconds": None},
        {"seconds": True},
        {"seconds": 1e300},
        {"wall_seconds": float("nan")},
        {"memory_mb": 256.5},
        {"memory_mb": 1 << 40},
        {"processes": 1.5},
        {"files_mb": 1 << 50},
        {"output_kb": 0.5},
    ],
    ids=str,
)
def test_limits_are_numbers_that_the_kernel_can_count_with(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"limit {next(iter(bad))}=.*: give a positive, finite number"):
        Limits(**bad)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"a": b"", "a/b": b""}, "file name 'a': it is also the folder of another file"),
        ({"a/b/c": b"", "a/b": b""}, "file name 'a/b': it is also the folder of another file"),
        ({".": b""}, "stays in the folder"),
        ({"a/../../b": b""}, "stays in the folder"),
        ({"a/": b""}, "stays in the folder"),
        ({"a" * 256: b""}, "at most 255 bytes a name"),
        ({"/".join(["a" * 200] * 30): b""}, "4000 in all"),
        ({"\ud800": b""}, "cannot be written as UTF-8"),
        ({5: b""}, "file name: give a text"),
        ({"a": "x"}, "file 'a': give its content as bytes, not str"),
        ({"a": bytes(2 << 20)}, "files: 1 of 2.0 MB; the folder holds at most files_mb=1"),
        ({str(n): b"x" for n in range(300)}, "files: 300 of 1.2 MB"),
        (["a"], "files: give names and contents"),
    ],
    ids=range(13),
)
def test_files_fit_into_the_folder_of_a_run(files: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        check_files(files, Limits(files_mb=1))


def test_good_names_pass() -> None:
    good = ["a", "b/c", "b/d.txt", "...", "ä" * 127]
    with Sandbox(Limits(), size=1) as box:
        listed = box.run_sync(
            "import glob\nsorted(glob.glob('**', recursive=True, include_hidden=True))", files=dict.fromkeys(good, b"")
        )
    assert listed.value == repr(sorted([*good, "b"]))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"code": b"1"}, "code: give a text"),
        ({"code": "1", "stdin": 5}, "stdin: give a text or bytes, not int"),
        ({"code": "1", "limits": {"seconds": 1}}, r"limits: give Limits\(...\), not dict"),
        ({"code": "1", "files": {".": b""}}, "stays in the folder"),
    ],
    ids=["code", "stdin", "limits", "files"],
)
def test_a_run_is_refused_in_one_line(box: Sandbox, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        box.run_sync(**given)
    assert box.run_sync("1 + 1").value == "2"


def test_a_session_is_too(box: Sandbox) -> None:
    with pytest.raises(UsageError, match="limits: give"):
        box.session(limits={})  # type: ignore[arg-type]
    with box.session() as session, pytest.raises(UsageError, match="code: give a text"):
        session.run_sync(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 1.5])
def test_a_sandbox_has_room_for_one_run_at_least(size: Any) -> None:
    with pytest.raises(UsageError, match=f"size={size}: give a whole number"):
        Sandbox(size=size)


def test_cases_and_tests_have_their_shape(box: Sandbox) -> None:
    grader: Any = Grader(box)
    with pytest.raises(UsageError, match=r"case \(1, 1\): give \(stdin, expected stdout\), both texts"):
        grader.inputs_sync("print(1)", [(1, 1)])
    with pytest.raises(UsageError, match=r"case \(5, 5\): give \(arguments, expected value\)"):
        grader.calls_sync("def f(x): return x", "f", [(5, 5)])
    with pytest.raises(UsageError, match="tests: give a text"):
        grader.function_sync("def f(x): return x", None, "f")
    with pytest.raises(UsageError, match="code: give a text"):
        grader.inputs_sync(b"print(1)", [("", "1")])


@pytest.mark.parametrize("entry", ["", "a b", "1f", "f()"])
def test_an_entry_that_no_program_can_define_is_the_mistake_of_the_tests(box: Sandbox, entry: str) -> None:
    grader = Grader(box)
    for grade in (
        lambda: grader.function_sync("1", "assert f() == 1", entry),
        lambda: grader.calls_sync("1", entry, [([], 1)]),
    ):
        with pytest.raises(UsageError, match="give the name of a function or class"):
            grade()
    with pytest.raises(UsageError, match=r"entry: give a text \(str\), not int"):
        grader.function_sync("1", "assert f() == 1", 5)  # type: ignore[arg-type]


def test_the_largest_limits_and_files_are_allowed() -> None:
    largest = Limits(seconds=MAX_SECONDS, wall_seconds=MAX_SECONDS, memory_mb=MAX_LIMIT, processes=MAX_LIMIT)
    assert largest.wall_s == MAX_SECONDS
    for wrong in ({"seconds": MAX_SECONDS + 1}, {"memory_mb": MAX_LIMIT + 1}, {"seconds": 0}, {"memory_mb": 0}):
        with pytest.raises(UsageError, match="give a positive, finite number"):
            Limits(**wrong)  # type: ignore[arg-type]
    limits = Limits(files_mb=1)
    check_files({"a": bytes(1 << 20)}, limits)
    check_files({str(n): b"x" for n in range(256)}, limits)  # each takes a page
    check_files(dict.fromkeys(map(str, range(MAX_FILES)), b""), limits)
    for files in ({"a": bytes((1 << 20) + 1)}, dict.fromkeys(map(str, range(MAX_FILES + 1)), b"")):
        with pytest.raises(UsageError, match="the folder holds at most files_mb=1 and 4000 files"):
            check_files(files, limits)
    check_files({"a" * 255: b"", "/".join(["b" * 199] * 20): b""}, limits)
    for name in ("a" * 256, "/".join(["b" * 199] * 20) + "/b"):
        with pytest.raises(UsageError, match="at most 255 bytes a name and 4000 in all"):
            check_files({name: b""}, limits)


def test_the_time_on_the_wall_is_four_times_that_of_the_code_and_a_second_at_least() -> None:
    assert [Limits(seconds=seconds).wall_s for seconds in (0.1, 0.25, 2.0)] == [1.0, 1.0, 8.0]
    assert Limits(seconds=2.0, wall_seconds=0.5).wall_s == 0.5
    assert Limits(output_kb=3).keep_bytes == 3072
    assert Limits(processes=3).to_request() == {
        "seconds": 5.0,
        "memory_mb": 256,
        "files_mb": 16,
        "processes": 3,
        "threads": 67,
        "keep": 65536,
    }


@pytest.mark.parametrize("size", [None, 1, 7])
def test_a_size_is_a_whole_number_from_one_on(size: int | None) -> None:
    check_size(size)
    for wrong in (0, -1, 1.5, "2"):
        with pytest.raises(UsageError, match="give a whole number of runs at a time, at least 1"):
            check_size(wrong)  # type: ignore[arg-type]


def test_stdin_is_text_or_bytes() -> None:
    assert (encode_stdin("é\ud800"), encode_stdin(b"x")) == ("é?".encode(), b"x")
    with pytest.raises(UsageError, match="stdin: give a text or bytes, not int"):
        encode_stdin(5)  # type: ignore[arg-type]
