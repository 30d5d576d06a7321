"""tasks.jsonl: rows by number, read one by one and many at once, and rows that are damaged."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest

from rollbook.book import MediaStore
from rollbook.book import tasks as tasks_module
from rollbook.book.tasks import TaskFile, read_rows, write_tasks
from rollbook.core import Task
from rollbook.errors import BookError, UsageError
from support.books import make_book


def open_tasks(folder: Path, count: int = 6) -> TaskFile:
    return make_book(folder / "run", tasks=count).tasks


def test_rows_are_read_one_by_one_many_at_once_and_all(tmp_path: Path) -> None:
    file = open_tasks(tmp_path)
    one_by_one = [file.read(row) for row in range(6)]
    assert [task.id for task in one_by_one] == [f"t{row}" for row in range(6)]
    assert list(file) == one_by_one
    assert file.read_many([4, 1, 4]) == {1: one_by_one[1], 4: one_by_one[4]}
    assert file.read_many([]) == {}
    assert b"".join(map(file.read_raw, range(6))) == file.path.read_bytes()


def test_a_few_tasks_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks_module, "MAX_CACHED_TASKS", 2)
    file = open_tasks(tmp_path)
    first = file.read(0)
    assert file.read(1) is file.read(1)
    assert file.read(0) is first
    file.read(2)
    assert file.read(0) is not first
    assert file.read(0) == first


def test_a_damaged_row_is_named_by_its_line(tmp_path: Path) -> None:
    file = open_tasks(tmp_path)
    lines = file.path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b'"id"', b'"no"', 1)
    file.path.write_bytes(b"".join(lines))
    for read in (
        lambda: file.read(2),
        lambda: file.read_many([1, 2]),
        lambda: read_rows(file.path, 6),
        lambda: file.rows,
    ):
        with pytest.raises(BookError, match=r"tasks\.jsonl:3: not a task line: "):
            read()
    assert read_rows(file.path, 2) == {"t0": 0, "t1": 1}


def test_a_row_that_is_torn_does_not_count_until_it_is_whole(tmp_path: Path) -> None:
    file = open_tasks(tmp_path, 3)
    row = file.read_raw(0).replace(b"t0", b"t9")
    for piece, count in ((row[:9], 3), (row[9:], 4)):
        with file.path.open("ab") as appended:
            appended.write(piece)
        file.refresh()
        assert len(file) == count
        assert len(TaskFile(file.path)) == count
    assert file.rows["t9"] == 3
    assert file.read(3).id == "t9"


def test_a_closed_file_is_not_read(tmp_path: Path) -> None:
    file = open_tasks(tmp_path)
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0)
    file.close()


def write(folder: Path, tasks: list[object], seen: set[str]) -> tuple[int, bytes]:
    file = io.BytesIO()
    return write_tasks(file, tasks, "env", seen, MediaStore(folder)), file.getvalue()  # type: ignore[arg-type]


def test_writing_counts_and_names_the_environment(tmp_path: Path) -> None:
    seen = {"before"}
    count, data = write(tmp_path, [Task("a", "x"), Task("b", "y")], seen)
    assert count == len(data.splitlines()) == 2
    assert data.count(b'"env":"env"') == 2
    assert seen == {"before", "a", "b"}
    assert write(tmp_path, [], seen) == (0, b"")


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"id": "a"}, "env: tasks() gave a dict, not a Task"),
        (Task("before", "x"), "env: two tasks have the id 'before'; ids must be unique in a run"),
        (
            Task(
                "a",
                messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:no.png"}}]}],
            ),
            "env: task 'a': messages[0].content[0]: no.png: no such file in the environment's folder (none)",
        ),
    ],
)
def test_what_is_not_a_task_of_its_own_is_refused(tmp_path: Path, task: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        write(tmp_path, [task], {"before"})
    assert str(caught.value) == message


@pytest.mark.parametrize("place", ["media", "file"])
def test_a_disk_that_fails_is_not_blamed_on_the_task(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    file = io.BytesIO()
    if place == "media":
        monkeypatch.setattr(MediaStore, "store_parts", fail)
    else:
        file = type("Full", (io.BytesIO,), {"write": fail})()
    with pytest.raises(OSError, match="no room"):
        write_tasks(file, [Task("a", "x")], "env", set(), MediaStore(tmp_path))


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("value", [object(), {("a", "b"): 1}, "\ud800", ENDLESS])
def test_what_json_cannot_hold_is_refused_with_the_task(tmp_path: Path, value: object) -> None:
    with pytest.raises(UsageError, match="env: task 'a' cannot be stored as JSON"):
        write(tmp_path, [Task("a", "x", thing=value)], set())


def test_rows_are_read_up_to_the_end_of_the_file_and_no_further(tmp_path: Path) -> None:
    file = open_tasks(tmp_path, 3)
    assert len(file) == 3
    with pytest.raises(IndexError):
        file.read(3)
    assert read_rows(file.path, 9) == {"t0": 0, "t1": 1, "t2": 2}


def test_closing_gives_the_file_back(tmp_path: Path) -> None:
    file = open_tasks(tmp_path)

    def is_open() -> bool:
        links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return str(file.path) in links

    assert is_open()
    file.close()
    assert not is_open()
