"""Who is gone: by their own word, by their process, or by their silence."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollbook.book.claim_order import read_lengths
from rollbook.book.heartbeats import (
    WorkerGone,
    count_workers,
    is_copy,
    list_joined_and_gone,
    make_presence,
    next_heartbeat_s,
    publish_worker_gone,
    read_in_flight,
    read_presence,
    read_presences,
    read_start_time,
    read_worker_gone,
    write_heartbeat,
)
from rollbook.book.leases import STALE_S, WorkerMonitor
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


@pytest.mark.skipif(not Path("/proc/self/ns/pid").is_symlink(), reason="needs Linux")
def test_a_worker_names_its_machine_by_its_boot_and_its_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    presence = make_presence(1)
    assert presence.namespace == os.readlink("/proc/self/ns/pid")
    assert presence.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip() != ""
    assert presence.born == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]

    def refuse(_: object) -> str:
        raise OSError

    monkeypatch.setattr(os, "readlink", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    presence = make_presence(1)
    assert (presence.namespace, presence.boot, presence.born) == (sys.platform, "", "")


@pytest.mark.parametrize("field", ["host", "boot", "namespace"])
def test_a_process_of_another_machine_is_not_looked_for_on_this_one(field: str) -> None:
    far = msgspec.structs.replace(make_presence(1), born="1", **{field: "elsewhere"})
    assert not WorkerMonitor().is_gone(far.id, far)
    near = msgspec.structs.replace(far, **{field: getattr(make_presence(1), field)})
    assert WorkerMonitor().is_gone(near.id, near)


def test_a_process_whose_birth_nobody_knows_is_gone_only_when_it_is_silent() -> None:
    unborn = msgspec.structs.replace(make_presence(1), born="")
    assert not WorkerMonitor().is_gone(unborn.id, unborn)


def test_a_zombie_is_no_worker() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it ended, and nobody has asked how
        assert read_start_time(child.pid) == ""
    finally:
        child.wait(timeout=30)
    assert read_start_time(os.getpid()) != ""


@pytest.mark.parametrize(
    ("place", "other", "copied"),
    [("1:2", "1:3", True), ("1:2", "1:2", False), ("1:2", "2:3", False), ("1:2", "2:2", False)],
)
def test_only_on_one_device_are_two_inodes_two_folders(place: str, other: str, copied: bool) -> None:
    assert is_copy(place, other) is copied


@pytest.mark.parametrize(("age", "pause"), [(0, 5), (60, 5), (61, 61 / 12), (120, 10), (360, 30), (361, 30)])
def test_heartbeats_of_an_old_worker_are_rarer(age: float, pause: float) -> None:
    assert next_heartbeat_s(age) == pause
    assert next_heartbeat_s(age, 7) == max(7, pause)


def test_a_heartbeat_that_is_being_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_book(tmp_path / "run").path
    presence = make_presence(1)
    write_heartbeat(run, presence)
    whole = (run / "workers" / f"{presence.id}.json").read_bytes()
    for torn, found in ((2, presence), (3, None)):
        contents = iter([b"{"] * torn + [whole])
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", lambda _: next(contents))  # noqa: B023
            assert read_presence(run, presence.id) == found
    assert read_presence(run, "nobody") is None


def test_workers_are_counted_and_listed_by_the_names_of_their_files(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    for name in ("a.json", "b.json", "e.json", "b.gone", "c.gone", "a.seats", ".d.json", ".d.gone"):
        (run / "workers" / name).write_bytes(b"{}")
    assert list_joined_and_gone(run) == ({"a", "b", "e"}, {"b", "c"})
    assert read_presences(run) == {}
    (run / "workers" / ".d.json").unlink()
    assert count_workers(run) == 3


def test_only_the_first_record_of_a_death_stays(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    first, second = WorkerGone(3, {0: 1}), WorkerGone(4, {1: 2})
    for record in (first, second):
        publish_worker_gone(run, "w", record)
    assert read_worker_gone(run, "w") == first
    (run / "workers" / "w.gone").write_bytes(b"{")
    assert read_worker_gone(run, "w") is None
    assert read_worker_gone(run, "nobody") is None


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("workers/w.json", lambda run: read_presence(run, "w")),
        ("workers/w.gone", lambda run: read_worker_gone(run, "w")),
        ("workers/w.seats", lambda run: read_in_flight(run, "w")),
        ("rounds/lengths-0001.json", lambda run: read_lengths(run, 1)),
    ],
)
def test_a_file_that_the_disk_does_not_give_is_not_taken_for_a_missing_one(
    tmp_path: Path, name: str, read: Callable[[Path], object]
) -> None:
    run = make_book(tmp_path / "run").path
    assert not read(run)
    (run / name).mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        read(run)


@pytest.mark.parametrize(
    ("stat", "start"),
    [
        ("7 (python) S " + " ".join(map(str, range(1, 20))), "19"),
        ("7 (python) S " + " ".join(map(str, range(1, 19))), ""),
        ("7 (python) S " + " ".join(map(str, range(1, 30))), "19"),
        ("7 (a) S 1) R " + " ".join(map(str, range(1, 30))), "19"),
        ("7 (python) Z " + " ".join(map(str, range(1, 30))), ""),
        ("", ""),
    ],
)
def test_the_start_of_a_process_is_the_twentieth_field_behind_its_name(
    monkeypatch: pytest.MonkeyPatch, stat: str, start: str
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda path: stat if path == Path("/proc/7/stat") else "")
    assert read_start_time(7) == start


def test_how_long_a_worker_may_be_silent_is_three_minutes_unless_it_is_said() -> None:
    assert WorkerMonitor().stale_s == STALE_S
    now = [0.0]
    watch = WorkerMonitor(clock=lambda: now[0], stale_s=5)
    far = msgspec.structs.replace(make_presence(1), host="elsewhere")
    for now[0], gone in ((0.0, False), (4.9, False), (5.0, True)):
        assert watch.is_gone(far.id, far) is gone
    assert not watch.is_gone("unread", None)
    now[0] = 10.0
    assert watch.is_gone("unread", None)
