"""What the sandbox raises besides UsageError: its own failures, full queues, forged messages, broken tests."""

from __future__ import annotations

from rollbook.errors import RollbookError


class SandboxError(RollbookError):
    """The sandbox itself failed, or cannot give what was asked: never a result, never a reward."""


class SandboxUnsupported(SandboxError):
    """These limits, or this kind of guest, are not to be had here. Nothing is broken."""


class SandboxFull(SandboxError):
    """There is no room for one more just now. Nothing is broken: try again."""


class ForgedMessage(Exception):
    """A guest said what its role never says: its code has found the channel. Stays inside the sandbox's rooms."""


class TestsBroken(RollbookError):
    """The tests failed by themselves, before they asked the code anything: nobody can be graded with them."""

    __test__ = False
