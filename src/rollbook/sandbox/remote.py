"""A sandbox elsewhere: `rollbook sandbox serve` on another machine, or beside a worker that may not use namespaces."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from rollbook.core.json import encode
from rollbook.errors import UsageError
from rollbook.sandbox.errors import SandboxError
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.result import Result

CONNECT_S = 10.0
QUEUE_S = 300.0
"""How long a request may wait for its turn over there, beyond what its own limits allow."""
ANSWER_LIMIT = 64 << 20

T = TypeVar("T")


class _Health(msgspec.Struct):
    isolation: tuple[str, ...]


class _Refusal(msgspec.Struct):
    error: str


class Remote:
    """Runs over HTTP. The address holds the token, as the server prints it; nothing of it is ever shown."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "a sandbox is addressed as http://HOST:PORT/TOKEN, which `rollbook sandbox serve` prints"
            )
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self.isolation = ("remote", *_decoded(self._ask("GET", "/health", b"", CONNECT_S), _Health).isolation)

    def run(self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits) -> Result:
        """One fresh run over there; SandboxError when it could not be had."""
        request = {
            "code": code,
            "stdin": stdin.decode(errors="replace"),
            "files": {name: b64encode(data).decode() for name, data in files.items()},
            "limits": msgspec.to_builtins(limits),
        }
        return _decoded(self._ask("POST", "/run", encode(request), limits.wall_s + QUEUE_S), Result)

    def _ask(self, method: str, path: str, body: bytes, within_s: float) -> bytes:
        line = self._kind(self._host, self._port, timeout=within_s)
        try:
            line.request(method, self._path + path, body, {"Content-Type": "application/json"})
            answer = line.getresponse()
            said = answer.read(ANSWER_LIMIT)
        except (OSError, HTTPException) as error:
            raise SandboxError(f"the sandbox at {self._host}:{self._port}: {error}") from None
        finally:
            line.close()
        if answer.status != 200:
            raise _refused(answer.status, said, f"{self._host}:{self._port}")
        return said


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise SandboxError(f"the sandbox's answer is none: {error}") from None


def _refused(status: int, said: bytes, where: str) -> Exception:
    try:
        words = msgspec.json.decode(said, type=_Refusal).error
    except msgspec.DecodeError:
        words = "no sandbox answers there"
    kind = UsageError if status == 400 else SandboxError
    return kind(f"the sandbox at {where}: HTTP {status}: {words}")
