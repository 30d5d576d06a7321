"""Results of runs (Result) and of tests (Verdict): never based only on an exit code or on output of the code."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

RunStatus: TypeAlias = Literal["ok", "error", "timeout", "memory", "output", "crash", "killed"]

StateOutcome: TypeAlias = Literal["kept", "lost", "rolled back"]


class ProgramError(msgspec.Struct, frozen=True):
    """The exception that ended a program, as the program reported it: not to be trusted."""

    type: str
    message: str
    traceback: str = ""


class GuestReport(msgspec.Struct, frozen=True):
    """A guest's report of its own end: a value, an exit or an error, and whether that is Python's MemoryError."""

    value: str | None = None
    exit: int | None = None
    error: ProgramError | None = None
    memory: bool = False


decode_guest_report = msgspec.json.Decoder(GuestReport).decode


class Result(msgspec.Struct, frozen=True):
    """One run. The status comes from the kernel and the clock; value and error are reported by the program itself.

    ok: ended by itself with 0. error: an exception or another exit code. timeout: out of CPU or wall time. memory: a
    MemoryError that the program could have caught, or a kill by the kernel, which it could not: error.type tells them
    apart. output: printed without end. crash: died of a signal. killed: the host ended it because of what the code did
    outside its task. A kill from outside is no result but a SandboxError.
    """

    status: RunStatus
    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    error: ProgramError | None = None
    exit: int | None = None
    """The exit code: of a run, unless it was killed; of a turn, only if it called exit."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_mb: float = 0.0
    truncated: bool = False
    """Whether stdout, stderr or the value was longer than what is kept."""
    stdout_cut: bool = False
    isolation: tuple[str, ...] = ()
    state: StateOutcome | None = None
    """For a turn of a session: its changes are kept, or lost together with all earlier ones, or rolled back alone
    (files are never rolled back)."""
    restarted: bool = False
    """Whether this turn began with a fresh state because an earlier turn had lost it."""


VerdictReason: TypeAlias = Literal[
    "passed", "failed", "error", "exit", "timeout", "memory", "output", "crash", "killed", "refused"
]


class Verdict(msgspec.Struct, frozen=True):
    """Whether the code passed, and if not, why.

    failed: a test failed. error, exit: the code raised, or ended by itself. refused: the tests need answers that only
    objects of the code could give, and `allow_weak` was not set; or they only work in one process with the code. Other
    reasons are as in Result. `weak`: such answers were allowed, and the verdict rests on them. `fraction` is the share
    of tests that passed, where they are counted.
    """

    passed: bool
    reason: VerdictReason
    detail: str = ""
    weak: bool = False
    fraction: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    isolation: tuple[str, ...] = ()
