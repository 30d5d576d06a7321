"""What became of a run, in words for a model: bounded, and clear about what was lost."""

from __future__ import annotations

from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Error, Result

PART_CHARS = 4000
"""Of each of what was printed, the value and the error so much is shown, from both ends."""

_ENDS = {
    "memory": "Stopped: it needed more than {memory_mb} MB of memory.",
    "output": "Stopped: it printed without end.",
    "crash": "The Python process crashed.",
    "killed": "The Python process was killed.",
}


def shown(result: Result, limits: Limits) -> str:
    """The parts that are there, in the order in which they came about."""
    parts = [
        "Earlier variables were lost; this call began afresh." if result.restarted else "",
        middle_out(result.stdout.rstrip()),
        f"Printed to stderr:\n{middle_out(result.stderr.rstrip())}" if result.stderr.strip() else "",
        "More was printed than is kept." if result.truncated else "",
        f"Value: {middle_out(result.value)}" if result.value is not None else "",
        _end(result, limits),
        _state(result),
    ]
    return "\n".join(filter(None, parts)) or "Done; nothing was printed."


def _end(result: Result, limits: Limits) -> str:
    if result.status == "ok":
        return ""
    if result.status == "timeout":
        return f"Stopped: it took longer than {limits.seconds:g} s of CPU time, or {limits.wall_s:g} s by the clock."
    if result.status == "error":
        return _error(result.error)
    return _ENDS.get(result.status, f"Stopped: {result.status}.").format(memory_mb=limits.memory_mb)


def _error(error: Error | None) -> str:
    if error is None:
        return "It ended with an exit code."
    return middle_out(error.traceback.rstrip() or f"{error.type}: {error.message}")


def _state(result: Result) -> str:
    if result.state == "rolled back":
        return "Variables are as they were before this call."
    return "All variables are lost; the next call begins afresh." if result.state == "lost" else ""


def middle_out(text: str, chars: int = PART_CHARS) -> str:
    """Both ends of a text that is too long, and how much is missing between them.

    >>> middle_out("0123456789", 4)
    '01\\n[6 characters left out]\\n89'
    """
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
