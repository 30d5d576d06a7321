"""Control groups: found, made, bounded and taken away again; a killed owner's are cleared by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollbook.sandbox import Limits, Sandbox, owner
from rollbook.sandbox.groups import ENV, Groups, candidates, find
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
def groups() -> Groups:
    found = find()
    if found is None:
        pytest.skip("no control group may be made here")
    return found


def ours(groups: Groups) -> list[str]:
    return [name for name in os.listdir(groups._base) if name.startswith(owner.prefix())]


def test_what_processes_have_together_is_bounded(groups: Groups) -> None:
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
        assert ours(groups)
    assert ours(groups) == []


def test_a_memory_error_that_could_be_caught_is_told_apart(groups: Groups) -> None:
    with Sandbox(Limits(memory_mb=64), size=1) as box:
        result = box.run_sync("bytearray(b'x') * (100 << 20)")
        assert result.error
        assert (result.status, result.error.type) == ("memory", "MemoryError")


def test_full_is_given_where_there_is_a_group(groups: Groups) -> None:
    with Sandbox(SEVERAL, size=1, require="full") as box:
        assert box.run_sync("1").status == "ok"


def test_the_next_one_clears_what_a_killed_owner_left(groups: Groups, tmp_path: Path) -> None:
    code = (
        "import time\nfrom rollbook.sandbox import Sandbox, owner\nfrom rollbook.sandbox.groups import find\n"
        "with Sandbox(size=1) as box:\n    print(owner.prefix(), flush=True)\n    time.sleep(60)\n"
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
    assert eventually(lambda: groups.clear() is None and not left(), 10)


def test_nothing_of_the_living_is_cleared(tmp_path: Path) -> None:
    (tmp_path / f"{owner.prefix()}0").mkdir()
    (tmp_path / "rollbook-1-2-3-0").mkdir()  # of another pid namespace
    (tmp_path / "rollbook-something").mkdir()
    dead = owner.prefix().replace(f"-{os.getpid()}-", f"-{os.getpid()}-9")
    (tmp_path / f"{dead}0" / "below").mkdir(parents=True)
    owner.clear_folders(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([f"{owner.prefix()}0", "rollbook-1-2-3-0", "rollbook-something"])


def test_the_place_is_found_in_either_version(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("4:memory:/a/b\n1:cpu:/\n0::/u/s\n")
    two = tmp_path / "two"
    (two / "u" / "s").mkdir(parents=True)
    (two / "u" / "s" / "cgroup.subtree_control").write_text("\n")
    (two / "u" / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (tmp_path / "mountinfo").write_text(
        "30 20 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "31 20 0:26 /a /sys/fs/cgroup/memory rw shared:1 - cgroup cgroup rw,memory\n"
        f"32 20 0:27 / {two} rw - cgroup2 cgroup2 rw\n"
    )
    assert candidates(tmp_path) == [(Path("/sys/fs/cgroup/memory/b"), 1), (two / "u", 2)]


def test_a_delegated_group_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV, str(tmp_path))
    assert candidates() == [(tmp_path, 1)]
    (tmp_path / "cgroup.controllers").write_text("memory\n")
    assert candidates() == [(tmp_path, 2)]


def test_a_group_that_cannot_go_yet_does_not_hold_us_up_for_long(groups: Groups) -> None:
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
    assert ours(groups) == []
