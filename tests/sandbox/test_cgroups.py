"""Control groups: found, made, limited and removed; those of a killed owner are removed by the next process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import Grader, Limits, Sandbox, cgroups
from rollbook.sandbox.cgroups import (
    CGROUP_ENV,
    ControlGroups,
    find_control_groups,
    list_cpu_folders,
    list_memory_folders,
    list_mount_points,
)
from rollbook.sandbox.supervision import GuestProcess, ProcessTreeClock
from support.alive import eventually

SEVERAL = Limits(seconds=3.0, memory_mb=64, processes=8)
CHILDREN = (
    "import os, time\n"
    "for _ in range(6):\n"
    "    if os.fork() == 0:\n"
    "        held = bytearray(b'x') * (40 << 20)\n"
    "        time.sleep(0.5)\n"
    "        os._exit(0)\n"
    "for _ in range(6): os.wait()\n"
    "print('done')\n"
)


@pytest.fixture
def groups() -> ControlGroups:
    control_groups = find_control_groups()
    if control_groups is None:
        pytest.skip("no control group may be made here")
    return control_groups


def list_own_groups(groups: ControlGroups) -> set[str]:
    """Return the names of the groups of this process, including those of sandboxes that a fixture keeps open."""
    bases = [groups._base, *([groups._cpu_base] if groups._cpu_base else [])]
    return {name for base in bases for name in os.listdir(base) if name.startswith(cgroups.owner_prefix())}


def accepts_a_limit(base: Path, version: int) -> bool:
    """Try by hand whether a group here can be limited."""
    group = base / f"by-hand-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        (group / ("memory.limit_in_bytes" if version == 1 else "memory.max")).write_text(str(1 << 30))
    except OSError:
        return False
    finally:
        group.rmdir()
    return True


def test_groups_are_made_in_the_first_folder_that_accepts_a_limit() -> None:
    able = [base for base, version in list_memory_folders() if accepts_a_limit(base, version)]
    found = find_control_groups()
    assert (found._base if found else None) == (able[0] if able else None)


def test_the_group_of_a_zygote_that_is_gone_is_removed(groups: ControlGroups) -> None:
    before = list_own_groups(groups)
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    with pytest.raises(SandboxError, match="the zygote could not be moved to its control group"):
        cgroups.ZygoteMemory(groups, gone.pid)
    assert list_own_groups(groups) == before


def test_what_processes_have_together_is_bounded(groups: ControlGroups) -> None:
    before = list_own_groups(groups)
    with Sandbox(SEVERAL, size=1) as box:
        result = box.run_sync(CHILDREN)
        assert result.status == "memory"
        assert result.error
        assert (result.error.type, "cgroup" in result.isolation) == ("OutOfMemory", True)
        assert box.run_sync("print(1)").stdout == "1\n"
        with box.session() as session:
            assert session.run_sync("x = 1").status == "ok"
            assert session.run_sync(CHILDREN).status == "memory"
            assert session.run_sync("x").value == "1"
        assert list_own_groups(groups) > before
    assert list_own_groups(groups) <= before


def test_a_memory_error_that_could_be_caught_is_told_apart(groups: ControlGroups) -> None:
    with Sandbox(Limits(memory_mb=64), size=1) as box:
        for code, kind in (("bytearray(10**9)", "MemoryError"), ("bytearray(b'x') * (200 << 20)", "OutOfMemory")):
            result = box.run_sync(code)
            assert result.error
            assert (result.status, result.error.type) == ("memory", kind)
        assert box.run_sync("try: bytearray(10**9)\nexcept MemoryError: print('caught')").stdout == "caught\n"


RESERVED = {
    "shared": "import mmap\nlen(mmap.mmap(-1, 4 << 30))",
    "private": (
        "import ctypes\nmmap = ctypes.CDLL(None).mmap\nmmap.restype = ctypes.c_void_p\n"
        "mmap(None, ctypes.c_size_t(300 << 20), 3, 0x22, -1, 0) < 1 << 63 or 1 / 0"
    ),
    "stacks": (
        "import threading\ntogether = threading.Barrier(51)\n"
        "for _ in range(50): threading.Thread(target=together.wait).start()\ntogether.wait()"
    ),
}


@pytest.mark.parametrize("snapshot", [None, False, True], ids=["run", "session", "snapshot"])
def test_what_is_only_reserved_does_not_count(groups: ControlGroups, snapshot: bool | None) -> None:
    with Sandbox(Limits(memory_mb=64), size=1) as box:
        for code in RESERVED.values():
            if snapshot is None:
                assert box.run_sync(code).status == "ok"
            else:
                with box.session(snapshot=snapshot) as session:
                    assert [session.run_sync(one).status for one in ("1", code, "1")] == ["ok"] * 3


SHARED = "import mmap\nheld = mmap.mmap(-1, 1 << 30)\nfor at in range(0, 1 << 30, 4096): held[at] = 1"


@pytest.mark.parametrize("snapshot", [None, False, True], ids=["run", "session", "snapshot"])
def test_what_is_used_does_however_it_is_had(groups: ControlGroups, snapshot: bool | None) -> None:
    with Sandbox(Limits(memory_mb=64), size=1) as box:
        for code in (SHARED, "held = []\nwhile True: held.append(bytearray(1 << 20))"):
            if snapshot is None:
                result = box.run_sync(code)
            else:
                with box.session(snapshot=snapshot) as session:
                    result = session.run_sync(code)
            assert (result.status, result.error and result.error.type) == ("memory", "OutOfMemory")
            assert result.peak_mb < 200


def test_graded_code_has_its_memory_once(groups: ControlGroups) -> None:
    """Shared memory is counted by the group alone, which it does not share with the tests."""
    code = "import mmap\ndef f(mb):\n    held = mmap.mmap(-1, mb << 20)\n"
    code += "    for at in range(0, mb << 20, 4096): held[at] = 1\n    return mb\n"
    with Sandbox(Limits(memory_mb=64), size=1) as box:
        verdicts = [Grader(box).function_sync(code, f"assert f({mb}) == {mb}", "f") for mb in (50, 150, 50)]
        assert [verdict.reason for verdict in verdicts] == ["passed", "memory", "passed"]


def test_nor_can_it_by_memory_that_forks_share(groups: ControlGroups) -> None:
    hoard = "import mmap\nheld{n} = mmap.mmap(-1, 40 << 20)\nfor at in range(0, 40 << 20, 4096): held{n}[at] = 1"
    with Sandbox(Limits(memory_mb=64), size=1) as box, box.session(snapshot=True) as session:
        results = [session.run_sync(hoard.format(n=n)) for n in range(4)]
        statuses = [result.status for result in results]
        assert statuses[0] == "ok"
        assert "memory" in statuses[1:]
        assert set(statuses) == {"ok", "memory"}
        assert session.run_sync("1").status == "ok"


def test_a_snapshot_cannot_grow_from_turn_to_turn(groups: ControlGroups) -> None:
    with Sandbox(Limits(memory_mb=64), size=1) as box, box.session(snapshot=True) as session:
        results = [session.run_sync(f"held{n} = bytearray(40 << 20)") for n in range(3)]
        assert [(result.status, result.state) for result in results] == [
            ("ok", "kept"),
            ("memory", "rolled back"),
            ("memory", "rolled back"),
        ]
        assert session.run_sync("del held0").status == "ok"
        assert session.run_sync("held1 = bytearray(40 << 20)").status == "ok"


BURN = (
    "import os, time\n"
    "def burn(seconds):\n"
    "    end = time.process_time() + seconds\n"
    "    while time.process_time() < end: pass\n"
    "def child(work):\n"
    "    if os.fork() == 0:\n"
    "        work()\n"
    "        os._exit(0)\n"
)
WAITED = BURN + "child(lambda: burn(0.1))\nos.wait()\nprint('done')"
ORPHAN = BURN + "child(lambda: child(lambda: burn(60)))\nos.wait()\ntime.sleep(60)"
UNSEEN = BURN + "import signal\nsignal.signal(17, signal.SIG_IGN)\nfor _ in range(60):\n  child(lambda: burn(0.05))\n"
UNSEEN += "  try: os.wait()\n  except OSError: pass\n"


@pytest.fixture(params=["by the group", "by looking"])
def counting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "by looking":
        monkeypatch.setattr("rollbook.sandbox.cgroups.find_control_groups", lambda: None)
    elif find_control_groups() is None:
        pytest.skip("no control group may be made here")
    return str(request.param)


def test_the_time_of_all_processes_counts(counting: str) -> None:
    limits = Limits(seconds=0.2, wall_seconds=30, processes=8)
    with Sandbox(limits, size=1) as box, box.session() as session:
        for run in (box.run_sync, session.run_sync):
            waited = run(WAITED)
            assert (waited.status, waited.stdout) == ("ok", "done\n")
            assert 0.07 <= waited.cpu_seconds < 0.2, "what /proc tells of the dead is cut to hundredths"
            for code in (ORPHAN, UNSEEN) if counting == "by the group" else (ORPHAN,):
                late = run(code)
                assert late.status == "timeout", late
                assert 0.2 <= late.cpu_seconds < 2
                assert late.seconds < 10


def test_a_process_that_is_gone_has_used_what_was_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    family = ProcessTreeClock(GuestProcess(os.pidfd_open(child.pid)))
    assert eventually(lambda: family.cpu_s() > 0.05)
    child.kill()
    child.wait(timeout=10)
    assert family.cpu_s() > 0.05


def test_full_is_given_where_there_is_a_group(groups: ControlGroups) -> None:
    with Sandbox(SEVERAL, size=1, require="full") as box:
        assert box.run_sync("1").status == "ok"


def test_the_next_one_clears_what_a_killed_owner_left(groups: ControlGroups, tmp_path: Path) -> None:
    code = (
        "import time\nfrom rollbook.sandbox import Sandbox\nfrom rollbook.sandbox.cgroups import owner_prefix\n"
        "with Sandbox(size=1) as box:\n    print(owner_prefix(), flush=True)\n    time.sleep(60)\n"
    )
    host = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert host.stdout
    name = host.stdout.readline().strip()
    left = lambda: [path for path in os.listdir(groups._base) if path.startswith(name)]  # noqa: E731
    assert name
    assert left()
    os.kill(host.pid, signal.SIGKILL)
    host.wait(timeout=10)
    host.stdout.close()
    assert eventually(lambda: find_control_groups() is not None and not left(), 10)


def test_what_the_dead_have_left_below_other_parents_goes_too(groups: ControlGroups) -> None:
    dead = cgroups.owner_prefix().replace(f"-{os.getpid()}-", f"-{os.getpid()}-9")
    bases = [groups._base, *([groups._cpu_base] if groups._cpu_base else [])]
    parents = [base / f"test-of-{cgroups.owner_prefix()}" for base in bases]
    try:
        for parent in parents:
            (parent / "below" / f"{dead}0").mkdir(parents=True)
        find_control_groups()
        assert [os.path.exists(parent / "below" / f"{dead}0") for parent in parents] == [False] * len(parents)
        assert all((parent / "below").exists() for parent in parents), "nothing else is touched"
    finally:
        for parent in parents:
            (parent / "below").rmdir()
            parent.rmdir()


def test_nothing_of_the_living_is_cleared(tmp_path: Path) -> None:
    (tmp_path / f"{cgroups.owner_prefix()}0").mkdir()
    (tmp_path / "rollbook-1-2-3-0").mkdir()  # of another pid namespace
    (tmp_path / "rollbook-something").mkdir()
    dead = cgroups.owner_prefix().replace(f"-{os.getpid()}-", f"-{os.getpid()}-9")
    (tmp_path / f"{dead}0" / "below").mkdir(parents=True)
    cgroups.remove_stale_folders(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(
        [f"{cgroups.owner_prefix()}0", "rollbook-1-2-3-0", "rollbook-something"]
    )


def test_the_place_is_found_in_either_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/a/b\n1:cpu:/\n0::/u/s\n")
    two = tmp_path / "two"
    (two / "u" / "s").mkdir(parents=True)
    (two / "u" / "s" / "cgroup.subtree_control").write_text("\n")
    (two / "u" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "mountinfo").write_text(
        "30 20 0:25 / /sys/fs/cgroup/cpu rw - cgroup none rw,cpu\n"
        "31 20 0:26 /a /sys/fs/cgroup/memory rw shared:1 - cgroup memory rw,memory\n"
        f"32 20 0:27 / {two} rw - cgroup2 none rw\n"
    )
    assert list_memory_folders(tmp_path) == [(Path("/sys/fs/cgroup/memory/b"), 1), (two / "u", 2)]
    assert list_cpu_folders(tmp_path) == []
    assert list_mount_points(tmp_path) == [Path("/sys/fs/cgroup/memory"), two]


def test_a_group_with_colons_in_its_name_is_found(tmp_path: Path) -> None:
    """As containerd names them."""
    (tmp_path / "cgroup").write_text("4:memory:/a/cri:containerd:1\n0::/cri:containerd:1\n")
    group = tmp_path / "two" / "cri:containerd:1"
    group.mkdir(parents=True)
    (group / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "mountinfo").write_text(
        "31 20 0:26 /a /sys/fs/cgroup/memory rw - cgroup memory rw,memory\n"
        f"32 20 0:27 / {tmp_path / 'two'} rw - cgroup2 none rw\n"
    )
    assert list_memory_folders(tmp_path) == [(Path("/sys/fs/cgroup/memory/cri:containerd:1"), 1), (group, 2)]


def test_a_delegated_group_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CGROUP_ENV, str(tmp_path))
    assert list_memory_folders() == [(tmp_path, 1)]
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    assert list_memory_folders() == [(tmp_path, 2)]


def test_a_group_that_cannot_go_yet_does_not_hold_us_up_for_long(groups: ControlGroups) -> None:
    before = list_own_groups(groups)
    group = groups.make()
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        group.enter(sleeper.pid)
        begun = time.monotonic()
        group.remove()
        assert time.monotonic() - begun < 10
    finally:
        sleeper.kill()
        sleeper.wait(timeout=10)
        group.remove()
    assert list_own_groups(groups) <= before
