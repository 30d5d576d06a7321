"""Making, opening, extending a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbook.book import book as book_module
from rollbook.book import missing_run_error, remove_unused_run, tasks
from rollbook.book.book import FOLDERS, Book, BookDraft, find_missing_samples, hash_manifest, refuse_url
from rollbook.book.durable_files import explain_disk_errors, lock_run
from rollbook.core import Part, Settings, Task, make_part
from rollbook.errors import BookError, BookUnwritable, UsageError
from support.books import edit_record, make_book, open_round
from support.pictures import data_url, make_png, name_of


def test_a_book_opens_as_it_was_made(tmp_path: Path) -> None:
    made = make_book(tmp_path / "run", tasks=3, samples=2)
    book = Book(tmp_path / "run")
    assert book.manifest == made.manifest
    assert (book.plan.requested, len(book.tasks), book.tasks.read(2).id) == (6, 3, "t2")
    assert book.tasks.rows == {"t0": 0, "t1": 1, "t2": 2}


def test_an_occupied_folder_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    make_book(tmp_path / "run")
    with pytest.raises(UsageError, match=r"is not empty.*rollbook resume.*another --out"):
        make_book(tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(UsageError, match="is not empty: choose another"):
        make_book(tmp_path / "other")


@pytest.mark.parametrize("path", ["s3://bucket/run", "gs:/bucket/run", Path("s3://bucket/run"), "file:///tmp/run"])
def test_a_url_is_no_place_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"--out \w+://\w+/.*local files only"):
        BookDraft(path)
    with pytest.raises(UsageError, match="local files only"):
        Book(path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    make_book(tmp_path / "12:30")
    assert Book(tmp_path / "12:30").plan.requested


def test_a_file_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(UsageError, match="this is a file, and a run is a folder"):
        make_book(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    assert make_book(tmp_path / "run").plan.requested == 8


def test_a_run_is_removed_only_while_nothing_was_recorded_in_it(tmp_path: Path) -> None:
    unused, used, noted = (make_book(tmp_path / name).path for name in ("unused", "used", "noted"))
    for path in (unused, used):
        (path / "journals" / "w.1.jsonl").write_bytes(b"{}\n" if path is used else b"")
    (noted / "notes.txt").touch()
    for path in (unused, used, noted):
        remove_unused_run(path)
    assert [path.exists() for path in (unused, used, noted)] == [False, True, True]
    assert (used / "run.json").exists()


def test_duplicate_task_ids_are_an_error_and_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two tasks have the id 'a'"), BookDraft(tmp_path / "run") as draft:
        draft.add_tasks([Task(id="a", prompt="x"), Task(id="a", prompt="y")], "e")
    assert list(tmp_path.iterdir()) == []


def test_a_task_that_json_cannot_hold_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="task 'a' cannot be stored as JSON"), BookDraft(tmp_path / "run") as draft:
        draft.add_tasks([Task(id="a", prompt="x", thing=object())], "e")


def test_what_is_not_a_run_directory_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no run\.json"):
        Book(tmp_path)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run").path
    (path / "run.json").write_text('{"schema": 1')
    with pytest.raises(BookError, match=r"run\.json"):
        Book(path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run").path
    text = (path / "run.json").read_text().replace('"schema": 2', '"schema": 99')
    (path / "run.json").write_text(text)
    with pytest.raises(BookError, match="schema 99; this version reads 1 to 2"):
        Book(path)


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("plan.json", {"schema": 99}, "schema 99; this version reads 1 to 2"),
        ("rounds/0001.json", {"schema": 0}, "schema 0; this version reads 1 to 2"),
        ("run.json", {"environments": {}}, "no environment"),
        (
            "plan.json",
            {
                "parts": [
                    {"tasks": [0, 4], "samples": [0, 2], "chunks": [8]},
                    {"tasks": [3, 4], "samples": [1, 2], "chunks": [1]},
                ]
            },
            "part 2 requests a rollout that another part requests too",
        ),
    ],
)
def test_a_file_with_a_right_checksum_that_makes_no_sense_is_refused(
    tmp_path: Path, name: str, changes: dict[str, object], problem: str
) -> None:
    """Found by `make fuzz`: without a wrong checksum these were accepted, and a rollout was requested twice."""
    path = make_book(tmp_path / "run").path
    open_round(Book(path))
    edit_record(path / name, **changes)
    with pytest.raises(BookError, match=problem) as caught:
        Book(path).rounds()
    assert str(caught.value).startswith(str(path / name))


def test_a_damaged_hash_in_the_manifest_is_not_blamed_on_the_tasks(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    manifest, rows = book.path / "run.json", book.path / "tasks.jsonl"
    sound = manifest.read_bytes()
    damaged = sound.replace(sound[(at := sound.index(b'"sha256": "') + 11) : at + 4], b"0bad")
    for path, content in ((manifest, damaged), (rows, rows.read_bytes().replace(b"What", b"That", 1))):
        before = path.read_bytes()
        path.write_bytes(content)
        for check in (Book(book.path).check_tasks, Book(book.path).check_meaning):
            with pytest.raises(BookError, match=f"^{path} was edited"):
                check()
        path.write_bytes(before)
    Book(book.path).check_meaning()


@pytest.mark.parametrize(
    ("code", "way"),
    [
        (errno.ENOSPC, "make room, then resume"),
        (errno.EFBIG, "make room, then resume"),
        (errno.EDQUOT, "make room, then resume"),
        (errno.ESTALE, "check the disk or its server, then resume"),
        (errno.EACCES, "make it writable for this user"),
        (errno.EROFS, "mount it for writing, then resume"),
    ],
)
def test_a_disk_that_cannot_be_written_is_one_line_with_a_way_out(tmp_path: Path, code: int, way: str) -> None:
    with pytest.raises(BookUnwritable, match=f"cannot be written .*: {way}"), explain_disk_errors(tmp_path):
        raise OSError(code, os.strerror(code))


def test_rounds_are_numbered_in_order(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    assert [open_round(book).number, open_round(book).number] == [1, 2]
    assert [r.number for r in book.rounds()] == [1, 2]


def test_extending_adds_keys_and_changes_none(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    before = [key for chunk in book.chunks for key in chunk]
    assert book.extend(5, 1) == 9
    after = [key for chunk in book.chunks for key in chunk]
    assert after[: len(before)] == before
    assert sorted(after[len(before) :]) == [(row, sample) for row in range(3) for sample in (2, 3, 4)]
    assert book.extend(5, 1) == 0


def test_asking_again_for_a_task_gives_it_new_samples(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=2)
    book.request_samples([book.tasks.read(0), Task(id="new", prompt="x")], "Sums", 2)
    keys = [key for chunk in book.chunks for key in chunk]
    assert sorted(keys) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]


def test_a_name_that_no_folder_can_have_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="File name too long"):
        make_book(tmp_path / ("x" * 300))


def test_extending_fills_every_gap_and_doubles_nothing(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    book.request_samples([book.tasks.read(1), book.tasks.read(1)], "Sums", 2)
    book.extend(8, 1)
    keys = [key for chunk in book.chunks for key in chunk]
    assert sorted(keys) == [(row, sample) for row in range(3) for sample in range(8)]


def test_many_who_extend_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    make_book(tmp_path / "run", tasks=3, samples=1)
    with ThreadPoolExecutor(8) as threads:
        added = sum(threads.map(lambda samples: Book(tmp_path / "run").extend(samples, 1), range(2, 18)))
    keys = [key for chunk in Book(tmp_path / "run").chunks for key in chunk]
    assert sorted(keys) == [(row, sample) for row in range(3) for sample in range(17)]
    assert added == len(keys) - 3


def test_a_plan_held_too_long_by_another_is_one_line(tmp_path: Path) -> None:
    make_book(tmp_path / "run")
    held = lock_run(tmp_path / "run", timeout_s=0.05)
    with lock_run(tmp_path / "run"), pytest.raises(BookError, match="another process has been changing its plan"):
        held.__enter__()


def test_many_who_ask_and_extend_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """A Collector asks in a thread, which goes on though nobody waits for it any more when the next one asks."""
    book = make_book(tmp_path / "run", tasks=2, samples=1)

    def ask(number: int) -> None:
        if number % 4:
            book.request_samples([Task(id=f"new-{number}", prompt="x")], "Sums", 1)
        else:
            Book(tmp_path / "run").extend(1 + number // 4, 1)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(16)))
    found = Book(tmp_path / "run")
    found.extend(4, 1)
    assert len(found.tasks) == 2 + 12
    assert sorted(key for chunk in found.chunks for key in chunk) == [(r, s) for r in range(14) for s in range(4)]


def test_rows_that_are_appended_while_others_are_read_are_known_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages are answered by threads, and one may take in new rows while another asks for those there are."""
    book = make_book(tmp_path / "run", tasks=2)
    read_rows = tasks.read_rows

    def read_and_grow(path: Path, count: int) -> dict[str, int]:
        monkeypatch.setattr(tasks, "read_rows", read_rows)
        found = read_rows(path, count)
        book.add_tasks([Task(id="new", prompt="x")], "Sums")
        return found

    monkeypatch.setattr(tasks, "read_rows", read_and_grow)
    assert "t1" in book.tasks.rows
    assert "new" in book.tasks.rows


