"""What counts: each key once, the lowest epoch first, sealed chunks as they were sealed."""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from rollbook.book import counted_lines
from rollbook.book.book import Book
from rollbook.book.counted_lines import (
    ContestedLines,
    CountedLines,
    FinalFailures,
    KeyMap,
    LineIndex,
    counted_limit,
    rollouts,
)
from rollbook.book.journal import Journal, JournalEntry
from rollbook.book.json_lines import NO_LIMIT
from rollbook.book.leases import Leases
from rollbook.book.seals import Seals, list_seals, measure_extent, measure_extents, read_seal, write_seals
from rollbook.book.status import read_exact_status
from rollbook.core import Extent, Rollout, ScoredLine, Seal, Task, make_failed_line
from rollbook.errors import BookError
from support.books import encode_journal_line, failed, make_book, open_round, scored


def write(book: Book, worker: str, made: list[Rollout], final: bool = True) -> dict[str, Extent]:
    async def go() -> dict[str, Extent]:
        journal = Journal(book.path, worker, lambda _: None)
        journal.start()
        for rollout in made:
            await journal.add(JournalEntry(rollout, final))
        await journal.close()
        return journal.extents(1)

    return asyncio.run(go())


def claim(book: Book, worker: str, epoch: int) -> None:
    for chunk in range(len(book.chunks)):
        assert Leases(book.path, worker, 1).claim(chunk, epoch)


def rewards(book: Book) -> tuple[dict[tuple[str, int], float], int]:
    reading = CountedLines(book, ScoredLine)
    return {(line.task, line.sample): line.reward for _, _, line in reading}, reading.dropped


def test_every_key_has_one_place_and_one_chunk(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=7, samples=3)
    book.extend(5, 2)
    keys = KeyMap(book)
    places = {}
    for chunk in book.chunks:
        for row, sample in chunk:
            found = keys.find(f"t{row}", sample)
            assert found is not None
            assert (found[0], found[2]) == (row, chunk.number)
            places[found[1]] = (row, sample)
    assert sorted(places) == list(range(keys.keys))
    assert keys.find("t0", 99) is None
    assert keys.find("unknown", 0) is None


def test_the_lowest_epoch_wins_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=2)
    for epoch, worker in enumerate(["old", "heir"], start=1):
        claim(book, worker, epoch)
    write(book, "heir", [scored(book, 0, 0, reward=0.25), scored(book, 0, 1, reward=0.25)])
    write(book, "old", [scored(book, 0, 0, reward=0.75)])
    assert rewards(book) == ({("t0", 0): 0.75, ("t0", 1): 0.25}, 1)


