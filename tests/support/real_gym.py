"""The real NeMo Gym: its servers and agents, started by `gym env start`, and the other commands of its package.

Its servers all run in the Python that has the package, so nothing is installed while tests run: Gym is told that each
server's virtual environment exists already. The model of both sides says what a script says (`ScriptedModel`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

Step = str | tuple[str, dict[str, Any]]
"""What a model says in one call: a text, or the name and arguments of a tool."""

READY_S = 300.0


def prompt_of(messages: Sequence[Mapping[str, Any]]) -> str:
    """The first text of the user, by which a script finds what is to be said."""
    content = next((one["content"] for one in messages if one["role"] == "user"), "")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@contextmanager
def scripted_model(script: Mapping[str, Sequence[Step]]) -> Iterator[str]:
    """An endpoint of chat completions that says the steps of the script for a prompt, one by one; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def reply(self, value: object) -> None:
            raw = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def do_GET(self) -> None:
            self.reply({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = sum(one["role"] == "assistant" for one in body["messages"])
            steps = script.get(prompt_of(body["messages"]), ())
            self.reply(make_completion(steps[said] if said < len(steps) else "I am done.", said))

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


def make_completion(step: Step, number: int) -> dict[str, Any]:
    """A chat completion with one step."""
    message: dict[str, Any] = {"role": "assistant", "content": step if isinstance(step, str) else None}
    if not isinstance(step, str):
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    reason = "stop" if isinstance(step, str) else "tool_calls"
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }


class RealGym:
    """A started NeMo Gym. `project` is where it is started, with servers of ours; `head` its head server's port."""

    def __init__(self, folder: Path, project: Path, model: str) -> None:
        self.folder, self.project, self.model, self.head = folder, project, model, find_free_port()
        self.log = folder / "gym.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def settings(self) -> list[str]:
        """The settings that every command gets: the head server, the model, and no installing."""
        return [
            f"++head_server={{host: 127.0.0.1, port: {self.head}}}",
            f"++policy_base_url={self.model}",
            "++policy_api_key=none",
            "++policy_model_name=scripted",
            "++skip_venv_if_present=true",
            f"++uv_venv_dir={self.folder / 'venvs'}",
        ]

    def start(self, configs: Sequence[str], servers: Sequence[str]) -> None:
        """Start the servers of some configurations; `servers` are the folders of their code, Gym's or in `project`."""
        for server in servers:
            self._make_venv(server)
        options = [part for config in configs for part in ("--config", config)]
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [self._program, "env", "start", *options, *self.settings],
                cwd=self.project,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
        self._wait_until_ready()

    def _make_venv(self, server: str) -> None:
        """What Gym takes for the virtual environment of a server: this Python, with all packages."""
        folder = self.folder / "venvs" / server
        if (self.project / server / ".venv").exists():  # one that we wrote ourselves
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.symlink_to(self.project / server)
            return
        folder = folder / ".venv" / "bin"
        folder.mkdir(parents=True)
        (folder / "python").symlink_to(sys.executable)
        (folder / "activate").write_text(f"export PATH={Path(sys.executable).parent}:$PATH\n")

    @property
    def _program(self) -> str:
        return str(Path(sys.executable).parent / "gym")

    @property
    def _environ(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_S
        while not self._is_ready():
            assert self._process
            assert self._process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < deadline, self.log.read_text()[-4000:]
            time.sleep(1)

    def _is_ready(self) -> bool:
        try:
            instances = json.load(urlopen(f"http://127.0.0.1:{self.head}/server_instances", timeout=10))
            return bool(instances) and all(is_answering(one["url"]) for one in instances)
        except (URLError, OSError, ValueError):
            return False

    def run(self, *arguments: str, head: int = 0, timeout_s: float = 300.0) -> str:
        """Run a command of Gym to its end; its output. One that fails fails the test with what it said."""
        settings = [one for one in self.settings if not (head and one.startswith("++head_server"))]
        settings += [f"++head_server={{host: 127.0.0.1, port: {head}}}"] if head else []
        with tempfile.TemporaryFile() as log:  # a pipe would be held open by servers that it leaves behind
            process = subprocess.Popen(
                [self._program, *arguments, *settings],
                cwd=self.project,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environ,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            finally:
                end_group(process)
            log.seek(0)
            said = log.read().decode(errors="replace")
        assert code == 0, said[-4000:]
        return said

    def stop(self) -> None:
        """End it, with all it started."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(60)
        end_group(self._process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group: Ray and the servers that Gym started are in it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def is_answering(url: str) -> bool:
    """Whether anything answers at an address, with whatever status."""
    try:
        with urlopen(url, timeout=10):
            return True
    except URLError as error:
        return hasattr(error, "code")


def find_free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
