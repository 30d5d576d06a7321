"""What the sandbox raises beside UsageError."""

from __future__ import annotations

from rollbook.errors import RollbookError


class SandboxError(RollbookError):
    """The sandbox itself failed, or cannot give what was asked: never a result, never a reward."""


class Refused(SandboxError):
    """These limits, or this kind of guest, are not to be had here. Nothing is broken."""


class Full(SandboxError):
    """There is no room for one more just now. Nothing is broken: try again."""


class Forged(Exception):
    """A guest said what its role never says: its code has found the channel. Stays inside the sandbox's rooms."""
