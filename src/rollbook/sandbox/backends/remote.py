"""A sandbox over HTTP: `rollbook sandbox serve` on another machine, or next to a worker without namespaces."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from rollbook.core import JSON, JSON_ERRORS, encode
from rollbook.errors import SandboxError, SandboxFull, TestsBroken, UsageError
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.results import Result, Verdict

CONNECT_S = 10.0
QUEUE_S = 300.0
"""How long a request may wait in the server's queue, beyond what its own limits allow."""
MAX_ANSWER_BYTES = 64 << 20

T = TypeVar("T")


class _Health(msgspec.Struct):
    isolation: tuple[str, ...]
    packages: tuple[str, ...] = ()


class _SessionStarted(msgspec.Struct):
    session: str


class _Refusal(msgspec.Struct):
    error: str


class RemoteSandbox:
    """Runs over HTTP. The address contains the token, as the server prints it; no message shows it."""

    def __init__(self, url: str, packages: Sequence[str] = ()) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError("a sandbox is addressed as http://HOST:PORT/TOKEN, which `rollbook sandbox serve` prints")
        self._connection_class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        health = _decode(self._request("GET", "/health", b"", CONNECT_S), _Health)
        self.isolation = ("remote", *health.isolation)
        missing = sorted(set(packages) - set(health.packages))
        if missing:  # code that may import it here would fail there, and be blamed for it
            where = f"the sandbox at {self._host}:{self._port}"
            raise UsageError(f"{where} has no package {missing[0]}: serve it with --package {missing[0]}")

    def run(self, code: str, stdin: bytes, files: Mapping[str, bytes], limits: Limits) -> Result:
        """Run code on the server; SandboxError when that fails."""
        request = {"code": code, "stdin": stdin.decode(errors="replace"), **_encode_common(limits, files)}
        return self._request_result("/run", request, limits)

    def grade(self, how: str, code: str, options: Mapping[str, JSON], limits: Limits, runs: int) -> Verdict:
        """Return the verdict of tests on the server; they may take `runs` times as long as one run."""
        request = encode({"code": code, "limits": msgspec.to_builtins(limits), **options})
        verdict = _decode(self._request("POST", f"/grade/{how}", request, runs * limits.wall_s + QUEUE_S), Verdict)
        return msgspec.structs.replace(verdict, isolation=("remote", *verdict.isolation))

    def open_session(self, limits: Limits, snapshot: bool, files: Mapping[str, bytes]) -> RemoteSessionState:
        """Open a session on the server."""
        request = encode({"snapshot": snapshot, **_encode_common(limits, files)})
        return RemoteSessionState(
            self, _decode(self._request("POST", "/sessions", request, QUEUE_S), _SessionStarted).session
        )

    def run_turn(self, session: str, code: str, limits: Limits) -> Result:
        """Run a turn of a session."""
        return self._request_result(
            f"/sessions/{session}/run", {"code": code, "limits": msgspec.to_builtins(limits)}, limits
        )

    def end_session(self, session: str) -> None:
        """End a session; if this fails, it expires by itself."""
        with suppress(SandboxError, UsageError):
            self._request("DELETE", f"/sessions/{session}", b"", CONNECT_S)

    def _request_result(self, path: str, request: JSON, limits: Limits) -> Result:
        result = _decode(self._request("POST", path, encode(request), limits.wall_s + QUEUE_S), Result)
        return msgspec.structs.replace(result, isolation=("remote", *result.isolation))

    def _request(self, method: str, path: str, body: bytes, timeout_s: float) -> bytes:
        connection = self._connection_class(self._host, self._port, timeout=timeout_s)
        try:
            connection.request(method, self._path + path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES)
        except (OSError, HTTPException) as error:
            raise SandboxError(f"the sandbox at {self._host}:{self._port}: {error}") from None
        finally:
            connection.close()
        if response.status != 200:
            raise _make_error(response.status, content, f"{self._host}:{self._port}")
        return content


class RemoteSessionState:
    """The state of a session on the server."""

    def __init__(self, remote: RemoteSandbox, name: str) -> None:
        self._remote, self._name = remote, name

    def run_turn(self, body: Mapping[str, JSON], limits: Limits) -> Result:
        """Run a turn that continues from this state."""
        return self._remote.run_turn(self._name, body["code"], limits)

    def close(self) -> None:
        """Discard the state."""
        self._remote.end_session(self._name)


def _encode_common(limits: Limits, files: Mapping[str, bytes]) -> dict[str, JSON]:
    texts = {name: b64encode(data).decode() for name, data in files.items()}
    return {"files": texts, "limits": msgspec.to_builtins(limits)}


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except JSON_ERRORS as error:
        raise SandboxError(f"the sandbox's answer is invalid: {error}") from None


def _make_error(status: int, content: bytes, where: str) -> Exception:
    try:
        message = msgspec.json.decode(content, type=_Refusal).error
    except JSON_ERRORS:
        message = "no sandbox answers there"
    if status == 422:
        return TestsBroken(message)
    kind = {400: UsageError, 429: SandboxFull}.get(status, SandboxError)
    return kind(f"the sandbox at {where}: HTTP {status}: {message}")
