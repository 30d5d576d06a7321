"""Control groups on plain files: what is written and read, in either version of the hierarchy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import Limits, cgroups
from rollbook.sandbox.cgroups import CgroupTimer, ControlGroup, ControlGroups, MemoryAccount, MemoryCounts, ZygoteMemory

MB = 1 << 20


@pytest.fixture(autouse=True)
def wait_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of these groups keep their folders from being removed."""
    monkeypatch.setattr(cgroups, "REMOVE_S", 0.02)


class Files(ControlGroup):
    """A group whose files keep what was written, in order."""

    def __init__(self, folder: Path, version: int, cpu_path: Path | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.written: list[tuple[str, str]] = []
        super().__init__(folder, version, cpu_path)

    def _write(self, name: str, text: str) -> None:
        self.written.append((name, text))
        (self._path / name).write_text(text)

    def fill(self, **texts: object) -> None:
        for name, text in texts.items():
            (self._path / name.replace("__", ".")).write_text(str(text))


def test_a_limit_of_version_2_is_of_memory_without_swap(tmp_path: Path) -> None:
    group = Files(tmp_path / "g", 2)
    group.set_limit(5)
    group.set_limit(5)
    assert group.written == [("memory.max", "5"), ("memory.swap.max", "0")]


def test_a_limit_of_version_1_never_exceeds_the_one_with_swap(tmp_path: Path) -> None:
    group = Files(tmp_path / "g", 1)
    both, alone, peak = "memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
    for size, names in ((5, [both, alone]), (9, [both, alone]), (9, []), (7, [alone, both])):
        group.written.clear()
        group.set_limit(size)
        assert group.written == [(name, str(size)) for name in names] + ([(peak, "0")] if names else [])


def test_a_limit_with_swap_that_the_kernel_does_not_have_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "g" / "memory.memsw.limit_in_bytes").mkdir(parents=True)
    group = ControlGroup(tmp_path / "g", 1)
    group.set_limit(5)
    assert (tmp_path / "g" / "memory.limit_in_bytes").read_text() == "5"
    (tmp_path / "g" / "memory.limit_in_bytes").unlink()
    (tmp_path / "g" / "memory.limit_in_bytes").mkdir()
    with pytest.raises(OSError, match="directory"):
        group.set_limit(6)


def test_counts_of_version_2_are_the_kernels(tmp_path: Path) -> None:
    group = Files(tmp_path / "g", 2)
    group.fill(memory__events="low 0\noom 3\noom_kill 2\n", memory__current=77)
    assert group.last_counts == MemoryCounts(0, 0)
    assert group.read_counts() == group.last_counts == MemoryCounts(2, 3)
    assert group.used_bytes() == 77
    group.fill(memory__events="low 0\n")
    assert group.read_counts() == MemoryCounts(0, 0)


