"""`rollbook verify`: every kind of damage is found, all of it at once, and nothing else is called damage."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book, BookDraft, read_exact_status, verify_run
from rollbook.book.heartbeats import make_presence
from rollbook.book.leases import Leases
from rollbook.book.seals import measure_extent, write_seals
from rollbook.book.source_copies import digest_source
from rollbook.book.verification import EDITED
from rollbook.core import (
    EnvironmentSpec,
    Extent,
    Message,
    Rollout,
    Seal,
    Task,
    decode_part,
    make_failed_line,
    make_part,
    make_scored_line,
)
from rollbook.engine.book_worker import BookJobSource
from rollbook.errors import BookError, UsageError
from rollbook.reports import RunColumns
from support.books import ENV, edit_journal, edit_record, encode_journal_line, failed, make_book, open_round, scored
from support.pictures import data_url, make_png, name_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run with tokens and one failure."""
    book = make_book(tmp_path / "run", tasks=4, samples=2)
    work_off(book)
    return book.path


def work_off(book: Book) -> None:
    round_ = open_round(book)

    async def work() -> None:
        source = BookJobSource(book, round_)
        await source.join()
        while job := await source.next():
            make = failed if (job.row, job.sample) == (0, 0) else scored
            await source.mark(job, make(book, job.row, job.sample, tokens=True, round_number=round_.number), True)
        await source.leave()

    asyncio.run(work())


def find(run: Path, pattern: str) -> Path:
    return min(run.glob(pattern))


def replace_byte(path: Path, at: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + 1] = value
    path.write_bytes(content)


def test_an_undamaged_run_has_no_damage(run: Path) -> None:
    found = verify_run(run)
    assert (found.damage, found.lines, found.torn) == ([], 8, 0)


@pytest.mark.parametrize(
    "pattern", ["done/00000.json", "leases/00000.1", "rounds/0001.json", "workers/*.json", "run.json", "plan.json"]
)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"\0" * 30, b"[]", b'{"worker":"\xff"}'])
def test_a_small_file_that_cannot_be_read_is_named(run: Path, pattern: str, content: bytes) -> None:
    path = find(run, pattern)
    path.unlink()  # a lease shares its content with others
    path.write_bytes(content)
    assert [damage.path for damage in verify_run(run).damage] == [str(path)]


@pytest.mark.parametrize(("name", "unread"), [("plan.json", 0), ("tasks.jsonl", 0), ("run.json", 1)])
def test_every_file_is_counted_although_the_run_cannot_be_opened(run: Path, name: str, unread: int) -> None:
    whole = verify_run(run)
    replace_byte(run / name, 8, b"\xff")
    found = verify_run(run)
    assert [each.path for each in found.damage] == [str(run / name)]
    assert (found.files, found.lines) == (whole.files - unread, whole.lines)  # run.json has the hash of the tasks


def test_a_lease_of_another_worker_than_wrote_the_lines_or_of_no_round_is_named(run: Path) -> None:
    path = find(run, "leases/00000.1")
    worker = json.loads(path.read_text())["worker"]
    for wrong, problem in (({"round": 3}, "its round 3"), ({"worker": worker[:-1] + "x", "round": 1}, "is of ")):
        edit_record(path, **wrong)
        [damage] = verify_run(run).damage
        assert (damage.path, damage.problem[: len(problem)]) == (str(path), problem)


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_seal_of_an_epoch_without_a_lease_is_named(run: Path, epoch: int) -> None:
    path = find(run, "done/00000.json")
    edit_record(path, epoch=epoch)
    assert [str(each) for each in verify_run(run).damage] == [f"{path}: its epoch {epoch} has no lease"]


@pytest.mark.parametrize("wrong", [{"number": 3}, {"settings": {"retry": ["infrb"]}}])
def test_a_round_with_another_number_or_an_unknown_rule_is_named(run: Path, wrong: dict[str, object]) -> None:
    path = run / "rounds" / "0001.json"
    edit_record(path, **wrong)
    assert str(path) in {damage.path for damage in verify_run(run).damage}
    with pytest.raises(BookError, match=r"(by its content|rule of --retry); restore it"):
        read_exact_status(run)


