"""What is read from control groups: kills because of memory, and the number of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.containers import control_groups
from rollbook.containers.control_groups import MemoryWatch, find_kill_count, has_too_many_processes, lift_cpu_quota


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


def test_kills_are_counted_and_a_group_that_is_gone_proves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    counts = tmp_path / "memory" / "a" / "memory.oom_control"
    counts.parent.mkdir(parents=True)
    counts.write_text("under_oom 0\noom_kill 0\n")
    watch = MemoryWatch("4:memory:/a\n")
    assert not watch.saw_kills()
    counts.write_text("under_oom 0\noom_kill 2\n")
    assert watch.saw_kills()
    counts.unlink()
    assert not watch.saw_kills()
    watch.close()


def test_the_root_that_a_container_sees_with_cgroup_v2_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_groups, "CGROUPS", tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill 2\n")
    assert not MemoryWatch("0::/\n").saw_kills()


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
