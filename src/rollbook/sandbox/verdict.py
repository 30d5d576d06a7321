"""What tests came to: never an exit code, never a word of the code under test."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Reason: TypeAlias = Literal[
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
    reason: Reason
    detail: str = ""
    weak: bool = False
    fraction: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    isolation: tuple[str, ...] = ()
