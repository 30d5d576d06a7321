"""SandboxFusion's `/run_code`: its request turned into a run of ours, and our result into its answer. No I/O here."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Result, Status

ROOM_S = 5.0
"""Its limit is a wall clock; ours is CPU time with this much more on the wall, so that a busy host changes no score."""

_ENDS: dict[Status, tuple[str, int | None]] = {
    "ok": ("Finished", 0),
    "error": ("Finished", 1),
    "memory": ("Finished", 1),
    "crash": ("Finished", -11),
    "timeout": ("TimeLimitExceeded", None),
    "output": ("Error", None),
    "killed": ("Error", None),
}
"""How a run ended and its return code; never 0 for what did not end well by itself."""


class RunCode(msgspec.Struct, frozen=True):
    """What a client of SandboxFusion sends."""

    code: str
    language: str = "python"
    stdin: str | None = None
    run_timeout: float = 10.0
    memory_limit_MB: int = -1
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    def limits(self, base: Limits) -> Limits:
        """Its limits on top of the server's; a negative memory limit is its way to say none of its own."""
        memory = base.memory_mb if self.memory_limit_MB < 0 else self.memory_limit_MB
        wall_s = self.run_timeout + ROOM_S
        return msgspec.structs.replace(base, seconds=self.run_timeout, wall_seconds=wall_s, memory_mb=memory)

    def check(self) -> None:
        """Refuse what would otherwise be left out silently."""
        if self.language != "python":
            raise UsageError(f"language {self.language!r}: only python runs here")
        if self.fetch_files:
            raise UsageError("fetch_files: files cannot be fetched from a run here; print what you need")

    def contents(self) -> dict[str, bytes]:
        """The files that are to lie beside the program."""
        return {name: decoded(name, text) for name, text in self.files.items() if text is not None}


def decoded(name: str, text: str) -> bytes:
    """A file as it came over the wire."""
    try:
        return b64decode(text, validate=True)
    except NotBase64:
        raise UsageError(f"file {name!r} is not base64") from None


def answer(result: Result) -> dict[str, JSON]:
    """A result in SandboxFusion's words."""
    ended, return_code = _ENDS[result.status]
    if result.status == "error" and result.exit is not None:
        return_code = result.exit
    return {
        "status": "Success" if result.status == "ok" else "Failed",
        "message": "" if result.status in ("ok", "error") else result.status,
        "compile_result": None,
        "run_result": {
            "status": ended,
            "execution_time": result.seconds,
            "return_code": return_code,
            "stdout": result.stdout,
            "stderr": result.stderr + (result.error.traceback if result.error else ""),
        },
        "executor_pod_name": None,
        "files": {},
    }


def broken(words: str) -> dict[str, JSON]:
    """The sandbox itself failed: its clients give no score for that."""
    return {"status": "SandboxError", "message": words, "compile_result": None, "run_result": None, "files": {}}