def test_a_file_system_without_locks_is_no_reason_not_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, kind: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    book = make_book(tmp_path / "run", tasks=1, samples=1)
    monkeypatch.setattr(fcntl, "flock", refuse)
    book.request_samples([Task(id="new", prompt="x")], "Sums", 1)
    assert book.extend(2, 1) == 2


def test_samples_below_the_first_planned_one_are_missing_too() -> None:
    parts = [Part((0, 2), (1, 2), [2])]
    assert list(find_missing_samples(parts, 3)) == [((0, 2), (0, 1)), ((0, 2), (2, 3))]


def test_what_is_no_run_directory_is_said_to_be_what_it_is(tmp_path: Path) -> None:
    make_book(tmp_path / "runs" / "one")
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, reason in {
        "file": "it is a file",
        "none": "it does not exist",
        "empty": "it has no run.json",
        "runs": f"it is a folder of runs; name one of them, such as {tmp_path / 'runs' / 'one'}",
    }.items():
        assert str(missing_run_error(tmp_path / name)) == f"{tmp_path / name} is not a run directory: {reason}"


@pytest.mark.parametrize("name", ["tasks.jsonl", "plan.json"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    path = make_book(tmp_path / "run").path
    (path / name).unlink()
    with pytest.raises(BookError, match=f"{name} is missing: restore it from a copy of the run"):
        Book(path)


def test_tasks_are_copied_with_what_they_show(tmp_path: Path) -> None:
    source = make_book(tmp_path / "run", tasks=3)
    with BookDraft(tmp_path / "copy") as draft:
        draft.copy_tasks(source)
        copied = draft.finish(source.manifest, source.plan.parts)
    assert (copied.path / "tasks.jsonl").read_bytes() == (source.path / "tasks.jsonl").read_bytes()


def test_a_draft_that_is_given_up_leaves_no_folder_that_was_made_for_it(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with BookDraft(tmp_path / "here" / "new" / "deeper" / "run"):
        pass
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_two_that_open_a_round_at_once_open_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    monkeypatch.setattr(Book, "rounds", lambda self: [])  # the other one has not been seen yet
    assert open_round(book).number == 2


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file:///data/run", "--out file://data/run: Rollbook reads and writes local files only; leave out file://"),
        (
            "s3://bucket/run",
            "--out s3://bucket/run: Rollbook reads and writes local files only; give a local path, and copy the files"
            " yourself",
        ),
    ],
)
def test_a_url_is_refused_with_what_to_write_instead(path: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_url(path, "--out")
    assert str(caught.value) == message


def test_a_draft_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(book_module, "open", refuse, raising=False)
    with pytest.raises(UsageError) as caught, BookDraft(tmp_path / "new" / "run"):
        pass
    words = "No space left on device; make room, or choose another --out"
    assert str(caught.value) == f"cannot write to {tmp_path / 'new'}: {words}"
    assert list(tmp_path.iterdir()) == []


def test_a_draft_below_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError) as caught, BookDraft(tmp_path / "file" / "run"):
        pass
    assert str(caught.value) == f"cannot write to {tmp_path / 'file'}: Not a directory; choose another --out"


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, UsageError), (errno.EROFS, UsageError), (errno.ENXIO, OSError)]
)
def test_only_errors_of_the_disk_are_explained_by_a_draft(tmp_path: Path, code: int, kind: type[Exception]) -> None:
    with pytest.raises(kind), BookDraft(tmp_path / "run"):
        raise OSError(code, os.strerror(code))
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_another_made_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with BookDraft(tmp_path / "run") as draft:
        draft.add_tasks([Task(id="late", prompt="x")], "Sums")
        first = make_book(tmp_path / "run")
        with pytest.raises(UsageError, match="run is not empty: continue it with `rollbook resume"):
            draft.finish(first.manifest, [make_part((0, 1), (0, 1), 1)])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert Book(tmp_path / "run").tasks.read(0).id == "t0"


