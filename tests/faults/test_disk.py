"""A disk that is full or takes no writes: one line, exit 75 or 2, and everything durable is still there afterwards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.alive import eventually
from support.book_assertions import assert_complete, scored_keys, seeds_of
from support.commands import Commands, Served

pytestmark = pytest.mark.slow

WORDY = """
from rollbook import Environment, Score, Task


class Wordy(Environment):
    def tasks(self):
        for i in range(120):
            yield Task(id=f"t{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return Score(1.0, info={"why": "x" * 4096})
"""


class Disk:
    """A small file system of our own; needs the right to mount."""

    def __init__(self, at: Path) -> None:
        self.at = at
        at.mkdir()
        self._mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", str(at))

    def _mount(self, *words: str) -> None:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, timeout=20)
        if done.returncode:
            pytest.skip(f"NOT TESTED: this needs the right to mount a tmpfs ({done.stderr.strip()})")

    def remount(self, how: str) -> None:
        """Another size, or ro, or rw."""
        self._mount("-o", f"remount,{how}", str(self.at))

    def fill(self, leave: int) -> None:
        """Take all the room but so many bytes."""
        stat = os.statvfs(self.at)
        with open(self.at / "ballast", "ab") as file:
            size = file.tell() + stat.f_bavail * stat.f_frsize - leave
            os.posix_fallocate(file.fileno(), 0, max(1, size))

    def make_room(self) -> None:
        """Give it back."""
        (self.at / "ballast").unlink()

    def close(self) -> None:
        """Take it away again."""
        subprocess.run(["umount", "-l", str(self.at)], check=True, timeout=20)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid():
        pytest.skip("NOT TESTED: only root may mount the small tmpfs that this test fills")
    made = Disk(tmp_path / "disk")
    yield made
    made.close()


@pytest.fixture
def wordy(tmp_path: Path) -> str:
    (tmp_path / "wordy.py").write_text(WORDY)
    return str(tmp_path / "wordy.py")


def test_a_disk_that_fills_up_stops_the_run_which_then_resumes(
    rollbook: Commands, serve: Callable[..., Served], wordy: str, disk: Disk
) -> None:
    endpoint, run = serve("--delay-s", "0.05"), disk.at / "run"
    disk.fill(leave=300_000)
    done = rollbook.run("run", wordy, "-m", endpoint.url, "-c", 4, "-o", run)
    assert done.code == 75, done.stderr
    assert "No space left on device" in done.complaint
    assert "resume" in done.complaint
    kept = set(scored_keys(run))
    assert 5 < len(kept) < 120
    before = endpoint.seeds
    disk.make_room()
    again = rollbook.run("resume", run)
    assert again.code == 0, again.stderr
    assert_complete(run)
    after = endpoint.seeds
    assert not [s for s in seeds_of(kept) if after[s] > before[s]]
    assert rollbook.nothing_left()


def test_a_disk_that_is_still_full_is_said_again_and_harms_nothing(
    rollbook: Commands, serve: Callable[..., Served], wordy: str, disk: Disk
) -> None:
    endpoint, run = serve("--delay-s", "0.05"), disk.at / "run"
    disk.fill(leave=300_000)
    assert rollbook.run("run", wordy, "-m", endpoint.url, "-c", 4, "-o", run).code == 75
    kept = set(scored_keys(run))
    disk.fill(leave=0)
    for words in (("resume", run), ("work", run)):
        done = rollbook.run(*words)
        assert done.code == 75, done.stderr
        assert "No space left on device" in done.complaint
    report = rollbook.run("report", run, "--json")
    assert report.json["scored"] == len(kept)
    assert "Traceback" not in report.stderr
    status = rollbook.run("status", run)
    assert (status.code, status.stderr) == (0, "")
    assert set(scored_keys(run)) == kept
    disk.make_room()
    assert rollbook.run("resume", run).code == 0
    assert_complete(run)


@pytest.mark.parametrize("leave", [0, 16384, 32768])
def test_a_disk_without_room_for_the_plan_is_one_line(
    leave: int, rollbook: Commands, serve: Callable[..., Served], wordy: str, disk: Disk
) -> None:
    endpoint, run = serve(), disk.at / "run"
    disk.fill(leave)
    done = rollbook.run("run", wordy, "-m", endpoint.url, "-o", run)
    assert done.code in (2, 75), done.stderr
    assert "No space left on device" in done.complaint
    disk.make_room()
    if (run / "run.json").exists():
        assert done.code == 75
        assert rollbook.run("resume", run).code == 0
        assert_complete(run)
    else:
        assert list(disk.at.iterdir()) == []


def test_a_run_on_a_read_only_disk_can_be_read_and_is_not_resumed_until_it_can_be_written(
    rollbook: Commands, serve: Callable[..., Served], wordy: str, disk: Disk
) -> None:
    endpoint, run = serve("--delay-s", "0.2"), disk.at / "run"
    worker = rollbook.start("run", wordy, "-m", endpoint.url, "-c", 4, "-o", run)
    assert eventually(lambda: endpoint.calls > 12, 20), worker.stderr
    worker.kill()
    assert rollbook.nothing_left()
    disk.remount("ro")
    for words in (("resume", run), ("work", run)):
        done = rollbook.run(*words)
        assert done.code in (2, 75), done.stderr
        assert "Read-only file system" in done.complaint
    done = rollbook.run("run", wordy, "-m", endpoint.url, "-o", disk.at / "new")
    assert done.code == 2, done.stderr
    assert "Read-only file system" in done.complaint
    status = rollbook.run("status", run)
    assert (status.code, status.stderr) == (0, "")
    report = rollbook.run("report", run, "--json")
    assert report.code == 3, report.stderr
    assert report.json["scored"] == len(scored_keys(run))
    assert "Traceback" not in report.stderr
    disk.remount("rw")
    endpoint.switch("ok", delay_s=0.0)
    assert rollbook.run("resume", run).code == 0
    assert_complete(run)
