"""The command line and the endpoint as processes of their own, and what of them is still running."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from support.alive import alive, eventually
from support.forked_command import SOURCE, Forked

MARK = "ROLLBOOK_TEST_MARK"
_open = build_opener(ProxyHandler({})).open


class Process:
    """A running command whose words go to files, so that nothing it leaves behind can hold up the test."""

    def __init__(self, words: list[str], folder: Path, environ: dict[str, str], forked: bool = False) -> None:
        logs = folder / ".said"
        logs.mkdir(exist_ok=True)
        stem = secrets.token_hex(4)
        self._out, self._err = logs / f"{stem}.out", logs / f"{stem}.err"
        self.began = time.monotonic()
        self._popen = self._forked(words, folder, environ) if forked else self._spawned(words, folder, environ)
        self.pid = self._popen.pid

    def _forked(self, words: list[str], folder: Path, environ: dict[str, str]) -> Forked:
        for path in (self._out, self._err):
            path.touch()  # so that there is something to read before it opens them itself
        return Forked(words, folder, environ, self._out, self._err)

    def _spawned(self, words: list[str], folder: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            return subprocess.Popen(
                words, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def stdout(self) -> str:
        """What it has said so far."""
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        """What it has complained of so far."""
        return self._err.read_text()

    @property
    def code(self) -> int | None:
        """How it ended; None while it runs."""
        return self._popen.poll()

    def wait(self, within_s: float = 60.0) -> Process:
        """Until it ends; a test whose command does not end in time fails with what it said."""
        try:
            self._popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self._popen.args} took longer than {within_s:g} s: {self.stderr}") from None
        self.seconds = time.monotonic() - self.began
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self._popen.send_signal(number)

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self._popen.kill()
        self._popen.wait(30)

    @property
    def complaint(self) -> str:
        """The one line of the error it ended with; there must be no other and no traceback."""
        lines = [line for line in self.stderr.splitlines() if line.startswith("rollbook: ")]
        assert "Traceback" not in self.stderr, self.stderr
        assert len(lines) == 1, self.stderr
        assert self.stderr.splitlines()[-1] == lines[0], self.stderr
        return lines[0]

    @property
    def json(self) -> Any:
        """What it printed, decoded; a command that printed something else fails its test with what it said."""
        try:
            return json.loads(self.stdout)
        except ValueError:
            raise AssertionError(f"{self.code}: {self.stdout!r} is no JSON: {self.stderr}") from None


class Commands:
    """Runs `rollbook ARGUMENTS` in a folder. All that it starts, however far removed, carries a mark.

    A command is a fork of the fork server, which saves it the start of Python; where it is given variables that
    Python reads when it starts, it is started the usual way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        self.environ = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "110", MARK: self._mark}
        self._sessions: set[int] = set()

    def start(self, *words: object, **environ: str) -> Process:
        """Start a command and do not wait for it."""
        if any(name.startswith(("PYTHON", "LC_", "LANG", "LD_")) for name in environ):
            return self.python("-m", "rollbook", *words, **environ)
        process = Process([*map(str, words)], self.folder, {**self.environ, **environ}, forked=True)
        self._sessions.add(process.pid)
        return process

    def run(self, *words: object, within_s: float = 60.0, **environ: str) -> Process:
        """Run a command to its end."""
        return self.start(*words, **environ).wait(within_s)

    def python(self, *words: object, **environ: str) -> Process:
        """Start any Python program in the same way."""
        return Process([sys.executable, *map(str, words)], self.folder, {**self.environ, **environ})

    def left(self) -> dict[int, str]:
        """Every process with our mark that still runs, with its command."""
        found = {}
        mark = f"{MARK}={self._mark}".encode()
        for name in filter(str.isdigit, os.listdir("/proc")):
            with suppress(OSError):
                ours = os.getsid(int(name)) in self._sessions or mark in Path(f"/proc/{name}/environ").read_bytes()
                if ours and alive(int(name)):
                    found[int(name)] = Path(f"/proc/{name}/cmdline").read_text().replace("\0", " ")
        return found

    def nothing_left(self, within_s: float = 5.0) -> bool:
        """Whether all that was started has ended, or does so very soon."""
        return eventually(lambda: not self.left(), within_s)

    def close(self) -> None:
        """End whatever a failed test has left."""
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Served:
    """The fault endpoint (support/endpoint.py) as a process: to be switched, looked at, killed and started again."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.port = 0
        self.start()

    def start(self) -> None:
        """Start it, after a kill on the port it had."""
        command = [sys.executable, str(Path(__file__).with_name("endpoint.py")), "--port", str(self.port), *self._words]
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._popen.stdout
        said = json.loads(self._popen.stdout.readline())
        self.port, self._control = said["port"], f"http://127.0.0.1:{said['control']}"

    @property
    def is_running(self) -> bool:
        """Whether its process runs."""
        return self._popen.poll() is None

    @property
    def url(self) -> str:
        """What goes behind -m."""
        return f"http://127.0.0.1:{self.port}/v1"

    def switch(self, mode: str, **settings: object) -> None:
        """Another mode from now on."""
        body = json.dumps({"mode": mode, **settings}).encode()
        request = Request(f"{self._control}/mode", body, {"Content-Type": "application/json"})
        with _open(request, timeout=10) as reply:
            assert reply.status == 200

    def _get(self, path: str) -> dict[str, int]:
        with _open(f"{self._control}/{path}", timeout=10) as reply:
            found: dict[str, int] = json.load(reply)
        return found

    @property
    def calls(self) -> int:
        """How many completions were asked for."""
        return self._get("counts").get("chat", 0)

    @property
    def seeds(self) -> Counter[int]:
        """How often each seed, and so each key, was asked; the call before a run has the seed 0 and is none of them."""
        return Counter({int(seed): count for seed, count in self._get("seeds").items() if int(seed)})

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """The completions that were asked for."""
        with _open(f"{self._control}/bodies", timeout=10) as reply:
            found: list[dict[str, Any]] = json.load(reply)
        return found

    def kill(self) -> None:
        """kill -9: nobody listens any more."""
        self._popen.kill()
        self._popen.wait(10)
        if self._popen.stdout:
            self._popen.stdout.close()
