"""Who is gone: by their own word, by their process, or by their silence."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rollbook.book.heartbeats import make_presence, read_presences, read_start_time, write_heartbeat
from rollbook.book.leases import WorkerMonitor
from rollbook.core import Held
from support.books import make_book


def test_a_heartbeat_moves_the_counter(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    presence = make_presence(1)
    write_heartbeat(run, presence)
    write_heartbeat(run, presence)
    assert read_presences(run)[presence.id].counter == 2


def test_heartbeats_after_the_first_make_no_names_and_a_shorter_one_leaves_nothing_of_a_longer(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    presence = make_presence(1)
    write_heartbeat(run, presence)
    path = run / "workers" / f"{presence.id}.json"
    before = path.stat().st_ino
    for chunks in ({n: Held(n) for n in range(50)}, {}):
        presence.chunks = chunks
        write_heartbeat(run, presence)
        assert read_presences(run)[presence.id] == presence
    assert path.stat().st_ino == before
    path.unlink()
    write_heartbeat(run, presence)
    assert read_presences(run)[presence.id].counter == 4


def test_ids_are_never_reused() -> None:
    assert len({make_presence(1).id for _ in range(100)}) == 100


def test_a_living_process_of_this_machine_is_gone_only_when_it_is_silent_for_too_long() -> None:
    now = [0.0]
    watch = WorkerMonitor(clock=lambda: now[0], stale_s=180)
    presence = make_presence(1)
    assert not watch.is_gone(presence.id, presence)
    now[0] = 179
    assert not watch.is_gone(presence.id, presence)
    now[0] = 181
    assert watch.is_gone(presence.id, presence)


def test_in_a_copy_of_a_book_nobody_of_the_original_is_at_work(tmp_path: Path) -> None:
    run, copy = make_book(tmp_path / "run").path, make_book(tmp_path / "copy").path
    presence = make_presence(1, run)
    assert not WorkerMonitor(run).is_gone(presence.id, presence)
    assert WorkerMonitor(copy).is_gone(presence.id, presence)


def test_who_works_on_the_same_directory_through_another_mount_is_at_work(tmp_path: Path) -> None:
    """The second mount has another device, and on some file systems other inodes: only its silence is a sign."""
    run, now = make_book(tmp_path / "run").path, [0.0]
    here = make_presence(1, run)
    inode = here.place.partition(":")[2]
    for place in (f"12345:{inode}", "12345:67890"):
        watch = WorkerMonitor(run, lambda: now[0], stale_s=180)
        presence = msgspec.structs.replace(here, place=place)
        assert not watch.is_gone(presence.id, presence)
        now[0] += 181
        assert watch.is_gone(presence.id, presence)


def test_a_dead_process_of_this_machine_is_gone_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    ghost = msgspec.structs.replace(make_presence(1), pid=child.pid, born=read_start_time(child.pid) or "1")
    child.wait(timeout=30)
    assert WorkerMonitor().is_gone(ghost.id, ghost)


def test_a_reused_pid_is_told_apart_by_its_birth() -> None:
    presence = msgspec.structs.replace(make_presence(1), pid=os.getpid(), born="1")
    assert WorkerMonitor().is_gone(presence.id, presence)


def test_a_worker_elsewhere_is_gone_after_its_counter_stood_still_for_long_enough() -> None:
    now = [0.0]
    watch = WorkerMonitor(clock=lambda: now[0], stale_s=180)
    far = msgspec.structs.replace(make_presence(1), host="elsewhere", counter=7)
    assert not watch.is_gone(far.id, far)
    now[0] = 179
    assert not watch.is_gone(far.id, far)
    far.counter = 8
    now[0] = 200
    assert not watch.is_gone(far.id, far)
    now[0] = 380
    assert watch.is_gone(far.id, far)


def test_who_left_is_gone() -> None:
    assert WorkerMonitor().is_gone("x", msgspec.structs.replace(make_presence(1), state="left"))


@pytest.mark.parametrize(
    ("host", "short"),
    [("gpu-7.cluster.example", "gpu-7"), ("a_b c", "abc"), ("x" * 30, "x" * 24), ("___", "host"), ("", "host")],
)
def test_a_worker_is_named_after_its_machine(monkeypatch: pytest.MonkeyPatch, host: str, short: str) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    first, second = make_presence(1), make_presence(1)
    assert re.fullmatch(rf"{short}-{os.getpid()}-[0-9a-f]{{8}}", first.id)
    assert first.id != second.id
    assert (first.host, first.pid, first.round, first.place) == (host, os.getpid(), 1, "")