def test_a_seal_with_an_unknown_failure_kind_is_named_and_not_counted(run: Path) -> None:
    path = find(run, "done/00000.json")
    edit_record(path, failed={"model_timeouu": 1})
    open_round(Book(run))  # which opens failures again, by their kind
    assert [damage.path for damage in verify_run(run).damage] == [str(path)]
    with pytest.raises(BookError, match="not a failure kind"):
        read_exact_status(run)


@pytest.mark.parametrize("wrong", [{"tasks": [0, 3]}, {"samples": [0, 3]}, {"samples": [1, 2]}, {"chunks": [9]}])
def test_a_plan_that_contradicts_itself_is_named_and_not_worked_on(run: Path, wrong: dict[str, list[int]]) -> None:
    path = run / "plan.json"
    [part] = json.loads(path.read_text())["parts"]
    edit_record(path, parts=[part | wrong])
    assert [damage.path for damage in verify_run(run).damage] == [str(path)]
    with pytest.raises(BookError, match=r"part 1 has .*; restore it"):
        Book(run)


def drop_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [Path.unlink, drop_last_byte, lambda path: replace_byte(path, 40, b"\0")])
@pytest.mark.parametrize("pattern", ["journals/*.1.jsonl", "journals/*.failures.jsonl", "journals/*.tokens"])
def test_sealed_bytes_that_changed_are_named(run: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    path = find(run, pattern)
    damage(path)
    assert str(path) in {each.path for each in verify_run(run).damage}


def test_all_seals_of_changed_token_ids_are_named_and_can_be_written_again(run: Path) -> None:
    """Who restores a file that was sealed while it was damaged has to delete every one of them."""
    path = find(run, "journals/*.tokens")
    good = path.read_bytes()
    replace_byte(path, 40, b"\0")
    unseal(run)
    work_off(Book(run))
    path.write_bytes(good)
    (damage,) = verify_run(run).damage
    seals = [seal.name for seal in (run / "done").iterdir() if path.name in seal.read_text()]
    assert len(seals) > 1
    assert re.findall(r"\d{5}\S*\.json", damage.problem) == sorted(seals)
    assert damage.problem.startswith("differs from what was sealed by ")
    assert damage.problem.endswith("; restore it, or delete the seals and resume if it was restored after them")
    for seal in seals:
        (run / "done" / seal).unlink()
    work_off(Book(run))
    assert verify_run(run).damage == []


def drop_all_bytes(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [Path.unlink, drop_all_bytes])
@pytest.mark.parametrize("pattern", ["journals/*.1.jsonl", "journals/*.failures.jsonl"])
def test_a_seal_is_not_compared_with_lines_that_are_not_what_was_sealed(
    run: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    path = find(run, pattern)
    damage(path)
    assert [each.path for each in verify_run(run).damage] == [str(path)]


@pytest.mark.parametrize("pattern", ["journals/*.1.jsonl", "journals/*.failures.jsonl"])
def test_a_run_without_a_sealed_journal_is_not_counted(run: Path, pattern: str) -> None:
    find(run, pattern).unlink()
    with pytest.raises(BookError, match="is missing: restore it"):
        read_exact_status(run)


def unseal(run: Path) -> None:
    for path in (run / "done").iterdir():
        path.unlink()


def test_a_changed_digit_in_an_unsealed_journal_is_named_by_line(run: Path) -> None:
    unseal(run)
    path = find(run, "journals/*.1.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"reward":1.0', b'"reward":0.0', 1))
    assert [(each.path, each.line) for each in verify_run(run).damage] == [(str(path), 1)]


def test_a_seal_of_a_chunk_without_any_lease_is_named(run: Path) -> None:
    path = find(run, "done/*.json")
    for lease in (run / "leases").glob(f"{path.stem}.*"):
        lease.unlink()
    assert f"{path}: its epoch 1 has no lease" in [str(each) for each in verify_run(run).damage]


@pytest.mark.parametrize("lines", [1, 7])
def test_a_first_line_that_lost_its_checksum_is_damage_in_every_reader(run: Path, lines: int) -> None:
    unseal(run)
    path = find(run, "journals/*.1.jsonl")
    content = path.read_bytes().replace(b'"reward":1.0', b'"reward":0.0', 1).replace(b'"crc"', b'"crX"', 1)
    path.write_bytes(b"".join(content.splitlines(keepends=True)[:lines]))
    assert [str(each) for each in verify_run(run).damage] == [f"{path}:1: the checksum is missing"]
    status = read_exact_status(run)
    assert (status.damaged, status.scored) == ([f"{path}:1: the checksum is missing"], lines - 1)
    assert status.pending == 8 - 1 - (lines - 1)
    assert [str(line) for line in RunColumns([Book(run)]).damaged] == status.damaged


def test_a_seal_with_counts_other_than_those_of_its_lines_is_named(run: Path) -> None:
    seals = sorted((run / "done").iterdir())
    path = next(path for path in seals if json.loads(path.read_bytes())["failed"] == {})
    scored = json.loads(path.read_bytes())["scored"]
    edit_record(path, scored=scored - 1, failed={"model_timeout": 1})
    says = f"it records {scored - 1} scored and 1 failed (1 model_timeout), but the lines that it covers are "
    assert [str(each) for each in verify_run(run).damage] == [f"{path}: {says}{scored} scored and 0 failed"]


def test_a_seal_with_another_kind_of_failure_is_named(run: Path) -> None:
    path = next(path for path in (run / "done").iterdir() if json.loads(path.read_bytes())["failed"])
    edit_record(path, failed={"verifier_error": 1})
    assert [each.problem.partition(",")[2] for each in verify_run(run).damage if each.path == str(path)]


def test_a_seal_of_a_round_that_does_not_exist_is_named(run: Path) -> None:
    path = find(run, "done/*.json")
    edit_record(path, round=7)
    assert [str(each) for each in verify_run(run).damage] == [f"{path}: its round 7 does not exist"]


def test_the_seals_of_several_rounds_and_owners_agree_with_their_lines(run: Path) -> None:
    work_off(Book(run))
    assert len(list((run / "done").glob("*.2.json"))) == 1
    assert verify_run(run).damage == []


@pytest.mark.parametrize("name", ["book", "book2"])
def test_seals_of_earlier_versions_agree_with_their_lines(tmp_path: Path, name: str) -> None:
    copy = shutil.copytree(Path(__file__).parents[1] / "golden" / name, tmp_path / "run")
    assert verify_run(copy).damage == []


def test_damaged_token_ids_of_an_unsealed_journal_are_named_by_the_line_that_needs_them(run: Path) -> None:
    unseal(run)
    sidecar = find(run, "journals/*.tokens")
    replace_byte(sidecar, sidecar.stat().st_size - 3, b"\x55")
    (damage,) = verify_run(run).damage
    assert (damage.line, sidecar.name in damage.problem) == (7, True)


def test_every_line_of_an_unsealed_journal_whose_token_ids_are_lost_is_named(run: Path) -> None:
    unseal(run)
    sidecar = find(run, "journals/*.tokens")
    sidecar.unlink()
    problem = f"its token ids are lost: {sidecar.name} is missing"
    found = verify_run(run).damage
    assert {each.problem for each in found} == {problem}
    assert sorted(each.line for each in found if not each.path.endswith(".failures.jsonl")) == [*range(1, 8)]


def test_a_torn_end_is_no_damage(run: Path) -> None:
    unseal(run)
    with open(find(run, "journals/*.1.jsonl"), "ab") as file:
        file.write(b'{"status":"sco' + bytes(100))
    found = verify_run(run)
    assert (found.damage, found.torn) == ([], 1)


def test_all_damage_is_named_at_once(run: Path) -> None:
    paths = [find(run, name) for name in ("done/00001.json", "rounds/0001.json", "tasks.jsonl", "journals/*.1.jsonl")]
    for path in paths:
        replace_byte(path, 8, b"\xff")
    find(run, "leases/00002.1").unlink()
    (run / "leases" / "00002.2").write_text('{"worker":"x","round":1}')
    expected = {*map(str, paths), str(run / "leases" / "00002.1")}
    assert {each.path for each in verify_run(run).damage} == expected


def test_damage_of_all_frozen_files_is_named_at_once_although_the_run_cannot_be_opened(run: Path) -> None:
    broken = [run / name for name in ("plan.json", "rounds/0001.json", "tasks.jsonl")]
    for path in broken:
        path.write_bytes(path.read_bytes().replace(b'"', b"#", 1))
    assert sorted(damage.path for damage in verify_run(run).damage) == sorted(map(str, broken))


FLIPPED = {
    "run.json": b'"temperature"',
    "rounds/0001.json": b'"concurrency"',
    "leases/00000.1": b'"worker":"',
    "done/00000.json": b'"dropped"',
    "journals/*.1.jsonl": b'"seconds"',
    "journals/*.failures.jsonl": b'"seconds"',
    "journals/*.tokens": b"",
}
"""A file of every kind, and a text in it behind which a bit can flip without a trace but for a checksum."""


def flip_bit(run: Path, pattern: str, text: bytes) -> str:
    """Flip the lowest bit of the first letter or digit that follows a text in a file; return its path."""
    path = find(run, pattern)
    data = path.read_bytes()
    at = data.index(text) + len(text)
    while not data[at : at + 1].isalnum():
        at += 1
    path.unlink()  # a lease shares its content with others
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    return str(path)


@pytest.mark.parametrize("can_open", [True, False])
def test_damage_of_all_files_is_named_at_once_whether_or_not_the_run_can_be_opened(run: Path, can_open: bool) -> None:
    flipped = {flip_bit(run, pattern, text) for pattern, text in FLIPPED.items()}
    if not can_open:
        flipped.add(flip_bit(run, "plan.json", b'"schema"'))
    assert {damage.path for damage in verify_run(run).damage} == flipped


@pytest.mark.parametrize(
    ("pattern", "text"), [("rounds/0001.json", b'"concurrency"'), ("plan.json", b'"schema"'), ("run.json", b'"seed"')]
)
def test_a_flipped_bit_in_a_file_is_refused_by_name_and_with_a_way_out(run: Path, pattern: str, text: bytes) -> None:
    path = flip_bit(run, pattern, text)
    with pytest.raises(BookError, match=rf"{path}.*; restore it from a copy of the run|{path} was edited.*restore it"):
        Book(run).check_meaning()
    content = Path(path).read_text()
    Path(path).write_text(re.sub(r',\s*"crc": "\w+"', "", content))  # as the error says, for a change on purpose
    schema = "schema 3; this version reads 1 to 2; restore it from a copy of the run"
    left = {"run.json": [f"{path}: {EDITED}"], "plan.json": [f"{path}: {schema}"]}.get(pattern, [])
    assert [str(each) for each in verify_run(run).damage] == left


def test_files_without_a_checksum_are_those_of_an_earlier_version(run: Path) -> None:
    for path in [*run.glob("rounds/*"), *run.glob("leases/*"), *run.glob("done/*"), run / "plan.json"]:
        value = json.loads(path.read_bytes())
        assert len(value.pop("crc")) == 8
        path.unlink()
        path.write_text(json.dumps(value))
    assert verify_run(run).damage == []
    assert read_exact_status(run).scored == 7


def test_edited_tasks_are_named_with_their_own_problem_although_a_round_is_damaged(run: Path) -> None:
    (run / "rounds" / "0001.json").write_bytes(b"{")
    tasks = run / "tasks.jsonl"
    tasks.write_bytes(tasks.read_bytes().replace(b"What", b"That", 1))
    problems = {Path(damage.path).name: damage.problem for damage in verify_run(run).damage}
    assert problems["tasks.jsonl"] == "was edited since the run began"
    assert "0001.json" in problems


def make_book_with_image(path: Path) -> tuple[Book, Path]:
    """Return a book whose second task shows an image, and the image."""
    plain = make_book(path.with_name("plain"))
    image = {"type": "image_url", "image_url": {"url": data_url(make_png())}}
    with BookDraft(path) as draft:
        tasks = [Task("t0", "?"), Task("t1", messages=[{"role": "user", "content": [image]}])]
        count = draft.add_tasks(tasks, ENV)
        book = draft.finish(plain.manifest, [make_part((0, count), (0, 1), 1)])
    return book, path / "media" / name_of(make_png())


def test_images_are_checked_with_the_run(tmp_path: Path) -> None:
    book, image = make_book_with_image(tmp_path / "run")
    assert image.exists()
    found = verify_run(book.path)
    assert found.damage == []
    assert found.files == verify_run(tmp_path / "plain").files + 1


def test_an_image_that_changed_is_named(tmp_path: Path) -> None:
    book, image = make_book_with_image(tmp_path / "run")
    image.write_bytes(b"other")
    (damage,) = verify_run(book.path).damage
    assert (damage.path, damage.problem) == (str(image), "is not what was stored")


def test_an_image_that_is_missing_is_named_by_the_task_that_shows_it(tmp_path: Path) -> None:
    book, image = make_book_with_image(tmp_path / "run")
    image.unlink()
    (damage,) = verify_run(book.path).damage
    assert (damage.path, damage.line) == (str(book.path / "tasks.jsonl"), 2)
    assert damage.problem == f"it shows media/{image.name}, which is missing"


@pytest.mark.parametrize(("torn", "count"), [(b"", 0), (b"{", 1), (b'{"task', 1)])
def test_a_torn_line_is_counted_also_where_it_is_the_only_one(run: Path, torn: bytes, count: int) -> None:
    (run / "journals" / "killed.1.jsonl").write_bytes(torn)
    found = verify_run(run)
    assert (found.torn, found.damage, found.lines) == (count, [], 8)


def test_a_line_that_is_not_planned_or_not_of_its_kind_is_named(run: Path) -> None:
    path = find(run, "journals/*.1.jsonl")
    edit_journal(path, '"sample":1', '"sample":9', 1)
    (damage,) = (each for each in verify_run(run).damage if each.line)
    assert damage.path == str(path)
    assert re.fullmatch(r"task 't\d' sample 9 is not in the plan", damage.problem)
    edit_journal(path, '"task":"(t.)"', '"task":7', 1)
    assert any("Expected `str`, got `int`" in each.problem for each in verify_run(run).damage)


def test_damaged_tasks_are_named_by_their_line(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    rows = book.path / "tasks.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b'"id"', b'"no"', 1))
    edit_record(book.path / "run.json", tasks=None)
    assert any(
        "tasks.jsonl" in each.path and "not a task line" in each.problem for each in verify_run(book.path).damage
    )


def test_a_first_seal_that_is_missing_is_named_although_a_later_one_exists(run: Path) -> None:
    work_off(Book(run))
    (later,) = (run / "done").glob("*.2.json")
    first = later.with_name(later.name.replace(".2.", "."))
    first.unlink()
    assert f"{first}: is missing" in [str(damage) for damage in verify_run(run).damage]


@pytest.mark.parametrize(("names", "named"), [(("ghost", "real"), 1), (("real", "ghost"), 2), (("real", "real2"), 2)])
def test_of_several_leases_that_of_a_worker_that_never_joined_is_named(
    run: Path, names: tuple[str, str], named: int
) -> None:
    """If all of them joined, the last one."""
    (worker,) = (run / "workers").glob("*.json")
    for name in ("real", "real2"):
        shutil.copy(worker, run / "workers" / f"{name}.json")
    shutil.copy(run / "leases" / "00000.1", run / "leases" / "00000.2")
    for epoch, name in enumerate(names, 1):
        edit_record(run / "leases" / f"00000.{epoch}", worker=name)
    (damage,) = verify_run(run).damage
    assert damage.path == str(run / "leases" / f"00000.{named}")
    assert damage.problem.startswith(f"is of {names[named - 1]}, but {worker.stem} has lines")


def test_the_name_of_a_missing_image_is_cut(tmp_path: Path) -> None:
    book, _ = make_book_with_image(tmp_path / "run")
    rows = book.path / "tasks.jsonl"
    rows.write_bytes(re.sub(rb"media:[^\"]+", b"media:" + b"x" * 200, rows.read_bytes()))
    (problem,) = [each.problem for each in verify_run(book.path).damage if each.line]
    assert re.findall("x{5,}", problem) == ["x" * 80]


def test_an_image_that_is_missing_is_named_by_every_line_that_shows_it(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    open_round(book)
    reference = book.media.put(decode_part({"type": "image_url", "image_url": {"url": data_url(make_png())}}))
    plain, showing = scored(book, 0, 0), scored(book, 1, 0)
    showing.messages.append(Message("user", [{"type": "image_url", "image_url": {"url": reference}}]))
    Leases(book.path, "w", 1).claim(0, 1)
    path = book.path / "journals" / "w.1.jsonl"
    path.write_bytes(b"".join(encode_journal_line(make_scored_line(each, [None])) for each in (plain, showing)))
    lines = [each.line for each in verify_run(book.path).damage if each.path == str(path)]
    (book.path / "media" / name_of(make_png())).unlink()
    damage = [each for each in verify_run(book.path).damage if each.path == str(path)]
    assert (lines, [each.line for each in damage]) == ([], [2])
    assert damage[0].problem == f"it shows media/{name_of(make_png())}, which is missing"


def make_book_with_source(path: Path) -> tuple[Book, Path]:
    """Return a book whose environment is of the user's own source, and the copy of that source."""
    plain = make_book(path.with_name("plain"))
    source = path.with_name("copied")
    (source / "more").mkdir(parents=True)
    (source / "sums.py").write_text("class Sums: ...")
    (source / "more" / "data.txt").write_text("1 2")
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "sums.pyc").touch()
    spec = EnvironmentSpec("sums.py:Sums", "sums:Sums", digest=digest_source(source), snapshot="source/sums")
    manifest = msgspec.structs.replace(plain.manifest, environments={ENV: spec})
    with BookDraft(path) as draft:
        draft.copy_tasks(plain)
        book = draft.finish(manifest, plain.plan.parts)
    shutil.copytree(source, path / "source" / "sums")
    return book, path / "source" / "sums"


def edit_file(source: Path) -> None:
    (source / "more" / "data.txt").write_text("1 3")


def rename_file(source: Path) -> None:
    (source / "more" / "data.txt").rename(source / "more" / "other.txt")


def add_file(source: Path) -> None:
    (source / "new.py").touch()


@pytest.mark.parametrize("edit", [edit_file, rename_file, add_file])
def test_a_copy_of_source_that_was_edited_is_named(tmp_path: Path, edit: Callable[[Path], None]) -> None:
    book, source = make_book_with_source(tmp_path / "run")
    found = verify_run(book.path)
    assert (found.damage, found.files) == ([], verify_run(tmp_path / "plain").files + 2)
    (source / "__pycache__" / "sums.pyc").write_text("compiled again")
    assert verify_run(book.path).damage == []
    edit(source)
    assert [str(each) for each in verify_run(book.path).damage] == [f"{source}: {EDITED}"]
    edit_record(book.path / "run.json", created=2.0)
    (book.path / "run.json").write_bytes((book.path / "run.json").read_bytes().replace(b"2.0", b"3.0", 1))
    assert [each.path for each in verify_run(book.path).damage] == [str(book.path / "run.json")]


def test_a_copy_of_source_is_checked_where_the_plan_is_damaged(tmp_path: Path) -> None:
    book, source = make_book_with_source(tmp_path / "run")
    (book.path / "plan.json").write_bytes(b"{")
    assert [each.path for each in verify_run(book.path).damage] == [str(book.path / "plan.json")]
    edit_file(source)
    assert [each.path for each in verify_run(book.path).damage] == [str(book.path / "plan.json"), str(source)]


def test_a_path_that_is_no_run_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run directory"):
        verify_run(tmp_path / "none")


def test_a_run_that_cannot_be_opened_and_has_no_folders_is_checked_too(tmp_path: Path) -> None:
    path = make_book(tmp_path / "run").path
    for folder in path.iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    (path / "plan.json").write_bytes(b"{")
    (damage,) = verify_run(path).damage
    assert damage.path == str(path / "plan.json")


def test_checking_keeps_no_file_open(run: Path) -> None:
    assert verify_run(run).damage == []
    gc.collect()
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    assert [link for link in links if link.startswith(f"{run}/journals")] == []


def test_a_seal_that_cannot_be_read_is_not_called_missing(run: Path) -> None:
    path = find(run, "done/00000.json")
    path.write_bytes(b"{")
    assert [each.problem for each in verify_run(run).damage if "missing" in each.problem] == []


@pytest.mark.parametrize("chunk", [4, 5, 99])
def test_a_seal_of_a_chunk_that_is_not_planned_is_named(run: Path, chunk: int) -> None:
    """There are as many chunks as the highest number plus one."""
    count = len(Book(run).chunks)
    number = count + chunk - 4
    shutil.copy(find(run, "done/00000.json"), run / "done" / f"{number:05}.json")
    assert f"{run / 'done' / f'{number:05}.json'}: chunk {number} is not in the plan" in [
        str(each) for each in verify_run(run).damage
    ]


def make_sealed_book(path: Path, *rounds: dict[str, list[Rollout]], seals: list[Seal]) -> Book:
    """A book of one task and eight samples, whose first chunk of four was sealed in every round."""
    book = make_book(path, tasks=1, samples=8)
    presence = json.dumps(msgspec.to_builtins(make_presence(1)))
    files: dict[str, Extent] = {}
    for number, (journals, seal) in enumerate(zip(rounds, seals, strict=True), 1):
        open_round(book, ["all"])
        for worker, rollouts in journals.items():
            (book.path / "workers" / f"{worker}.json").write_text(presence)
            Leases(book.path, worker, number).claim(0, number)
            for failure in (False, True):
                lines = [
                    make_failed_line(each, [None], True) if failure else make_scored_line(each, [None])
                    for each in rollouts
                    if bool(each.failure) is failure
                ]
                journal = book.path / "journals" / f"{worker}.1{'.failures' if failure else ''}.jsonl"
                if lines:
                    journal.write_bytes(b"".join(map(encode_journal_line, lines)))
                    files[journal.name] = measure_extent(journal, 1 << 30)
        made = msgspec.structs.replace(seal, round=number, epoch=number, files=dict(files))
        write_seals(book.path, {0: (made, number > 1)})
    return book


def test_a_key_with_a_score_has_not_failed_whatever_else_is_said_of_it(tmp_path: Path) -> None:
    source = make_book(tmp_path / "source", tasks=1, samples=8)
    rollouts = [failed(source, 0, 0, "verifier_error"), *(scored(source, 0, sample) for sample in range(4))]
    book = make_sealed_book(tmp_path / "run", {"w": rollouts}, seals=[Seal(0, 0, 4, {}, 0, {})])
    assert verify_run(book.path).damage == []


def test_a_seal_of_a_later_round_covers_what_the_earlier_one_left_of_other_workers(tmp_path: Path) -> None:
    """A failure that the later round opened again does not count in it, in whatever order journals are read."""
    source = make_book(tmp_path / "source", tasks=1, samples=8)
    first = [failed(source, 0, 0), *(scored(source, 0, sample) for sample in range(1, 4))]
    second = [failed(source, 0, 0, "verifier_error", round_number=2)]
    seals = [Seal(0, 0, 3, {kind: 1}, 0, {}) for kind in ("model_timeout", "verifier_error")]
    for name, workers in (("run", "za"), ("again", "az")):
        book = make_sealed_book(tmp_path / name, {workers[0]: first}, {workers[1]: second}, seals=seals)
        assert verify_run(book.path).damage == []


@pytest.mark.parametrize("schema", [1, 2, 99])
def test_lines_need_a_checksum_since_schema_2_also_where_the_plan_cannot_be_read(run: Path, schema: int) -> None:
    unseal(run)
    path = find(run, "journals/*.failures.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"crc"', b'"crX"'))
    (run / "plan.json").write_bytes(b"{")
    edit_record(run / "run.json", schema=schema)
    problems = {each.path: each.problem for each in verify_run(run).damage}
    assert problems.get(str(path)) == ("the checksum is missing" if schema == 2 else None)


def test_what_a_worker_wrote_behind_a_seal_counts_in_no_later_seal(tmp_path: Path) -> None:
    source = make_book(tmp_path / "source", tasks=1, samples=8)
    first = [failed(source, 0, 0), *(scored(source, 0, sample) for sample in range(1, 4))]
    seals = [Seal(0, 0, 3, {kind: 1}, 0, {}) for kind in ("model_timeout", "verifier_error")]
    book = make_sealed_book(tmp_path / "run", {"z": first}, seals=seals[:1])
    with (book.path / "journals" / "z.1.jsonl").open("ab") as file:
        file.write(encode_journal_line(make_scored_line(scored(source, 0, 0), [None])))
    whole = {path.name: measure_extent(path, 1 << 30) for path in (book.path / "journals").iterdir()}
    second = failed(source, 0, 0, "verifier_error", round_number=2)
    open_round(book, ["all"])
    Leases(book.path, "a", 2).claim(0, 2)
    shutil.copy(book.path / "workers" / "z.json", book.path / "workers" / "a.json")
    journal = book.path / "journals" / "a.1.failures.jsonl"
    journal.write_bytes(encode_journal_line(make_failed_line(second, [None], True)))
    whole[journal.name] = measure_extent(journal, 1 << 30)
    write_seals(book.path, {0: (msgspec.structs.replace(seals[1], round=2, epoch=2, files=whole), True)})
    assert verify_run(book.path).damage == []
