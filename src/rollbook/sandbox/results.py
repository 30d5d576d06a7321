"""What became of a run (Result) and of tests (Verdict): never an exit code or a word of the code under test alone."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

RunStatus: TypeAlias = Literal["ok", "error", "timeout", "memory", "output", "crash", "killed"]

StateOutcome: TypeAlias = Literal["kept", "lost", "rolled back"]


class ProgramError(msgspec.Struct, frozen=True):
    """The exception that ended a program. Its own words: never a reason to trust it."""

    type: str
    message: str
    traceback: str = ""


class GuestReport(msgspec.Struct, frozen=True):
    """What the child says about itself: a value, an exit or an error, and whether that is Python's MemoryError."""

    value: str | None = None
    exit: int | None = None
    error: ProgramError | None = None
    memory: bool = False


class Result(msgspec.Struct, frozen=True):
    """One run. The status comes from the kernel and the clock; value and error are the program's own words.

    ok: ended by itself with 0. error: an exception or another exit code. timeout: out of CPU or wall time. memory: a
    MemoryError that it could have caught, or the kernel's kill, which it could not: error.type says which. output:
    printed without end. crash: died of a signal. killed: someone else killed it.
    """

    status: RunStatus
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: ProgramError | None = None
    exit: int | None = None
    """The code with which it ended: of a run, unless it was killed; of a turn, only if it asked to exit."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    truncated: bool = False
    """Whether more came of stdout, stderr or the value than is kept."""
    stdout_cut: bool = False
    isolation: tuple[str, ...] = ()
    state: StateOutcome | None = None
    """Of a session's turn: what it made is kept, or lost with all before it, or undone alone (files are never)."""
    restarted: bool = False
    """Whether this turn began a session afresh whose state an earlier one had lost."""


VerdictReason: TypeAlias = Literal[
    "passed", "failed", "error", "exit", "timeout", "memory", "output", "crash", "killed", "refused"
]


class Verdict(msgspec.Struct, frozen=True):
    """Whether the code passed, and if not, why.

    failed: a test said no. error, exit: the code raised, or ended by itself. refused: the tests ask what only objects
    of the code could answer, and nobody said that this is good enough, or what only works in one process. Others are as
    in Result. `weak`: it was allowed, and the verdict rests on it. `fraction` is the part of the tests that passed,
    where they are counted.
    """

    passed: bool
    reason: VerdictReason
    detail: str = ""
    weak: bool = False
    fraction: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    isolation: tuple[str, ...] = ()
