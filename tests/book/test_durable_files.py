"""What is published is on the disk: contents are synced before they get their names, then the names.

A power cut may lose every write and every name that was not synced, so the order of the system calls is what counts.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollbook.book import Journal, JournalEntry, sync_folder, write_atomically, write_new, write_seals
from rollbook.book.durable_files import (
    explain_disk_errors,
    lock_run,
    make_unwritable,
    overwrite_in_place,
    write_temporary,
)
from rollbook.core import Seal, Task
from rollbook.errors import BookError, BookUnwritable
from support.alive import open_fds
from support.books import make_book, open_round, scored


class DiskLog:
    """Watches the system calls of this process, and knows what a power cut would lose."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unsynced_files: set[Path] = set()
        self.unsynced_names: set[Path] = set()
        self.published_unsynced: list[Path] = []
        self.synced: list[Path] = []
        for name in ("open", "write", "fsync", "fdatasync", "link", "replace", "rename", "unlink"):
            monkeypatch.setattr(os, name, self._watch(name, getattr(os, name)))

    def _watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        note = getattr(self, f"_on_{name.removeprefix('fdata').removeprefix('f')}")

        def watched(*arguments: Any, **options: Any) -> Any:
            before = self._resolve(arguments[0])
            result = call(*arguments, **options)
            note(before, *arguments[1:])
            return result

        return watched

    def _resolve(self, file: int | str | Path) -> Path:
        return Path(os.readlink(f"/proc/self/fd/{file}")) if isinstance(file, int) else Path(file)

    def _on_open(self, path: Path, flags: int = 0, *_: Any) -> None:
        if flags & os.O_CREAT:
            self.unsynced_names.add(path)

    def _on_write(self, path: Path, *_: Any) -> None:
        self.unsynced_files.add(path)

    def _on_sync(self, path: Path, *_: Any) -> None:
        self.synced.append(path)
        self.unsynced_files.discard(path)
        self.unsynced_names = {name for name in self.unsynced_names if name.parent != path}

    def _on_link(self, source: Path, target: str | Path, *_: Any) -> None:
        if source in self.unsynced_files:
            self.published_unsynced.append(Path(target))
        self.unsynced_names.add(Path(target))

    def _on_replace(self, source: Path, target: str | Path, *_: Any) -> None:
        self._on_link(source, target)
        self.unsynced_names.discard(source)

    _on_rename = _on_replace

    def _on_unlink(self, path: Path, *_: Any) -> None:
        self.unsynced_names.discard(path)

    def lost_in_a_power_cut(self) -> list[Path]:
        return [*self.published_unsynced, *sorted(self.unsynced_files), *sorted(self.unsynced_names)]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> DiskLog:
    return DiskLog(monkeypatch)


@pytest.mark.parametrize("write", [write_atomically, write_new])
def test_a_file_is_synced_before_it_has_its_name_and_then_its_folder(
    write: Callable[[Path, bytes], object], tmp_path: Path, disk: DiskLog
) -> None:
    write(tmp_path / "file", b"content")
    assert disk.lost_in_a_power_cut() == []
    assert [path.parent == tmp_path for path in disk.synced] == [True, False], "the content, then the folder"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_seals_are_synced_before_they_have_their_names_and_then_their_folder_once(
    tmp_path: Path, disk: DiskLog
) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    disk.synced.clear()
    seal = Seal(1, 1, 1, {}, 0, {})
    assert write_seals(book.path, {0: (seal, False), 1: (seal, False)}) == {0, 1}
    assert disk.lost_in_a_power_cut() == []
    assert [path.name for path in disk.synced[2:]] == ["done"]
    assert write_seals(book.path, {0: (seal, False), 1: (seal, True)}) == {1}
    assert sorted(path.name for path in (book.path / "done").iterdir()) == ["00000.json", "00001.1.json", "00001.json"]


def test_a_new_run_directory_is_on_the_disk_when_it_has_its_name(tmp_path: Path, disk: DiskLog) -> None:
    book = make_book(tmp_path / "runs" / "run", tasks=2)
    assert disk.synced[0].name == "tasks.jsonl"
    assert disk.synced[-1] == tmp_path / "runs"
    open_round(book)
    assert disk.lost_in_a_power_cut() == []


