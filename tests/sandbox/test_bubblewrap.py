"""What bwrap is asked for, without bwrap: the options of a guest, and what its end means."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.errors import SandboxError, SandboxUnsupported
from rollbook.sandbox import Limits
from rollbook.sandbox.backends import bubblewrap
from rollbook.sandbox.backends.bubblewrap import BubblewrapProvider, find_loaders, make_bwrap_options
from rollbook.sandbox.guest import make_memory_file
from rollbook.sandbox.inner import filesystem
from rollbook.sandbox.inner.channel import Channel
from rollbook.sandbox.supervision import GuestProcess
from support.alive import eventually, open_fds

CONFIG = {"places": [], "paths": [], "packages": [], "hidden": [], "shown": []}


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BubblewrapProvider:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho cannot >&2\nexit 3\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return BubblewrapProvider(CONFIG, "/usr/bin/python3")


def test_without_bwrap_there_is_no_such_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SandboxError, match="bubblewrap is not installed: there is no bwrap on PATH"):
        BubblewrapProvider(CONFIG, "python")


def find_pairs(options: list[str], option: str) -> list[tuple[str, ...]]:
    size = {"--ro-bind": 2, "--symlink": 2, "--dev-bind": 2}.get(option, 1)
    return [tuple(options[at + 1 : at + 1 + size]) for at, each in enumerate(options) if each == option]


def test_places_are_seen_read_only_and_what_is_hidden_only_where_it_is_shown(tmp_path: Path) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    for name in ("a/shown", "b"):
        (folder / name).mkdir(parents=True)
    link.symlink_to("folder")
    hidden = [str(folder / "a"), str(folder / "none"), str(tmp_path), "/somewhere"]
    options = make_bwrap_options([str(folder), str(link)], hidden, [str(folder / "a" / "shown"), str(folder / "b")])
    assert find_pairs(options, "--ro-bind") == [(str(folder),) * 2, (str(folder / "a" / "shown"),) * 2]
    assert find_pairs(options, "--symlink") == [("folder", str(link))]
    assert find_pairs(options, "--tmpfs") == find_pairs(options, "--remount-ro") == [(str(folder / "a"),)]
    assert find_pairs(options, "--dev-bind") == [(f"/dev/{name}",) * 2 for name in filesystem.DEVICES]
    assert options[:7] == [
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    assert options[-2:] == ["--proc", "/proc"]


def test_loaders_are_those_that_exist_under_a_name_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "ld.so").touch()
    (tmp_path / "lib64").symlink_to("lib")
    names = [str(tmp_path / name) for name in ("lib/ld.so", "lib64/ld.so", "lib/none.so")]
    monkeypatch.setattr(bubblewrap, "LOADERS", names)
    assert find_loaders() == names[:1]


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (7, 7), (128, 128), (137, -9), (139, -11)])
def test_an_exit_code_above_128_is_a_signal(provider: BubblewrapProvider, code: int, ended: int) -> None:
    child = subprocess.Popen(["sh", "-c", f"exit {code}"])
    provider._running.add(child.pid)
    end = provider._wait_for_exit(child)
    assert end["ended"] == ended
    assert 0 <= end["cpu_s"] < 10
    assert end["peak_kb"] > 100
    assert (provider._running, child.returncode) == (set(), code)


def test_what_only_the_built_in_sandbox_can_do_is_refused(provider: BubblewrapProvider, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="sessions that take snapshots need the built-in sandbox"):
        provider.launch({"role": "snapshot"}, [])
    folder: Any = SimpleNamespace(path=tmp_path)
    with pytest.raises(SandboxUnsupported, match="only the built-in sandbox mounts folders of the host"):
        provider.mount(folder, 0)
    assert provider.open_account("run", Limits()) is None


def test_a_provider_is_alive_until_it_is_closed_and_then_its_guests_are_dead(provider: BubblewrapProvider) -> None:
    assert provider.ping()
    assert provider.isolation[:7] == ("bubblewrap", "pid", "mount", "network", "ipc", "user", "seccomp")
    child = subprocess.Popen(["sleep", "60"])
    gone = subprocess.Popen(["true"])
    gone.wait(10)
    provider._running |= {child.pid, gone.pid}
    provider.close()
    assert child.wait(10) == -9
    assert not provider.ping()


def test_a_bwrap_that_does_not_start_is_reported_with_its_own_words(provider: BubblewrapProvider) -> None:
    ours, theirs = socket.socketpair()
    standard = [os.open(os.devnull, os.O_RDWR) for _ in range(4)]
    provider.launch({"role": "run", "limits": {"files_mb": 1}}, [*standard, theirs.fileno()])
    for handle in standard:
        os.close(handle)
    theirs.close()
    control = Channel(ours.detach(), 20.0)
    message, _ = control.receive(0)
    control.close()
    assert message == {"failed": "bwrap did not start: cannot"}
    assert provider.read_last_output() == "cannot\n"
    assert eventually(lambda: not provider._running, 10), "its pid may be another process soon"


BWRAP = """#!{python}
import json, os, re, socket, struct, sys
CALL = r"main\\((\\d+), (\\d+), (\\d+), \\[(.*?)\\]\\)"
order, payload, announce, handles = re.search(CALL, sys.argv[-1]).groups()
said = {{"order": json.loads(os.read(int(order), 9999)), "payload": os.read(int(payload), 99).decode()}}
said |= {{"options": sys.argv[1:], "environ": list(os.environ)}}
os.write(1, json.dumps(said).encode())
os.write(int(handles.split(", ")[2]), b"err")
body = b'{{"born": true}}'
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", os.pidfd_open(os.getpid())))]
socket.socket(fileno=int(announce)).sendmsg([struct.pack("<I", len(body)) + body], rights)
sys.exit(7)
"""


def test_a_guest_is_announced_with_its_pidfd_and_its_end_is_reported(
    tmp_path: Path, provider: BubblewrapProvider
) -> None:
    (tmp_path / "bwrap").write_text(BWRAP.format(python=sys.executable))
    (out, out_end), (err, err_end), (ours, theirs) = os.pipe(), os.pipe(), socket.socketpair()
    given = [os.open(os.devnull, os.O_RDONLY), out_end, err_end, os.open(os.devnull, os.O_RDWR)]
    given.append(make_memory_file("payload", b"the payload"))
    before = len(open_fds())
    provider.launch({"role": "run", "limits": {"files_mb": 3}}, [*given, theirs.fileno()])
    theirs.close()
    control = Channel(ours.detach(), 20.0)
    begun, (pidfd,) = control.receive(1)
    assert begun == {"begun": True}
    assert GuestProcess(pidfd).has_ended(20)
    end, _ = control.receive()
    assert (end["ended"], end["peak_kb"] > 100, 0 <= end["cpu_s"] < 20) == (7, True, True)
    with pytest.raises(EOFError):
        control.receive()
    said = json.loads(os.read(out, 1 << 16))
    assert os.read(err, 9) == b"err"
    assert (said["payload"], said["order"]["role"], said["order"]["packages"]) == ("the payload", "run", [])
    options = said["options"]
    assert options[options.index("--size") + 1] == str(3 << 20)
    assert options[options.index("--size") + 2 : options.index("--")] == [
        "--tmpfs",
        filesystem.WORKING_FOLDER,
        "--remount-ro",
        "/",
    ]
    assert eventually(lambda: not provider._running, 10)
    os.close(pidfd)
    assert eventually(lambda: len(open_fds()) <= before, 10)
    control.close()
    for handle in (*given, out, err):
        os.close(handle)