def test_folders_that_a_copy_left_out_are_made_again(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run").path
    for name in FOLDERS:
        (path / name).rmdir()
    assert Book(path).rounds() == []
    assert all((path / name).is_dir() for name in FOLDERS)


def test_a_run_may_begin_without_any_task(tmp_path: Path) -> None:
    manifest = make_book(tmp_path / "run").manifest
    with BookDraft(tmp_path / "stream") as draft:
        draft.finish(manifest, [])
    book = Book(tmp_path / "stream")
    assert (len(book.tasks), book.plan.requested, book.extend(3, 1)) == (0, 0, 0)
    book.request_samples([Task(id="first", prompt="x")], "Sums", 2)
    assert Book(tmp_path / "stream").plan.requested == 2


def test_tasks_that_are_missing_are_counted(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run", tasks=4).path
    lines = (path / "tasks.jsonl").read_bytes().splitlines(keepends=True)
    (path / "tasks.jsonl").write_bytes(b"".join(lines[:3]))
    with pytest.raises(BookError) as caught:
        Book(path)
    assert str(caught.value) == f"{path / 'tasks.jsonl'} has 3 of 4 tasks: restore it from a copy of the run"


def test_rows_that_are_appended_while_a_book_is_opened_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_book(tmp_path / "run", tasks=4).path
    lines, load_plan = (path / "tasks.jsonl").read_bytes().splitlines(keepends=True), Book.load_plan
    (path / "tasks.jsonl").write_bytes(b"".join(lines[:3]))

    def append_and_load(self: Book) -> None:
        with (path / "tasks.jsonl").open("ab") as file:
            file.write(lines[3])
        load_plan(self)

    monkeypatch.setattr(Book, "load_plan", append_and_load)
    assert len(Book(path).tasks) == 4


def test_the_settings_of_a_book_are_those_of_its_last_round(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    assert book.last_settings() == Settings()
    for retry in (["infra"], ["all"]):
        book.open_round(Settings(retry=retry))
    assert book.last_settings() == Settings(retry=["all"])


def test_the_first_round_is_opened_with_the_book(tmp_path: Path) -> None:
    source = make_book(tmp_path / "run")
    with BookDraft(tmp_path / "other") as draft:
        draft.copy_tasks(source)
        book = draft.finish(source.manifest, source.plan.parts, Settings(concurrency=7))
    (first,) = book.rounds()
    assert (first.number, first.settings.concurrency) == (1, 7)
    assert first.meaning == hash_manifest(book.path)
    assert not book.is_manifest_edited()


def test_a_round_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    open_round(book)
    path = book.path / "rounds" / "0001.json"
    edit_record(path, number=2)
    with pytest.raises(BookError, match=r"0001\.json: it is round 2 by its content; restore it"):
        book.rounds()
    edit_record(path, number=1, settings={"retry": ["infra", "odd"]})
    with pytest.raises(BookError, match=r"0001\.json: 'odd' is not a rule of --retry; restore it"):
        book.rounds()


def test_another_task_under_a_known_id_is_refused(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1)
    same = {"id": "t0", "prompt": "What is 0 + 0?", "answer": "0"}
    book.request_samples([Task(**same)], "Sums", 1)
    for change in ({"prompt": "other"}, {"answer": "1"}, {"level": 3}):
        with pytest.raises(UsageError, match="task 't0' is already in the run with different content"):
            book.request_samples([Task(**{**same, **change})], "Sums", 1)
    assert book.plan.requested == 3


def test_a_task_that_is_asked_for_twice_at_once_gets_twice_the_samples(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    book.request_samples([Task(id="new", prompt="x"), Task(id="new", prompt="x")], "Sums", 3)
    assert book.tasks.rows == {"t0": 0, "t1": 1, "new": 2}
    assert sorted(key for chunk in book.chunks for key in chunk) == [(0, 0), (1, 0), *((2, s) for s in range(6))]


def test_samples_that_are_requested_are_cut_into_chunks_for_one_worker(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=2)
    tasks = [Task(id=f"new-{number}", prompt="?") for number in range(40)]
    book.request_samples(tasks, "Sums", 8)
    assert book.plan.parts[-1] == make_part((2, 42), (0, 8), 1)
    assert book.plan.parts[-1] != make_part((2, 42), (0, 8), 2)
    book.request_samples(tasks[:1], "Sums", 64)
    assert book.plan.parts[-1] == make_part((2, 3), (8, 72), 1)
    assert book.plan.parts[-1] != make_part((2, 3), (8, 72), 2)


def test_a_run_that_cannot_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    path = make_book(tmp_path / "run").path
    monkeypatch.setattr(os, "rmdir", refuse)
    remove_unused_run(path)
    assert path.exists()


def test_folders_that_a_copy_left_out_because_they_were_empty_are_made_again(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run").path
    for name in FOLDERS:
        (path / name).rmdir()
    assert Book(path).rounds() == []
    assert {each.name for each in path.iterdir() if each.is_dir()} == set(FOLDERS)
    Book(path)


def test_the_file_of_another_schema_is_named(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run").path
    edit_record(path / "run.json", schema=99)
    with pytest.raises(BookError) as caught:
        Book(path)
    assert str(caught.value).startswith(f"{path / 'run.json'}: ")


def test_a_path_in_an_error_is_cut(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(UsageError) as caught:
        BookDraft(path)
    assert str(caught.value).startswith(f"--out {str(path)[:80]}: ")


def test_a_disk_that_takes_no_round_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    book = make_book(tmp_path / "run")
    monkeypatch.setattr(book_module, "write_new", fail)
    with pytest.raises(BookUnwritable, match="Read-only file system"):
        open_round(book)


def test_two_drafts_of_one_path_have_folders_of_their_own_that_are_hidden(tmp_path: Path) -> None:
    one, two = BookDraft(tmp_path / "run"), BookDraft(tmp_path / "run")
    assert one.folder != two.folder
    assert all(each.folder.parent == tmp_path and each.folder.name.startswith(".run.") for each in (one, two))


def test_a_task_with_an_image_may_be_asked_for_again(tmp_path: Path) -> None:
    book, folder = make_book(tmp_path / "run", tasks=1, samples=1), tmp_path / "env"
    folder.mkdir()
    (folder / "red.png").write_bytes(make_png())
    for url in ("file:red.png", data_url(make_png())):
        parts = [{"type": "image_url", "image_url": {"url": url}}]
        book.request_samples([Task("new", messages=[{"role": "user", "content": parts}])], "Sums", 1, [folder])
    assert book.plan.requested == 3
    assert book.tasks.read(1).messages[0].content[0]["image_url"]["url"] == f"media:{name_of(make_png())}"
    with pytest.raises(UsageError, match="already in the run with different content"):
        book.request_samples([Task("new", "?")], "Sums", 1)


@pytest.mark.parametrize(("option", "start"), [("", "s3://bucket/run: "), ("--out", "--out s3://bucket/run: ")])
def test_a_url_is_refused_with_the_option_that_named_it_if_there_is_one(option: str, start: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse_url("s3://bucket/run", *([option] if option else []))
    assert str(caught.value).startswith(start)