def test_a_line_written_twice_counts_once(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    claim(book, "w", 1)
    write(book, "w", [scored(book, 0, 0), scored(book, 0, 0)])
    assert rewards(book) == ({("t0", 0): 1.0}, 1)


def test_a_sealed_chunk_does_not_change_when_its_old_owner_wakes_up(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    claim(book, "old", 1)
    claim(book, "heir", 2)
    files = write(book, "heir", [scored(book, 0, 0, reward=0.25)])
    write_seals(book.path, {0: (Seal(1, 2, 1, {}, 0, files), False)})
    write(book, "old", [scored(book, 0, 0, reward=0.75)])
    assert rewards(book) == ({("t0", 0): 0.25}, 1)


def test_an_owner_after_the_seal_adds_to_it(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    claim(book, "first", 1)
    files = write(book, "first", [failed(book, 0, 0)])
    write_seals(book.path, {0: (Seal(1, 1, 0, {"model_timeout": 1}, 0, files), False)})
    claim(book, "later", 2)
    write(book, "later", [scored(book, 0, 0, reward=0.5)])
    assert rewards(book) == ({("t0", 0): 0.5}, 0)


def test_no_seal_replaces_another_and_that_of_the_last_round_counts(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    kinds = {"model_timeout": 1}
    first, late, again = Seal(1, 2, 0, kinds, 0, {}), Seal(1, 1, 0, kinds, 0, {}), Seal(3, 4, 1, {}, 0, {})
    assert write_seals(book.path, {0: (first, False)}) == {0}
    assert write_seals(book.path, {0: (late, False)}) == set()
    assert Seals(book.path).refresh() == {0: first}
    seals = Seals(book.path)
    assert (seals.find(0), seals.find(1)) == (first, None)
    assert write_seals(book.path, {0: (again, True)}) == {0}
    woken = [Seal(3, 3, 0, kinds, 0, {}), Seal(2, 3, 0, kinds, 0, {})]
    assert [write_seals(book.path, {0: (seal, True)}) for seal in woken] == [set(), {0}]
    assert (seals.find(0), seals.refresh(), Seals(book.path).refresh()) == (again, {0: again}, {0: again})
    names = ["00000.2.json", "00000.3.json", "00000.json"]
    assert sorted(path.name for path in (book.path / "done").iterdir()) == names


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=2)
    write(book, "w", [scored(book, 0, 1), scored(book, 1, 0)])
    reading = CountedLines(book, ScoredLine)
    assert len(list(reading)) == 2
    assert list(reading.iterate_missing()) == [(0, 0), (1, 1)]


def test_a_line_that_the_plan_does_not_ask_for_is_an_error(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    stray = scored(book, 0, 0)
    stray.sample = 9
    write(book, "w", [scored(book, 0, 0), stray])
    named = r"w\.1\.jsonl:2: task 't0' sample 9 is not in the plan: restore plan\.json and tasks\.jsonl"
    with pytest.raises(BookError, match=named):
        rewards(book)


def test_a_failure_that_the_plan_does_not_ask_for_is_an_error(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    open_round(book)
    stray = failed(book, 0, 0)
    stray.sample = 9
    line = encode_journal_line(make_failed_line(stray, [None], True))
    (book.path / "journals" / "w.1.failures.jsonl").write_bytes(line)
    for read in (lambda: LineIndex(book), lambda: read_exact_status(book.path), lambda: list(FinalFailures(book))):
        with pytest.raises(BookError, match=r"w\.1\.failures\.jsonl:1: task 't0' sample 9 is not in the plan: restore"):
            read()


def test_only_final_failures_stand(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    open_round(book)
    write(book, "a", [failed(book, 0, 0)], final=False)
    write(book, "b", [failed(book, 1, 0, "verifier_error")])
    assert [(mark.task, mark.failure.kind) for mark in FinalFailures(book)] == [("t1", "verifier_error")]
    open_round(book, ["verifier_error"])
    assert list(FinalFailures(book)) == []


def test_a_cut_sidecar_is_an_error_that_names_it(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    write(book, "w", [scored(book, 0, 0, tokens=True)])
    sidecar = book.path / "journals" / "w.1.tokens"
    sidecar.write_bytes(sidecar.read_bytes()[:-3])
    with pytest.raises(BookError, match=r"w\.1\.tokens ends before"):
        list(rollouts(book, tokens=True))


def test_a_sealed_line_that_is_gone_is_noticed_and_every_seal_on_it_is_named(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=3)
    for chunk in range(len(book.chunks)):
        Leases(book.path, "w", 1).claim(chunk, 1)
    files = write(book, "w", [scored(book, 0, sample) for sample in range(3)])
    write_seals(book.path, {n: (Seal(1, 1, 1, {}, 0, files), False) for n in range(len(book.chunks))})
    assert len(rewards(book)[0]) == 3
    path = book.path / "journals" / "w.1.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged in (lines[0] + lines[2], lines[0] + lines[1].replace(b"1.0", b"0.0") + lines[2]):
        path.write_bytes(damaged)
        with pytest.raises(BookError, match=r"differs from what was sealed.*00000.*00001"):
            rewards(book)


@pytest.mark.parametrize("block", [2, 5, 1 << 16])
def test_a_line_is_read_by_the_offset_of_its_end_whatever_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(counted_lines, "TAIL_BLOCK_BYTES", block)
    path, lines = tmp_path / "lines", [b"first of all", b"", b"the second, which is longer", b"3"]
    path.write_bytes(b"\n".join(lines) + b"\n")
    ends = [sum(len(line) + 1 for line in lines[: number + 1]) for number in range(len(lines))]
    assert [counted_lines.read_line_before(path, end) for end in ends] == lines


def test_every_planned_key_has_a_place_of_its_own_and_its_chunk(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=2)
    book.request_samples([book.tasks.read(1), Task(id="new", prompt="x"), Task(id="more", prompt="y")], "Sums", 3)
    book.extend(4, 1)
    keys = KeyMap(book)
    names = [book.tasks.read(row).id for row in range(len(book.tasks))]
    places = []
    for chunk in book.chunks:
        for row, sample in chunk:
            found = keys.find(names[row], sample)
            assert found
            assert (found[0], found[2]) == (row, chunk.number)
            places.append(found[1])
    assert places == list(range(keys.keys)) == list(range(book.plan.requested))
    assert keys.find("none", 0) is None
    assert keys.find("t0", 9) is None
    assert keys.check(tmp_path, 7, "t0", 0) == keys.find("t0", 0)
    with pytest.raises(BookError, match="'t0' sample 9"):
        keys.check(book.path / "tasks.jsonl", 7, "t0", 9)


@pytest.mark.parametrize(
    ("seal", "epoch", "journal", "limit"),
    [
        (None, 1, "w.1.jsonl", NO_LIMIT),
        (Seal(1, 2, 1, {}, 0, {"w.1.jsonl": Extent(70, "")}), 1, "w.1.jsonl", 70),
        (Seal(1, 2, 1, {}, 0, {"w.1.jsonl": Extent(70, "")}), 2, "w.1.jsonl", 70),
        (Seal(1, 2, 1, {}, 0, {"w.1.jsonl": Extent(70, "")}), 2, "other.1.jsonl", 0),
        (Seal(1, 2, 1, {}, 0, {"w.1.jsonl": Extent(70, "")}), 3, "other.1.jsonl", NO_LIMIT),
    ],
)
def test_lines_count_up_to_what_their_seal_covers(seal: Seal | None, epoch: int, journal: str, limit: int) -> None:
    assert counted_limit(seal, epoch, journal) == limit


def test_of_contested_lines_the_lowest_epoch_then_the_lowest_attempt_then_the_first_counts() -> None:
    lines: ContestedLines[str] = ContestedLines()
    added = [
        lines.add(place, rank, line)
        for place, rank, line in (
            (0, (2, 1), "later owner"),
            (0, (1, 2), "second attempt"),
            (0, (1, 1), "best"),
            (0, (1, 1), "best again"),
            (0, (1, 3), "third attempt"),
            (1, (5, 1), "alone"),
        )
    ]
    assert added == [True, False, False, False, False, True]
    assert list(lines) == ["best", "alone"]


@pytest.mark.parametrize(
    ("name", "refusing"), [("w.1.jsonl", CountedLines), ("w.1.failures.jsonl", FinalFailures), ("w.1.tokens", None)]
)
def test_only_who_reads_a_sealed_file_misses_it(tmp_path: Path, name: str, refusing: type | None) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    open_round(book)
    files = write(book, "w", [scored(book, 0, 0, tokens=True), failed(book, 1, 0)])
    write_seals(book.path, {0: (Seal(1, 1, 1, {"model_timeout": 1}, 0, files), False)})
    (book.path / "journals" / name).unlink()
    for reader in (CountedLines(book, ScoredLine), FinalFailures(book)):
        refused = pytest.raises(BookError, match=f"{name} is missing: restore it")
        with refused if isinstance(reader, refusing or ()) else nullcontext():
            list(reader)


@pytest.mark.parametrize("chunks", [[0], [0, 2], [0, 1, 2]])
def test_the_seals_to_remove_are_named_as_a_shell_understands_it(tmp_path: Path, chunks: list[int]) -> None:
    book = make_book(tmp_path / "run", tasks=3, samples=1)
    open_round(book)
    files = write(book, "w", [scored(book, 0, 0)])
    write_seals(book.path, {chunk: (Seal(1, 1, 1, {}, 0, files), False) for chunk in chunks})
    path = book.path / "journals" / "w.1.jsonl"
    data = path.read_bytes()
    for damage in (lambda: path.write_bytes(data[:-2]), path.unlink):
        damage()
        with pytest.raises(BookError) as caught:
            rewards(book)
        (command,) = re.findall("`(rm .*)`", str(caught.value))
        listed = subprocess.check_output(["bash", "-c", command.replace("rm", "ls", 1)], text=True)
        assert listed.split() == [str(book.path / "done" / f"{chunk:05}.json") for chunk in chunks]


def test_extents_are_those_of_the_first_bytes_however_many_are_asked_for(tmp_path: Path) -> None:
    path, data = tmp_path / "file", bytes(range(251)) * 9000  # more than is read at once
    path.write_bytes(data)
    sizes = [0, 3, 3, 5, 1 << 20, (1 << 20) + 7, len(data) - 1, len(data), len(data) + 9]
    expected = [(min(size, len(data)), hashlib.sha256(data[:size]).hexdigest()) for size in sizes]
    assert [(extent.bytes, extent.sha256) for extent in measure_extents(path, sizes)] == expected
    assert measure_extent(path, 5) == Extent(*expected[3])


def test_only_seals_are_read_as_seals(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    for name in ("00000.json", "00000.2.json", "00003.json", "00004", "notes.json", "00005.x.json", ".00006.json.ab",
                 "00007.json~", "00008.2", "x.2.json"):  # fmt: skip
        (run / "done" / name).touch()
    assert Seals(run).list_numbers() == {0, 3}
    assert [path.name for path in list_seals(run, 0)] == ["00000.json", "00000.2.json"]


def test_a_seal_without_failures_is_read_once_and_one_with_failures_again(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    whole, open_ = Seal(1, 1, 1, {}, 0, {}), Seal(1, 1, 0, {"model_timeout": 1}, 0, {})
    write_seals(book.path, {0: (whole, False), 1: (open_, False)})
    seals = Seals(book.path)
    assert [seals.find(0), seals.find(1)] == [whole, open_]
    for chunk in (0, 1):
        write_seals(book.path, {chunk: (Seal(2, 2, 1, {}, 0, {}), True)})
    assert [seals.find(0), seals.find(1)] == [whole, Seal(2, 2, 1, {}, 0, {})]
    assert seals.numbers == {0, 1}


def test_every_key_is_told_from_every_other(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=10, samples=7)
    kept = {(row, sample) for row in range(10) for sample in range(7) if (row * 7 + sample) % 3}
    write(book, "w", [scored(book, row, sample) for row, sample in sorted(kept)])
    reading = CountedLines(book, ScoredLine)
    assert {(row, line.sample) for row, _, line in reading} == kept
    assert reading.dropped == 0
    assert list(reading.iterate_missing()) == [(r, s) for r in range(10) for s in range(7) if (r, s) not in kept]


def test_tokens_are_read_only_where_they_are_asked_for(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=1, samples=1)
    write(book, "w", [scored(book, 0, 0, tokens=True)])
    asked = [list(rollouts(book)), list(rollouts(book, tokens=False)), list(rollouts(book, tokens=True))]
    assert [each.turns[0].has_tokens for (each,) in asked] == [False, False, True]


def test_a_seal_that_is_missing_is_not_called_damaged(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        read_seal(book.path / "done" / "00000.json")
    (book.path / "done" / "00000.json").write_bytes(b"{")
    with pytest.raises(BookError, match=r"00000\.json: .*; restore it, or delete it"):
        read_seal(book.path / "done" / "00000.json")


def test_the_seal_that_is_read_is_the_one_that_counts(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run")
    first, again = Seal(1, 1, 0, {"model_timeout": 2}, 0, {}), Seal(12, 2, 2, {}, 0, {})
    for number in (first, again):
        write_seals(book.path, {0: (number, number is again)})
    seals = Seals(book.path)
    assert (seals.read(0), seals.list_numbers(), seals.read(0)) == (first, {0}, again)


@pytest.mark.parametrize("kept", [0, 1])
def test_a_sealed_journal_that_lost_lines_is_refused_with_where_it_ends(tmp_path: Path, kept: int) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=1)
    files = write(book, "w", [scored(book, 0, 0), scored(book, 1, 0)])
    write_seals(book.path, {0: (Seal(1, 1, 1, {}, 0, files), False)})
    path = book.path / "journals" / "w.1.jsonl"
    left = b"".join(path.read_bytes().splitlines(keepends=True)[:kept])
    path.write_bytes(left)
    with pytest.raises(BookError, match=rf"whole lines end at byte {len(left)}\)"):
        rewards(book)
