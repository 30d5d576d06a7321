"""How much of the disk folders use: the same as `du` counts, also where `du` is late."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from rollbook.containers import disk_use
from rollbook.containers.disk_use import UNCOUNTABLE, count_bytes, measure_folders

NAME = "n" * 100


def count_by_du(*folders: Path) -> int:
    size, files = (int(subprocess.check_output([*command, *folders]).split()[-2]) for command in (disk_use.DU, FILES))
    return size + 1024 * files


FILES = disk_use.DU_FILES


def make_deep_folder(folder: Path, levels: int) -> None:
    """Make folders below each other, by a process that is in them: their path is too long for the kernel."""
    script = f"""import os
for _ in range({levels}): os.mkdir({NAME!r}); os.mkdir("side"); os.chdir({NAME!r})
open("f", "wb").write(bytes(20_000))
"""
    folder.mkdir()
    subprocess.run(["python3", "-c", script], cwd=folder, check=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with everything that is counted in a way of its own."""
    top = tmp_path / "tree"
    (top / "a" / "b").mkdir(parents=True)
    (top / "a" / "large").write_bytes(bytes(100_000))
    (top / "a" / "hole").write_bytes(b"")
    os.truncate(top / "a" / "hole", 10_000_000)
    os.link(top / "a" / "large", top / "a" / "b" / "second-name")
    (top / "link").symlink_to("/usr")
    os.mkfifo(top / "pipe")
    (top / os.fsdecode(b"\xff")).mkdir()
    (top / os.fsdecode(b"\xff") / "file").write_bytes(bytes(5000))
    make_deep_folder(top / "deep", 200)
    return top


def test_a_tree_is_counted_as_du_counts_it(tree: Path) -> None:
    assert count_bytes([str(tree)]) == count_by_du(tree)
    alone = tree / "a" / "large"
    assert count_bytes([str(tree / "a"), str(alone)]) == count_by_du(tree / "a", alone)
    assert count_bytes([str(tree / "none")]) == 0


def test_few_files_are_open_at_a_time(tree: Path) -> None:
    opened: list[int] = []
    before = len(os.listdir("/proc/self/fd"))
    for _ in disk_use._walk(os.open(tree, os.O_RDONLY)):
        opened.append(len(os.listdir("/proc/self/fd")) - before)
    assert max(opened) <= 3 + 1  # and the folder of this list
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_du_that_is_late_is_not_waited_for(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = count_by_du(tree)
    monkeypatch.setattr(disk_use, "DU", ("sh", "-c", "exec sleep 1000", "--"))
    monkeypatch.setattr(disk_use, "DU_S", 0.2)
    began = time.monotonic()
    assert asyncio.run(measure_folders([str(tree)])) == wanted
    assert time.monotonic() - began < 30
    monkeypatch.setattr(disk_use, "WALK_S", 0.0)
    assert asyncio.run(measure_folders([str(tree)])) == 0  # what was counted in time
    monkeypatch.setattr(disk_use, "START_S", 0.0)
    with pytest.raises(TimeoutError):
        asyncio.run(measure_folders([str(tree)]))


def test_what_a_late_walk_has_counted_counts(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, moments = count_bytes([str(tree)]), iter(range(10**6))
    monkeypatch.setattr("time.monotonic", lambda: next(moments))
    assert 0 < count_bytes([str(tree)], 100) < whole


def test_a_tree_that_needs_too_many_open_files_is_larger_than_anything(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("sys.argv", ["disk_use", "60", str(tree)])
    monkeypatch.setattr("resource.setrlimit", lambda *args: None)
    monkeypatch.setattr("os.open", fail)
    disk_use.main()
    assert int(capsys.readouterr().out) == UNCOUNTABLE
