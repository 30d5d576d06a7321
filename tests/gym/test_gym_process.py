"""A resources server as a child process: it starts, it ends, and no failure leaves a process behind."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from rollbook import Environment, Task
from rollbook.environments.registry import parse_spec
from rollbook.errors import ChildFailed, UsageError
from rollbook.gym.harness import temporary_folder
from rollbook.gym.process import ResourceServerProcess, make_environment_spec
from rollbook.gym.rows import read_task
from support.alive import alive, eventually, read_pid
from support.commands import MARK, SOURCE
from support.gym_client import response, text

ENVIRONMENTS = """
import os, signal, sys, time
from pathlib import Path
from rollbook import Environment, Task

HERE = Path(__file__).parent

def note(name):
    (HERE / name).write_text(f"{os.getpid()}\\n")

class Sums(Environment):
    def __init__(self, top=3, secret=""):
        self.top = top

    def tasks(self):
        for i in range(self.top):
            yield Task(id=f"sum-{i}", prompt=f"{i} + {i}?", answer=str(2 * i))

    async def start(self):
        note("server.pid")

    async def verify(self, task, rollout):
        return rollout.text == task.answer

class Dies(Sums):
    async def start(self):
        print("about to die", file=sys.stderr, flush=True)
        os._exit(7)

class Hangs(Sums):
    async def start(self):
        note("server.pid")
        print("waiting for ever", file=sys.stderr, flush=True)
        time.sleep(600)

class Stubborn(Sums):
    async def start(self):
        note("server.pid")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        if os.fork() == 0:
            note("grandchild.pid")
            time.sleep(600)

class Refused(Sums):
    def __init__(self):
        raise ValueError("not today")
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "served.py").write_text(ENVIRONMENTS)
    return tmp_path


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A variable that every process started from here inherits."""
    monkeypatch.setenv(MARK, secrets.token_hex(8))
    return f"{MARK}={os.environ[MARK]}".encode()


def post(url: str, body: Any) -> Any:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with build_opener(ProxyHandler({})).open(request, timeout=30) as answer:
        return json.load(answer)


def test_it_serves_with_its_rows_beside_it_and_is_gone_afterwards(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_in_python(place, monkeypatch, top=2, secret="hush & {hush}")
    log = place / "server.log"
    with ResourceServerProcess(env, log=log) as server:
        rows = [json.loads(line) for line in server.data.read_text().splitlines()]
        assert [read_task(row).id for row in rows] == ["sum-0", "sum-1"]
        assert rows[0]["agent_ref"]["name"] == "Sums_agent"
        reply = post(f"{server.url}/verify", {**rows[1], "response": response([text("2")])})
        pid, data = read_pid(place / "server.pid"), server.data
        seen = [Path(f"/proc/{pid}/{what}").read_bytes() for what in ("cmdline", "environ")]
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ChildFailed, match=f"--port {port}: .*--port 0 takes a free one"):
            ResourceServerProcess(env, port=port).__enter__()
    assert reply["reward"] == 1.0
    assert not any(b"hush" in what for what in (*seen, log.read_bytes()))
    assert not alive(pid)
    assert not data.exists()
    with pytest.raises(UsageError, match="not running"):
        server.url  # noqa: B018


def make_in_python(place: Path, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> Environment:
    """The environment of the file, made in Python."""
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "served", raising=False)
    return import_module("served").Sums(**arguments)


def test_it_can_be_used_again_and_inside_of_an_event_loop(place: Path) -> None:
    server = ResourceServerProcess(f"{place}/served.py:Sums", eval_type="easy sums", data_dir=place / "rows")
    pids = []

    async def go() -> None:
        async with server:
            pids.append(read_pid(place / "server.pid"))
            with pytest.raises(UsageError, match="use `async with"):
                server.__enter__()
            if len(pids) == 2:
                raise ZeroDivisionError

    asyncio.run(go())
    (place / "server.pid").unlink()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(go())
    assert len(set(pids)) == 2
    assert not any(map(alive, pids))
    assert (place / "rows" / "easy_sums.jsonl").read_text().count("\n") == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [("Dies", r"ended \(exit 7\) before it was ready: about to die"), ("Refused", "ValueError: not today")],
)
def test_a_child_that_dies_at_the_start_fails_at_once_with_the_end_of_its_log(
    place: Path, mark: bytes, name: str, message: str
) -> None:
    with pytest.raises(ChildFailed, match=message) as error:
        ResourceServerProcess(f"{place}/served.py:{name}", within_s=600).__enter__()
    assert error.value.tail
    assert eventually(lambda: not marked(mark))


def test_a_child_that_never_gets_healthy_is_killed_at_the_deadline(place: Path, mark: bytes) -> None:
    with pytest.raises(ChildFailed, match=r"was not ready within 1\.5 s"):
        ResourceServerProcess(f"{place}/served.py:Hangs", within_s=1.5).__enter__()
    assert eventually(lambda: not marked(mark))


def test_a_child_that_runs_is_seen_by_its_mark(place: Path, mark: bytes) -> None:
    with ResourceServerProcess(f"{place}/served.py:Sums"):
        assert read_pid(place / "server.pid") in marked(mark)
    assert eventually(lambda: not marked(mark))


def marked(mark: bytes) -> list[int]:
    """The processes with this mark, however far removed, that still run."""
    running = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (path / "environ").read_bytes() and alive(int(path.name)):
                running.append(int(path.name))
    return running


def test_a_child_that_ignores_sigterm_is_killed_with_what_it_started(place: Path) -> None:
    with ResourceServerProcess(f"{place}/served.py:Stubborn", grace_s=0.3):
        pids = [read_pid(place / name) for name in ("server.pid", "grandchild.pid")]
        assert all(map(alive, pids))
    assert eventually(lambda: not any(map(alive, pids)))


def test_it_dies_with_a_parent_that_was_killed_and_so_does_what_it_started(place: Path) -> None:
    code = f"""
