"""What became of one block of code, or of a sample whose code could not be run."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from rollbook.sandbox import Limits, Result
from rollbook.trainers.nemo_rl.alike import as_repr

Kind: TypeAlias = Literal[
    "syntax",
    "runtime",
    "timeout",
    "memory",
    "exit",
    "crash",
    "killed",
    "output",
    "skipped",
    "refused",
    "sandbox",
    "deadline",
]
SYNTAX = {"SyntaxError", "IndentationError", "TabError"}
_LINE = re.compile(r'^  File "<code>", line (\d+)', re.MULTILINE)

LOST = "lost; the next code begins afresh, without what earlier code made"
ROLLED_BACK = "rolled back; variables are as they were before this code, files are not"
BEGAN_AFRESH = "began afresh; what earlier turns made is gone"


class Problem(msgspec.Struct, frozen=True):
    """Why code did not come to a good end."""

    kind: Kind
    message: str
    repr: str = ""
    """The exception as Python writes it, if it is one."""


class Outcome(msgspec.Struct, frozen=True):
    """What is told of one block."""

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    problem: Problem | None = None
    before: str = ""
    """What had happened to the session before this code."""
    after: str = ""
    """What happened to the session by this code."""

    @property
    def status(self) -> str:
        """One word: ok, or the kind of problem."""
        return self.problem.kind if self.problem else "ok"


def failed(kind: Kind, message: str) -> Outcome:
    """An outcome that is nothing but a problem."""
    return Outcome(problem=Problem(kind, message))


def outcome_of(result: Result, limits: Limits, left: Limits, afresh: bool) -> Outcome:
    """A turn of the sandbox, told. `limits` are the message's, `left` what of them this block had."""
    return Outcome(
        stdout=result.stdout,
        stderr=result.stderr,
        value=result.value if result.status == "ok" else None,
        problem=problem_of(result, limits, left),
        before=BEGAN_AFRESH if afresh or result.restarted else "",
        after={"lost": LOST, "rolled back": ROLLED_BACK}.get(result.state or "", ""),
    )


def problem_of(result: Result, limits: Limits, left: Limits) -> Problem | None:
    """The one form for everything that can go wrong."""
    match result.status:
        case "ok":
            return Problem("exit", "the code exited with 0") if result.exit == 0 else None
        case "error":
            return error_of(result)
        case "timeout":
            return Problem("timeout", timeout_of(limits, out_of_cpu=result.cpu_seconds >= left.seconds))
        case "memory":
            return Problem("memory", f"the code needs more memory than its limit of {limits.memory_mb} MiB")
        case "output":
            return Problem("output", "the code printed without end")
        case "crash":
            return Problem("crash", "the process died of a signal")
        case _:
            return Problem("killed", result.error.message if result.error else "the process was killed")


def error_of(result: Result) -> Problem:
    """An exception, or an exit."""
    error = result.error
    if error is None:
        return Problem("exit", f"the code exited with {result.exit}")
    if error.type == "Exit":
        return Problem("exit", error.message)
    kind: Kind = "syntax" if error.type in SYNTAX else "runtime"
    lines = _LINE.findall(error.traceback) if "(<code>, line" not in error.message else []
    where = f"line {lines[-1]}: " if lines else ""
    words = f"{where}{error.type}: {error.message}".rstrip(": ")
    return Problem(kind, words, as_repr(error.type, error.message))


def timeout_of(limits: Limits, out_of_cpu: bool) -> str:
    """Which of the two clocks ran out."""
    if out_of_cpu:
        return f"the code used more than {limits.seconds:g} s of CPU time"
    return f"the code ran longer than {limits.wall_s:g} s"
