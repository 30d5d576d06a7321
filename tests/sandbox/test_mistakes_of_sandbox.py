"""A mistake in our own code is raised as it is: never taken for a dead process, a forged message or a limit."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.sandbox import (
    Limits,
    cgroups,
    grading,
    guest,
    isolation,
    launcher,
    limits,
    outputs,
    sandbox,
    server,
    session,
    session_state,
    supervision,
)
from rollbook.sandbox.backends import bubblewrap, remote, zygote
from support.bugs import Bug, Buggy, break_name, raise_bug, raise_bug_later

RESULT: Any = SimpleNamespace(value="1")
PATH: Any = Buggy()


def make(kind: type, **fields: object) -> Any:
    """Make an object without its set-up, with these fields."""
    made = object.__new__(kind)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def make_channel() -> Any:
    end = SimpleNamespace(send=raise_bug, recv=raise_bug)
    return make(guest.HostChannel, _socket=end, open=True, _buffer=bytearray(), max_bytes=9)


class Unprintable:
    """A value without a text."""

    def __str__(self) -> str:
        raise_bug()

    def __repr__(self) -> str:
        return "x"


def read_channel() -> object:
    channel = SimpleNamespace(read_frames=raise_bug, open=True, fileno=lambda: 0)
    dog = SimpleNamespace(unregister=print)
    return make(guest.GuestRun, _guest=SimpleNamespace(channel=channel), _watchdog=dog)._read_channel()


class BareLauncher(launcher.GuestLauncher):
    """A launcher whose provider has set nothing up."""

    isolation = ()


def make_launcher() -> Any:
    requirements = SimpleNamespace(list_layers=lambda *_: ())
    provider = SimpleNamespace(
        open_account=lambda *_: None, mount=raise_bug, read_last_output=lambda: "", isolation=(), launch=raise_bug
    )
    numbers = SimpleNamespace(next=lambda: 1)
    return make(BareLauncher, _requirements=requirements, _user_ids=numbers, _provider=provider)


def hold_calls() -> Any:
    return make(session_state.ForkGate, _listener=0, _poll=SimpleNamespace(poll=lambda _: True))


def read_pipe(folder: Path, patch: pytest.MonkeyPatch) -> None:
    pipe = supervision.OutputPipe(9)
    try:
        with patch.context() as broken:
            broken.setattr(os, "read", raise_bug)
            pipe.drain()
    finally:
        pipe.close_both()


def ask_remote() -> object:
    connection = SimpleNamespace(request=raise_bug, close=lambda: None)
    return make(
        remote.RemoteSandbox, _connection_class=lambda *_, **__: connection, _host="h", _port=1, _path=""
    )._request("GET", "/", b"", 1.0)


def run_guest() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        make(bubblewrap.BubblewrapProvider, _supervise=raise_bug, _last_errors="")._run_guest({}, [ours.detach()])


def exchange() -> Any:
    channel = SimpleNamespace(max_bytes=0, read_frames=raise_bug)
    wrong = SimpleNamespace(send=raise_bug, read_reply=raise_bug)
    return make(
        session_state.SessionTurn,
        _guest=SimpleNamespace(channel=channel, streams=()),
        _limits=Limits(),
        _exchange=wrong,
        _status=None,
    )


def own_process(**fields: object) -> Any:
    return make(supervision.GuestProcess, pid=os.getpid(), pidfd=-1, **fields)


GROUP: Any = SimpleNamespace(set_limit=raise_bug, enter=raise_bug, remove=lambda: None)
GROUPS: Any = SimpleNamespace(make=lambda: GROUP)
BROKEN_GROUPS: Any = SimpleNamespace(make=raise_bug)

CASES: dict[str, tuple[Any, str, Callable[[Path], object]]] = {
    "a start time": (cgroups, "Path", lambda folder: cgroups._read_start_time(1)),
    "own groups": (cgroups, "re", lambda folder: cgroups._read_own_groups(PATH)),
    "mounts": (cgroups, "re", lambda folder: cgroups._read_mounts(PATH)),
    "memory control": (cgroups, "re", lambda folder: cgroups._gives_memory(PATH)),
    "a new group": (Path, "mkdir", lambda folder: cgroups.ControlGroups(folder, 2).make()),
    "a group to try": (Path, "mkdir", lambda folder: cgroups._can_create_groups(folder)),
    "no group": (cgroups, "re", lambda folder: cgroups._can_limit_memory(BROKEN_GROUPS)),
    "a group without limit": (cgroups, "re", lambda folder: cgroups._can_limit_memory(GROUPS)),
    "a group that stays": (cgroups, "re", lambda folder: cgroups._remove_group(PATH)),
    "a limit": (cgroups, "re", lambda folder: cgroups._set_limit(GROUP, 1)),
    "a zygote's group": (cgroups, "re", lambda folder: cgroups._make_zygote_group(GROUPS, 1)),
    "a report of tests": (grading, "msgspec", lambda folder: grading.decode_report(RESULT)),
    "an expected value": (grading, "re", lambda folder: grading._format_expected(Unprintable())),
    "a value": (grading, "same_value", lambda folder: grading._make_value_check(1, 0.0)(RESULT)),
    "a message to a guest": (guest, "re", lambda folder: make_channel().send({}, 1.0)),
    "a message of a guest": (guest, "re", lambda folder: make_channel()._fill()),
    "the end of a guest": (
        guest,
        "re",
        lambda folder: make(guest.Guest, _control=SimpleNamespace(receive=raise_bug)).wait_for_exit(),
    ),
    "the frames of a guest": (guest, "re", lambda folder: read_channel()),
    "a survey": (isolation.subprocess, "run", lambda folder: isolation.survey_paths("no python", ("p",), ())),
    "a folder": (isolation.kernel, "open_without_links", lambda folder: isolation._open_folder("/a", "/a")),
    "a lock": (isolation.fcntl, "flock", lambda folder: isolation._lock_folder("/a", 0, 0)),
    "user ids": (launcher, "Path", lambda folder: launcher.uid_range()),
    "a payload": (launcher, "make_payload", lambda folder: make_launcher().launch("run", Limits())),
    "a name": (limits, "re", lambda folder: limits._encode_name(PATH)),
    "a number": (outputs, "Decimal", lambda folder: outputs.Rule(tolerance=0.1)._same_number("1.0", "2.0")),
    "two numbers": (outputs, "are_near", lambda folder: outputs._is_near(1.0, 2.0, 0.1)),
    "a file of a request": (server, "b64decode", lambda folder: server.decode_file("a", "")),
    "a request": (server, "msgspec", lambda folder: server.parse_request(b"", server.RunRequest)),
    "limits of a request": (server, "check_bounds", lambda folder: server.merge_limits(Limits(), {})),
    "a worker": (
        session,
        "re",
        lambda folder: make(session.SerialQueue, _pool=SimpleNamespace(submit=raise_bug))._start_worker(),
    ),
    "a frame": (
        session_state,
        "_frame_decoder",
        lambda folder: make(session_state.MessageExchange)._handle_frame(b""),
    ),
    "a turn's message": (session_state, "re", lambda folder: exchange().send({})),
    "a turn's reply": (session_state, "re", lambda folder: exchange().read_reply()),
    "a held call": (session_state.fcntl, "ioctl", lambda folder: hold_calls().next_call()),
    "an answer to a call": (
        session_state.fcntl,
        "ioctl",
        lambda folder: hold_calls().allow(session_state.HeldSyscall(1, 1, 1, 1)),
    ),
    "a caller": (
        os,
        "pidfd_open",
        lambda folder: hold_calls().open_caller(session_state.HeldSyscall(1, 1, 1, 1)),
    ),
    "memory": (supervision, "open", lambda folder: own_process().read_memory()),
    "an exit code": (supervision, "Path", lambda folder: own_process().exit_code()),
    "a clock": (supervision.time, "clock_gettime", lambda folder: supervision.read_cpu_s(1)),
    "a state": (supervision, "Path", lambda folder: supervision.is_dead(1)),
    "children": (os, "listdir", lambda folder: supervision.list_children(1)),
    "a file of a process": (supervision, "open", lambda folder: supervision._read_file("x")),
    "a thread": (os, "sched_getaffinity", lambda folder: supervision._release_thread(1, set())),
    "threads": (os, "listdir", lambda folder: supervision._list_threads(1)),
    "a guest of bubblewrap": (bubblewrap, "re", lambda folder: run_guest()),
    "a connection": (remote, "re", lambda folder: ask_remote()),
    "an answer": (remote, "msgspec", lambda folder: remote._decode(b"", dict)),
    "a refusal": (remote, "msgspec", lambda folder: remote._make_error(400, b"", "h")),
    "a ping": (zygote, "re", lambda folder: make(zygote.ZygoteProvider, launch=raise_bug).ping()),
}


@pytest.mark.parametrize("what", CASES)
def test_a_mistake_of_ours_says_nothing_of_a_guest(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owner, name, use = CASES[what]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Buggy(), raising=False)
        with pytest.raises(Bug):
            use(tmp_path)


def test_a_caller_that_cannot_be_looked_up_for_an_unknown_reason_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = os.dup(0)
    monkeypatch.setattr(os, "pidfd_open", lambda pid: handle)
    monkeypatch.setattr(session_state.fcntl, "ioctl", raise_bug)
    try:
        with pytest.raises(Bug):
            hold_calls().open_caller(session_state.HeldSyscall(1, 1, 1, 1))
    finally:
        os.close(handle)


def test_a_process_whose_threads_cannot_be_listed_for_an_unknown_reason_is_not_said_to_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "_is_thread_exiting", lambda path: True)
    monkeypatch.setattr(os, "listdir", raise_bug)
    with pytest.raises(Bug):
        supervision.is_exiting(1)


def test_a_pipe_that_breaks_for_an_unknown_reason_is_not_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Bug):
        read_pipe(tmp_path, monkeypatch)


@pytest.mark.parametrize("broken", ["HostFolder", "Guest"])
def test_a_launch_that_a_mistake_of_ours_ends_is_not_a_broken_sandbox(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    closed: list[str] = []
    folder = SimpleNamespace(trees=[], close=lambda: closed.append("folder"))
    found = SimpleNamespace(send_descriptors=raise_bug, close=lambda: closed.append("guest"))
    monkeypatch.setattr(launcher, "HostFolder", lambda path: folder)
    monkeypatch.setattr(launcher, "Guest", lambda *_: found)
    monkeypatch.setattr(launcher, "make_payload", lambda *_: os.dup(0))
    monkeypatch.setattr(launcher, "make_stdin", lambda *_: -1)
    with pytest.raises(Bug):
        make_launcher().launch("run", Limits(), folder="/a" if broken == "HostFolder" else None)
    assert closed == (["folder"] if broken == "HostFolder" else [])


def make_box(**fields: object) -> Any:
    return make(sandbox.Sandbox, remote=None, _launchers=set(), **fields)


def test_a_launcher_in_which_a_mistake_of_ours_happened_is_not_used_again() -> None:
    closed: list[str] = []
    box = make_box(_idle_launchers=queue.Queue())
    used = make(type("Launcher", (), {}), alive=True, close=lambda: closed.append("launcher"))
    box._idle_launchers.put(used)
    with pytest.raises(Bug):
        box.use_launcher(raise_bug)
    assert (closed, box._idle_launchers.get_nowait()) == (["launcher"], None)


def test_a_session_that_a_mistake_of_ours_ends_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def get_launcher() -> Any:
        asked.append("launcher")
        return SimpleNamespace(alive=False)

    monkeypatch.setattr(sandbox, "PersistentState", raise_bug)
    with pytest.raises(Bug):
        make_box(_session_pool=SimpleNamespace(get_launcher=get_launcher))._begin_session(Limits(), False, {}, None)
    assert asked == ["launcher"]


def test_a_server_answers_nothing_for_a_mistake_of_ours() -> None:
    served = make(server.SandboxServer, _check_token=lambda request: None, _under_way=0, _room=1)

    async def read() -> bytes:
        return b""

    request: Any = SimpleNamespace(read=read, match_info={})
    with pytest.raises(Bug):
        asyncio.run(served._make_handler(raise_bug_later)(request))
    assert served._under_way == 0
    served._box = SimpleNamespace(limits=Limits(), run=raise_bug_later)
    with pytest.raises(Bug):
        asyncio.run(served._run_code(b'{"code": "1", "language": "python"}', ""))


def test_cases_that_a_mistake_of_ours_spoils_are_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    break_name(monkeypatch, server, "unpack")
    asked = server.CallsGradeRequest(code="", entry="f", cases=[])  # type: ignore[arg-type]
    with pytest.raises(Bug):
        asyncio.run(asked.grade(Buggy(), Limits()))  # type: ignore[arg-type]


def test_a_level_that_a_mistake_of_ours_spoils_is_not_skipped() -> None:
    made = make(zygote.ZygoteFactory, _start_zygote=raise_bug, _list_levels=lambda: iter([{"level": "a"}]))
    made._requirements = None
    with pytest.raises(Bug):
        made._choose({})