import time
from rollbook import ResourceServerProcess
with ResourceServerProcess({f"{place}/served.py:Stubborn"!r}):
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(SOURCE)}) as parent:
        pids = [read_pid(place / name, 30) for name in ("server.pid", "grandchild.pid")]
        parent.send_signal(signal.SIGKILL)
    assert eventually(lambda: not any(map(alive, pids)))


HOLDING = """
import sys, time
from rollbook.gym.harness import temporary_folder
with temporary_folder() as folder:
    (folder / "source").mkdir()
    print(folder, flush=True)
    time.sleep(60)
"""


def test_what_a_killed_process_leaves_in_the_temporary_folder_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environ = {**os.environ, "PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", HOLDING]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        left = Path(process.stdout.readline().strip())
        os.utime(left, (0, 0))
        with temporary_folder():
            assert left.exists(), "its owner lives"
        process.kill()
    os.utime(left, (0, 0))
    with temporary_folder() as folder:
        assert [*tmp_path.iterdir()] == [folder]
    assert [*tmp_path.iterdir()] == []


def test_a_port_that_is_none_is_refused(place: Path) -> None:
    with pytest.raises(UsageError, match="port=99999: give one from 0 to 65535"):
        ResourceServerProcess(f"{place}/served.py:Sums", port=99999)


FRAMEWORK = {
    "framework": {"pkg_name": "counted_harness"},
    "defaults": {
        "config": {
            "params": {
                "extra": {
                    "judge": {"url": "http://j", "model_id": "m", "api_key": "KEY"},
                    "strict": True,
                    "top": [1, 2],
                }
            }
        }
    },
}

HARNESS = """
import os
from rollbook import Harness as Base

class Harness(Base):
    def __init__(self, eval_type, judge_config=None, **more):
        super().__init__(eval_type)
        self.judge, self.more = judge_config, more

    def get_dataset(self):
        return [{"responses_create_params": {"input": "?"}, "expected_answer": self.eval_type}]

    async def verify(self, response_text, expected_answer, **kwargs):
        return float(response_text == expected_answer), f"{self.judge} {os.environ['KEY']} {self.more}"
"""


def test_a_framework_is_served_by_its_package(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "counted_harness").mkdir()
    (place / "counted_harness" / "gym_harness.py").write_text(HARNESS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(SOURCE), str(place))))
    monkeypatch.setenv("KEY", "k3y")
    with ResourceServerProcess(eval_type="easy", framework_config=FRAMEWORK) as server:
        (row,) = [json.loads(line) for line in server.data.read_text().splitlines()]
        reply = post(f"{server.url}/verify", {**row, "response": response([text("easy")])})
        assert server.data.name == "easy.jsonl"
    judge = {"backend": "openai", "url": "http://j", "model": "m", "api_key_name": "KEY"}
    assert (reply["reward"], reply["extracted_answer"]) == (1.0, f"{judge} k3y {{'strict': True, 'top': [1, 2]}}")


class Here(Environment):
    def __init__(self, top: int = 1, name: str = "", deep: Any = None) -> None:
        pass

    def tasks(self):
        yield Task("a", "b")

    async def verify(self, task, rollout):
        return True


def test_an_environment_made_in_python_is_told_by_its_file_and_arguments() -> None:
    env = Here(3, name="12", deep={"a & b": [1, None]})
    spec = make_environment_spec(env)
    assert spec.startswith(f"{__file__}:Here?")
    assert parse_spec(spec).args == {"top": 3, "name": "12", "deep": {"a & b": [1, None]}}


def test_what_no_child_could_make_is_refused() -> None:
    class Local(Here):
        pass

    with pytest.raises(UsageError, match="Local cannot be imported by another process"):
        ResourceServerProcess(Local())
    with pytest.raises(UsageError, match="give either env or framework_config"):
        ResourceServerProcess()
    with pytest.raises(UsageError, match=r"framework_config has no framework\.pkg_name"):
        ResourceServerProcess(framework_config={"framework": {}})