def test_version_1_is_full_where_less_than_a_megabyte_is_left(tmp_path: Path) -> None:
    group = Files(tmp_path / "g", 1)
    group.set_limit(10 * MB)
    for peak, hits in ((9 * MB + 1, 1), (9 * MB, 1), (10 * MB, 2), (0, 2)):
        group.fill(memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4\n", memory__max_usage_in_bytes=peak)
        assert group.read_counts() == MemoryCounts(4, hits)
        assert group._read("memory.max_usage_in_bytes") == "0"
    group.fill(memory__usage_in_bytes=78)
    assert group.used_bytes() == 78


def test_the_clock_is_that_of_the_version(tmp_path: Path) -> None:
    assert Files(tmp_path / "two", 2).clock == CgroupTimer(tmp_path / "two" / "cpu.stat", 1e6)
    assert Files(tmp_path / "one", 1).clock is None
    assert Files(tmp_path / "one", 1, tmp_path).clock == CgroupTimer(tmp_path / "cpuacct.usage", 1e9)
    for text, seconds in (("usage_usec 2500000\nuser_usec 1\n", 2.5), ("1500000\n", 1.5)):
        (tmp_path / "clock").write_text(text)
        assert CgroupTimer(tmp_path / "clock", 1e6).cpu_s() == seconds


def test_a_group_is_entered_and_removed_with_its_clock(tmp_path: Path) -> None:
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    groups = ControlGroups(tmp_path / "memory", 1, tmp_path / "cpu")
    group, other = groups.make(clock=True), groups.make()
    names = [sorted(os.listdir(tmp_path / name)) for name in ("memory", "cpu")]
    assert (len(names[0]), len(names[1])) == (2, 1)
    assert all(name.startswith(cgroups.owner_prefix()) for name in names[0])
    for path in (tmp_path / "memory" / names[1][0], tmp_path / "cpu" / names[1][0]):
        (path / "cgroup.procs").touch()
    group.enter(7)
    assert (tmp_path / "memory" / names[1][0] / "cgroup.procs").read_text() == "7"
    handles = group.open_procs_files()
    assert len(handles) == 2
    for handle in handles:
        os.close(handle)
    for path in tmp_path.rglob("cgroup.procs"):
        path.unlink()
    group.remove()
    other.remove()
    group.remove()
    assert [os.listdir(tmp_path / name) for name in ("memory", "cpu")] == [[], []]


def test_a_group_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    with pytest.raises(SandboxError, match="no control group could be made"):
        ControlGroups(tmp_path / "memory", 1, tmp_path / "none").make(clock=True)
    assert os.listdir(tmp_path / "memory") == []


def test_a_folder_is_tried_before_it_is_used(tmp_path: Path) -> None:
    assert not cgroups._can_create_groups(tmp_path / "none")
    assert cgroups._can_create_groups(tmp_path)
    assert not cgroups._can_limit_memory(ControlGroups(tmp_path / "none", 2))
    assert not cgroups._can_limit_memory(ControlGroups(tmp_path, 1))  # no counts can be read
    assert cgroups._remove_group(tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and not any(path.iterdir())] == []


def test_who_ran_out_of_memory_is_told_from_the_machine(tmp_path: Path) -> None:
    group = Files(tmp_path / "g", 2)
    account = MemoryAccount(group, 0, 0)
    for kills, hits, found in ((0, 0, False), (0, 1, False), (1, 2, True), (1, 2, False)):
        group.fill(memory__events=f"oom {hits}\noom_kill {kills}\n")
        assert account.ran_out_of_memory() is found
    group.fill(memory__events="oom 2\noom_kill 2\n")
    with pytest.raises(SandboxError, match="the memory of this machine or job was used up, not its own limit"):
        account.ran_out_of_memory()


def test_a_limit_is_renewed_in_steps_on_top_of_what_is_in_use(tmp_path: Path) -> None:
    group = Files(tmp_path / "g", 2)
    account = MemoryAccount(group, 3 * MB, 0)
    limits = Limits(memory_mb=64, files_mb=16, processes=2)
    fixed = 3 + 64 + 16 + 8 + 4 * 2
    for own_mb, step_mb in ((0.0, 0), (0.1, 8), (8.0, 8), (8.1, 16)):
        account.renew_limit(limits, own_mb)
        assert group.written[-2] == ("memory.max", str((fixed + step_mb) * MB))


class Groups(ControlGroups):
    """Groups that are plain files."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, 2)
        self.made: list[tuple[Files, bool]] = []

    def make(self, clock: bool = False) -> Files:
        group = Files(self._base / str(len(self.made)), 2)
        group.fill(memory__current=5 * MB, cgroup__procs="")
        self.made.append((group, clock))
        return group


@pytest.mark.parametrize(
    ("role", "processes", "group", "limit_mb", "spare", "own"),
    [
        ("run", 1, 0, 2 * 5, cgroups.STACKS_MB, False),
        ("examiner", 1, 0, 2 * 5, 0, False),
        ("candidate", 1, 1, 5, 0, False),
        ("session", 1, 1, 5, cgroups.STACKS_MB, True),
        ("snapshot", 1, 1, 5, cgroups.STACKS_MB, True),
        ("candidate", 2, 1, 5, cgroups.STACKS_MB, True),
    ],
)
def test_every_role_has_its_group_and_limit(
    tmp_path: Path, role: str, processes: int, group: int, limit_mb: int, spare: int, own: bool
) -> None:
    groups, limits = Groups(tmp_path), Limits(memory_mb=64, files_mb=16, processes=processes)
    memory = ZygoteMemory(groups, 7)
    assert memory.grouped
    assert groups.made[0][0].written == [("cgroup.procs", "7")]
    memory.set_baseline()
    account = memory.open_account(role, limits)
    assert account
    made, clock = groups.made[group]
    assert (len(groups.made), clock) == (group + 1, processes > 1)
    assert made.written[-2] == ("memory.max", str((limit_mb + 64 + 16 + 8 + 4 * processes) * MB))
    assert account.spare_mb == spare
    assert (account.clock is not None) is own
    assert len(account.procs_files) == (group == 1)
    account.close()
    assert account.procs_files == []


def test_candidates_share_one_group(tmp_path: Path) -> None:
    groups = Groups(tmp_path)
    memory = ZygoteMemory(groups, 7)
    for _ in range(2):
        account = memory.open_account("candidate", Limits())
        assert account
        account.close()
    assert len(groups.made) == 2


def test_without_groups_there_are_no_accounts() -> None:
    memory = ZygoteMemory(None, 7)
    memory.set_baseline()
    assert not memory.grouped
    assert memory.open_account("run", Limits()) is None
    memory.close()


@pytest.mark.parametrize(
    ("root", "path", "found"),
    [
        ("/", "/a/b", "/point/a/b"),
        ("/a", "/a/b", "/point/b"),
        ("/other", "/a/b", "/point/a/b"),
        ("/a/b", "/a/b", "/point"),
    ],
)
def test_a_group_is_found_below_a_mount_that_shows_a_part(root: str, path: str, found: str) -> None:
    mount = f"31 20 0:26 {root} /point rw shared:1 - cgroup cgroup rw,memory".split()
    assert cgroups._locate_group(mount, path) == Path(found)


def test_files_that_cannot_be_read_name_no_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cgroups.CGROUP_ENV, raising=False)
    assert cgroups.list_memory_folders(tmp_path) == []
    assert cgroups.list_cpu_folders(tmp_path) == []
    assert cgroups.list_mount_points(tmp_path) == []
    assert cgroups._list_folders(tmp_path / "none") == []
    assert list(cgroups.find_leftovers(tmp_path / "none")) == []


def test_folders_of_the_dead_that_cannot_be_removed_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = cgroups.owner_prefix().replace(f"-{os.getpid()}-", f"-{os.getpid()}-9")
    for number in range(2):
        (tmp_path / f"{dead}{number}").mkdir()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "of another user")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refuse)
        cgroups.remove_stale_folders(tmp_path)
    assert len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (OSError("read only"), SandboxError, "the memory of a guest cannot be limited: read only"),
        (KeyError("a bug"), KeyError, "^'a bug'$"),
    ],
)
def test_a_group_of_a_guest_that_cannot_be_limited_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception], message: str
) -> None:
    groups = Groups(tmp_path)
    memory = ZygoteMemory(groups, 7)
    removed: list[ControlGroup] = []

    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Files, "set_limit", refuse)
    monkeypatch.setattr(Files, "remove", lambda group: removed.append(group))
    with pytest.raises(raised, match=message):
        memory.open_account("session", Limits())
    assert removed == [groups.made[1][0]]


def test_the_groups_of_a_zygote_are_removed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups(tmp_path)
    memory = ZygoteMemory(groups, 7)
    removed: list[ControlGroup] = []
    monkeypatch.setattr(Files, "remove", lambda group: removed.append(group))
    own = memory.open_account("session", Limits())
    shared = memory.open_account("candidate", Limits())
    assert own
    assert shared
    own.close()
    shared.close()
    assert removed == [groups.made[1][0]]  # only what belongs to the guest alone
    memory.close()
    assert removed[1:] == [groups.made[0][0], groups.made[2][0]]


def test_a_group_that_is_busy_is_removed_as_soon_as_it_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "REMOVE_S", 10.0)
    group = ControlGroup(tmp_path / "g", 2)
    (tmp_path / "g" / "child").mkdir(parents=True)
    sleeps: list[float] = []

    def end_child(seconds: float) -> None:
        sleeps.append(seconds)
        (tmp_path / "g" / "child").rmdir()

    monkeypatch.setattr(cgroups.time, "sleep", end_child)
    group.remove()
    assert (sleeps, (tmp_path / "g").exists()) == ([0.005], False)


def test_leftovers_are_looked_for_below_other_folders_but_not_in_groups_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = cgroups.owner_prefix().replace(f"-{os.getpid()}-", f"-{os.getpid()}-9")
    own = f"{cgroups.owner_prefix()}0"
    for name in (f"{dead}0", f"a/b/{dead}1", f"{own}/{dead}2", f"{dead}3/busy"):
        (tmp_path / name).mkdir(parents=True)
    cgroups.remove_stale_groups(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == sorted(["a", "a/b", own, f"{own}/{dead}2", f"{dead}3", f"{dead}3/busy"])
    (tmp_path / "a" / "b" / f"{dead}4").mkdir()
    monkeypatch.setattr(cgroups, "MAX_FOLDERS", 1)
    cgroups.remove_stale_groups(tmp_path)
    assert (tmp_path / "a" / "b" / f"{dead}4").exists()  # too many folders to look into


def test_the_name_of_an_owner_tells_its_process() -> None:
    prefix = cgroups.owner_prefix()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    assert prefix == f"rollbook-{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}-{fields[19]}-"
    assert cgroups._read_start_time(1 << 30) == 0


def test_groups_are_made_where_memory_can_be_limited_with_a_clock_in_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    able: set[Path] = set()
    cleared: list[Path] = []
    (tmp_path / "cpu").mkdir()
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setattr(cgroups, "list_mount_points", lambda: [tmp_path])
    monkeypatch.setattr(cgroups, "remove_stale_groups", cleared.append)
    monkeypatch.setattr(cgroups, "list_cpu_folders", lambda: [tmp_path / "none", tmp_path / "cpu"])
    monkeypatch.setattr(cgroups, "list_memory_folders", lambda: [(two, 2), (one, 1)])
    monkeypatch.setattr(cgroups, "_can_limit_memory", lambda groups: groups._base in able)
    assert cgroups.find_control_groups() is None
    able.add(one)
    found = cgroups.find_control_groups()
    assert found
    assert (found._base, found._version, found._cpu_base) == (one, 1, tmp_path / "cpu")
    able.add(two)
    found = cgroups.find_control_groups()
    assert found
    assert (found._base, found._version, found._cpu_base) == (two, 2, None)
    assert cleared == [tmp_path] * 3


def test_a_group_that_accepts_a_limit_can_be_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[ControlGroup] = []
    monkeypatch.setattr(Files, "remove", lambda group: removed.append(group))
    groups = Groups(tmp_path)
    monkeypatch.setattr(Files, "read_counts", lambda group: MemoryCounts(0, 0))
    assert cgroups._can_limit_memory(groups) is True
    assert groups.made[0][0].written[0] == ("memory.max", str(1 << 30))
    monkeypatch.setattr(Files, "read_counts", lambda group: group._read("none"))
    assert cgroups._can_limit_memory(groups) is False
    assert removed == [made for made, _ in groups.made]