def test_lines_are_on_the_disk_when_they_are_called_durable_and_their_ids_before_them(
    tmp_path: Path, disk: DiskLog
) -> None:
    book = make_book(tmp_path / "run")
    disk.synced.clear()
    lost: list[list[Path]] = []

    async def write() -> None:
        journal = Journal(book.path, "w", lambda _: lost.append(disk.lost_in_a_power_cut()))
        journal.start()
        await journal.add(JournalEntry(scored(book, 0, 0, tokens=True)))
        await journal.close()

    asyncio.run(write())
    assert lost == [[]]
    names = [path.name for path in disk.synced]
    assert names == ["journals", "w.1.tokens", "journals", "w.1.jsonl"]


def test_syncing_and_writing_keep_no_file_open(tmp_path: Path) -> None:
    before = open_fds()
    for number in range(20):
        sync_folder(tmp_path)
        write_atomically(tmp_path / "file", b"content")
        write_new(tmp_path / f"{number // 2}", b"content")
    assert open_fds() == before


def test_a_write_that_fails_leaves_no_temporary_file_and_no_open_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = open_fds()
    for name, write in (
        ("fsync", write_temporary),
        ("link", write_new),
        ("replace", write_atomically),
        ("link", lambda path, _: write_seals(path.parent.parent, {0: (Seal(1, 1, 1, {}, 0, {}), False)})),
    ):
        (tmp_path / "done").mkdir(exist_ok=True)
        with monkeypatch.context() as patched:
            patched.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space left"):
                write(tmp_path / "done" / "file", b"content")
        assert list((tmp_path / "done").iterdir()) == []
    assert open_fds() == before


def test_an_error_is_not_hidden_by_a_temporary_file_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        next(tmp_path.iterdir()).unlink()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_temporary(tmp_path / "file", b"content")


def test_files_are_readable_for_everyone_and_writable_for_their_owner(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_atomically(tmp_path / "file", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_tasks_that_are_added_are_on_the_disk_before_the_plan_names_them(tmp_path: Path, disk: DiskLog) -> None:
    book = make_book(tmp_path / "run")
    disk.synced.clear()
    book.request_samples([Task("new", "?")], "Sums", 2)
    names = [path.name for path in disk.synced]
    assert names[0] == "tasks.jsonl"
    assert names[-1] == "run"
    assert any("plan.json" in name for name in names[1:-1])
    assert disk.lost_in_a_power_cut() == []


def test_a_file_that_is_overwritten_in_place_keeps_its_length(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert overwrite_in_place(path, b"x") is False
    path.write_bytes(b"0123456789")
    assert overwrite_in_place(path, b"abc") is True
    assert path.read_bytes() == b"abc       "
    assert overwrite_in_place(path, b"0123456789ab") is True
    assert path.read_bytes() == b"0123456789ab"


def test_who_waits_too_long_for_the_lock_of_a_run_is_told(tmp_path: Path) -> None:
    with (
        lock_run(tmp_path),
        pytest.raises(BookError, match=r"another process has been changing its plan for 0\.05 s: try again"),
        lock_run(tmp_path, 0.05),
    ):
        raise AssertionError("locked twice")
    with lock_run(tmp_path, 0.05):
        assert open_fds()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EFBIG, "make room"),
        (errno.EACCES, "make it writable for this user (owner and mode of the folder)"),
        (errno.EPERM, "make it writable for this user (owner and mode of the folder)"),
        (errno.EROFS, "mount it for writing"),
        (errno.EIO, "check the disk or its server"),
        (errno.ESTALE, "check the disk or its server"),
    ],
)
def test_a_disk_that_cannot_be_written_is_explained_with_a_way_out(tmp_path: Path, number: int, advice: str) -> None:
    error = OSError(number, "why")
    with pytest.raises(BookUnwritable) as caught, explain_disk_errors(tmp_path):
        raise error
    assert str(caught.value) == f"{tmp_path} cannot be written (why): {advice}, then resume"


def test_other_errors_of_a_system_call_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="why"), explain_disk_errors(tmp_path):
        raise OSError(errno.EINVAL, "why")
    assert str(make_unwritable(tmp_path, OSError(errno.EINVAL, "why"))).endswith("(why): check its path, then resume")


def test_errors_that_are_not_of_the_system_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError), explain_disk_errors(tmp_path):
        raise KeyError

    def fail(*_: object) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(ValueError, match="a mistake"), lock_run(tmp_path):
        raise AssertionError("not locked")


def test_a_lock_that_fails_for_another_reason_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "why")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="why"), lock_run(tmp_path):
        raise AssertionError("not locked")


def test_a_folder_is_not_overwritten_in_place(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        overwrite_in_place(tmp_path, b"x")
