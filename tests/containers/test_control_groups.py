"""What is read from control groups: kills because of memory, and the number of processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from rollbook.containers import control_groups
from rollbook.containers.control_groups import (
    MemoryWatch,
    find_kill_count,
    has_too_many_processes,
    kill_entered,
    lift_cpu_quota,
)


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("5:cpu,cpuacct:/x\n4:memory:/a/b\n0::/a/b\n", "memory/a/b/memory.oom_control"),
        ("0::/a/b\n", "a/b/memory.events"),
        ("0::/\n", None),
        ("4:memory:/elsewhere\n", None),
        ("no groups\n:::\n", None),
    ],
)
def test_the_file_of_a_group_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, file: str | None
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    for name in ("memory/a/b/memory.oom_control", "a/b/memory.events"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert find_kill_count(groups) == (tmp_path / file if file else None)


def test_with_cgroup_v1_the_time_of_the_last_kill_is_known_also_after_the_group_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    counts = tmp_path / "memory" / "a" / "memory.oom_control"
    counts.parent.mkdir(parents=True)
    counts.write_text("under_oom 0\noom_kill 0\n")
    event = os.eventfd(0, os.EFD_NONBLOCK)
    monkeypatch.setattr(control_groups, "_request_events", lambda file: event)

    async def watch() -> None:
        memory = MemoryWatch("4:memory:/a\n")
        assert (memory.is_active, memory.last_kill_time()) == (True, None)
        os.eventfd_write(event, 1)
        await asyncio.sleep(0.1)
        killed = memory.last_kill_time()
        assert killed is not None
        assert abs(time.time() - killed) < 5
        counts.unlink()
        os.eventfd_write(event, 1)  # the kernel reports the end of the group
        await asyncio.sleep(0.1)
        assert memory.last_kill_time() == killed
        memory.close()

    asyncio.run(watch())


def test_with_cgroup_v2_a_change_of_the_counts_is_a_kill_only_if_their_number_grew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    counts = tmp_path / "a" / "memory.events"
    counts.parent.mkdir(parents=True)
    counts.write_text("max 0\noom_kill 0\n")

    async def watch() -> None:
        memory = MemoryWatch("0::/a\n")
        counts.write_text("max 7\noom_kill 0\n")
        await asyncio.sleep(0.1)
        assert (memory.is_active, memory.is_exact, memory.last_kill_time()) == (True, False, None)
        counts.write_text("max 8\noom_kill 1\n")
        await asyncio.sleep(0.1)
        assert memory.last_kill_time() is not None
        memory.close()

    asyncio.run(watch())


def test_the_root_that_a_container_sees_with_cgroup_v2_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill 2\n")
    assert not MemoryWatch("0::/\n").is_active


@pytest.mark.parametrize(("current", "most", "full"), [(5, "1024", False), (1000, "1024", True), (1000, "max", False)])
def test_processes_are_compared_with_their_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, current: int, most: str, full: bool
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    folder = tmp_path / "pids" / "a"
    folder.mkdir(parents=True)
    (folder / "pids.current").write_text(f"{current}\n")
    (folder / "pids.max").write_text(f"{most}\n")
    assert has_too_many_processes("3:pids:/a\n") is full
    assert not has_too_many_processes("3:pids:/b\n")


@pytest.mark.parametrize(
    ("groups", "file", "written"),
    [
        ("1:cpu:/a/b\n0::/\n", "cpu/a/b/cpu.cfs_quota_us", "-1"),
        ("0::/a/b\n", "a/b/cpu.max", "max"),
        ("0::/\n", "cpu.max", ""),  # our own group, in the view of a container
        ("1:cpu:/gone\n", "cpu/a/b/cpu.cfs_quota_us", ""),
    ],
)
def test_the_cpu_quota_of_a_group_is_lifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: str, file: str, written: str
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert lift_cpu_quota(groups) is bool(written)
    assert (tmp_path / file).read_text() == written


def test_processes_that_came_from_outside_are_killed_except_older_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    (tmp_path / "a").mkdir()
    entered, older = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    try:
        (tmp_path / "a" / "cgroup.procs").write_text(f"{entered.pid}\n{older.pid}\n")
        kill_entered("0::/a\n", {older.pid})
        assert entered.wait(10) == -9
        (tmp_path / "a" / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n{older.pid}\n")
        kill_entered("0::/a\n", {os.getpid(), os.getppid()})  # its parent, this test, is inside
        assert older.poll() is None
    finally:
        older.kill()
        older.wait()
    kill_entered("0::/gone\n")  # a group that has ended has no processes
