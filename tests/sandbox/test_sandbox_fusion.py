from __future__ import annotations

import pytest

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Result
from rollbook.sandbox.results import ProgramError
from rollbook.sandbox.server import RunCodeRequest, make_run_code_answer, make_sandbox_error


@pytest.mark.parametrize(
    ("status", "api", "run", "code"),
    [
        ("ok", "Success", "Finished", 0),
        ("error", "Failed", "Finished", 1),
        ("memory", "Failed", "Finished", 1),
        ("crash", "Failed", "Finished", -11),
        ("timeout", "Failed", "TimeLimitExceeded", None),
        ("output", "Failed", "Error", None),
        ("killed", "Failed", "Error", None),
    ],
)
def test_only_what_ended_well_is_a_success(status: str, api: str, run: str, code: int | None) -> None:
    said = make_run_code_answer(Result(status=status, stdout="out", stderr="err", seconds=0.5))  # type: ignore[arg-type]
    assert (said["status"], said["run_result"]["status"], said["run_result"]["return_code"]) == (api, run, code)
    assert (said["run_result"]["stdout"], said["run_result"]["stderr"]) == ("out", "err")


def test_a_traceback_is_on_standard_error() -> None:
    error = ProgramError("ValueError", "no", "Traceback: no\n")
    assert (
        make_run_code_answer(Result("error", stderr="before\n", error=error))["run_result"]["stderr"]
        == "before\nTraceback: no\n"
    )


def test_its_wall_clock_becomes_cpu_time_with_room_on_the_wall() -> None:
    base = Limits(memory_mb=300)
    limits = RunCodeRequest("", run_timeout=2).make_limits(base)
    assert (limits.seconds, limits.wall_s, limits.memory_mb) == (2, 7, 300)
    assert RunCodeRequest("", memory_limit_MB=64).make_limits(base).memory_mb == 64
    with pytest.raises(UsageError, match="limit memory_mb=0"):
        RunCodeRequest("", memory_limit_MB=0).make_limits(base)


def test_an_answer_has_all_that_clients_read() -> None:
    assert make_run_code_answer(Result("timeout", stdout="out", seconds=0.5)) == {
        "status": "Failed",
        "message": "timeout",
        "compile_result": None,
        "run_result": {
            "status": "TimeLimitExceeded",
            "execution_time": 0.5,
            "return_code": None,
            "stdout": "out",
            "stderr": "",
        },
        "executor_pod_name": None,
        "files": {},
    }
    for status, code, expected in (("error", 3, 3), ("error", None, 1), ("ok", 0, 0), ("memory", 3, 1)):
        answer = make_run_code_answer(Result(status, exit=code))  # type: ignore[arg-type]
        assert answer["run_result"]["return_code"] == expected
        assert answer["message"] == ("" if status in ("ok", "error") else status)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (RunCodeRequest("", language="rust"), "language 'rust': only python runs here"),
        (RunCodeRequest("", fetch_files=["a"]), "fetch_files"),
    ],
)
def test_what_cannot_be_done_is_refused_and_not_left_out(request_: RunCodeRequest, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        request_.check()


def test_files_come_as_base64() -> None:
    assert RunCodeRequest("", files={"a": "aGk=", "gone": None}).decode_files() == {"a": b"hi"}
    with pytest.raises(UsageError, match="file 'a' is not base64"):
        RunCodeRequest("", files={"a": "hi!"}).decode_files()


def test_a_broken_sandbox_is_no_result() -> None:
    said = make_sandbox_error("no room")
    assert (said["status"], said["run_result"], said["message"]) == ("SandboxError", None, "no room")
