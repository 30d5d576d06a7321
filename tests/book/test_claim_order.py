"""Long tasks first: what is known of lengths, and the order in which chunks and keys are claimed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook import plan, run
from rollbook.book import Book, ChunkClaimer, rollouts
from rollbook.book.claim_order import TaskLengths, measure_lengths, open_ordered_round, open_profile, read_lengths
from rollbook.book.claim_order import _complete as complete_lengths
from rollbook.book.heartbeats import make_presence, write_heartbeat
from rollbook.book.journal import Journal, JournalEntry
from rollbook.core import Chunks, Part, Plan, Settings, Turn, decode, encode
from rollbook.engine.progress import SilentDisplay
from rollbook.engine.runs import extend, work
from rollbook.errors import UsageError
from support.books import edit_journal, make_book, open_round, scored
from support.sums import SUMS, write_sums

LENGTHS = [30, 10, 50, 20, 40, 60]


def write_lengths_script(folder: Path, **more: object) -> str:
    """A script whose answers are so many tokens long."""
    path = folder / "script.jsonl"
    lines = [
        {"task": f"sum-{i}", "answer": str(2 * i), "prompt_ids": [1], "ids": [7] * n, "logprobs": [-0.5] * n, **more}
        for i, n in enumerate(LENGTHS)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def do_run(folder: Path, out: str = "run", **more: object) -> Path:
    env = f"{write_sums(folder)}?tasks={len(LENGTHS)}"
    run(env, write_lengths_script(folder), out=folder / out, concurrency=1, **more)  # type: ignore[arg-type]
    return folder / out


def list_started(path: Path, sample: int) -> list[int]:
    """The numbers of the tasks, in the order in which their rollouts began."""
    found = [each for each in rollouts(Book(path)) if each.sample == sample]
    return [int(each.task.id.removeprefix("sum-")) for each in sorted(found, key=lambda each: each.timing.start)]


def test_a_first_round_follows_the_plan_and_an_extension_begins_with_the_longest(tmp_path: Path) -> None:
    path = do_run(tmp_path)
    assert list_started(path, 0) == [0, 1, 2, 3, 4, 5]
    plan = (path / "plan.json").read_bytes()
    extend(path, 2, {}, SilentDisplay())
    lengths = read_lengths(path, 2)
    assert lengths == TaskLengths("tokens", [float(each) for each in LENGTHS])
    # chunks are of 3 keys: the one that holds the longest task comes first, and in it the longest task
    assert list_started(path, 1) == [5, 4, 3, 2, 0, 1]
    assert read_lengths(path, 1) is None
    assert decode((path / "plan.json").read_bytes())["parts"][:1] == decode(plan)["parts"]


def test_a_new_run_may_follow_the_lengths_of_another(tmp_path: Path) -> None:
    profile = do_run(tmp_path, "profile")
    path = do_run(tmp_path, order=f"profile:{profile}")
    assert list_started(path, 0) == [5, 4, 3, 2, 0, 1]


def test_chunks_are_of_one_task_where_lengths_are_known(tmp_path: Path) -> None:
    profile = do_run(tmp_path, "profile")
    path = do_run(tmp_path, order=f"profile:{profile}", samples=16)
    assert Book(path).plan.parts[0].chunks == [16] * 6
    assert list_started(path, 0) == [5, 2, 4, 0, 3, 1]


def test_a_profile_of_other_tasks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    profile = do_run(tmp_path, "profile")
    (tmp_path / "other").mkdir()
    other = write_sums(tmp_path / "other", SUMS.replace("sum-{i}", "other-{i}"))
    script = tmp_path / "any.jsonl"
    script.write_text('{"answer": "1"}\n')
    with pytest.raises(UsageError, match="scored none of these tasks"):
        run(other, f"scripted:{script}", out=tmp_path / "run", order=f"profile:{profile}")
    assert not (tmp_path / "run").exists()


def test_a_later_round_keeps_what_a_profile_said_of_tasks_not_scored_yet(tmp_path: Path) -> None:
    profile = do_run(tmp_path, "profile")
    env = f"{write_sums(tmp_path)}?tasks={len(LENGTHS)}"
    plan(env, write_lengths_script(tmp_path), out=tmp_path / "run", order=f"profile:{profile}")
    book = Book(tmp_path / "run")
    opened = open_ordered_round(book, Settings())
    assert read_lengths(book.path, opened.number) == TaskLengths("tokens", [float(each) for each in LENGTHS])


def test_a_task_whose_server_counts_no_tokens_has_no_length(tmp_path: Path) -> None:
    book = Book(do_run(tmp_path))
    path = next((book.path / "journals").glob("*.1.jsonl"))
    assert edit_journal(path, '"completion_tokens":50', '"completion_tokens":0', 1)
    lengths = measure_lengths([book], {f"sum-{i}": i for i in range(len(LENGTHS))})
    assert lengths is not None
    assert lengths.lengths == [30.0, 10.0, None, 20.0, 40.0, 60.0]


def test_what_was_never_scored_comes_first(tmp_path: Path) -> None:
    """It may have failed because it is long."""
    lengths = TaskLengths("tokens", [3.0, None, 5.0, 4.0])
    book = make_book(tmp_path / "run", tasks=5, samples=1)
    assert lengths.order_chunks(book.chunks) == order_by(book, [3.0, 9.9, 5.0, 4.0, 9.9])


def order_by(book: Book, lengths: Sequence[float]) -> list[int]:
    longest = [max(lengths[row] for row, _ in chunk) for chunk in book.chunks]
    return sorted(range(len(longest)), key=lambda number: -longest[number])


def test_keys_of_a_task_stay_together_in_a_claim(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=4)
    round_ = open_round(book)
    (book.path / "rounds" / "lengths-0001.json").write_bytes(b'{"unit":"tokens","lengths":[1,5,5,9]}')
    claims, rows = ChunkClaimer(book, round_, "a"), []
    while claim := claims.claim_next():
        rows.append([row for row, _, _ in claim.todo])
    assert sorted(row for each in rows for row in each) == sorted(4 * [0, 1, 2, 3])
    assert rows[0] == [3] * rows[0].count(3) + [2] * rows[0].count(2)
    assert all(each == sorted(each, key=lambda row: (-[1, 5, 5, 9][row], row)) for each in rows)


def test_chunks_that_a_dead_worker_left_are_claimed_in_this_order_too(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=8, samples=1)
    presence = make_presence(1)
    presence.born = "1"
    first = ChunkClaimer(book, open_round(book), presence.id)
    write_heartbeat(book.path, presence)
    while first.claim_next():
        pass
    lengths = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    round_ = open_round(book)
    (book.path / "rounds" / "lengths-0002.json").write_bytes(encode(TaskLengths("tokens", lengths)))
    claims, numbers = ChunkClaimer(book, round_, "b"), []
    while claim := claims.claim_next():
        numbers.append(claim.chunk.number)
    assert numbers == order_by(book, lengths) != sorted(numbers)


def test_a_damaged_file_of_lengths_means_the_order_of_the_plan(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=4, samples=1)
    round_ = book.open_round(Settings())
    (book.path / "rounds" / "lengths-0001.json").write_bytes(b'{"unit":"tok')
    claim = ChunkClaimer(book, round_, "a").claim_next()
    assert claim is not None
    assert claim.chunk.number == 0
    assert len(book.rounds()) == 1


def test_a_worker_that_joins_takes_no_order_of_its_own(tmp_path: Path) -> None:
    path = do_run(tmp_path)
    with pytest.raises(UsageError, match="a worker follows its round"):
        work(path, {"order": f"profile:{path}"}, SilentDisplay())


def test_lengths_are_in_seconds_where_no_server_counts_tokens(tmp_path: Path) -> None:
    book = Book(do_run(tmp_path))
    path = next((book.path / "journals").glob("*.1.jsonl"))
    rows = {f"sum-{i}": i for i in range(len(LENGTHS))}
    assert edit_journal(path, r'"completion_tokens":\d+', '"completion_tokens":0') == len(LENGTHS)
    assert edit_journal(path, r'"seconds":[\d.e-]+', '"seconds":0.12345') == len(LENGTHS)
    assert measure_lengths([book], rows) == TaskLengths("seconds", [0.123] * len(LENGTHS))
    assert measure_lengths([book, book], {"sum-1": 1}) == TaskLengths("seconds", [None, 0.123])
    assert measure_lengths([book], {"other": 0}) is None


def test_what_a_round_has_measured_goes_before_what_an_earlier_one_knew() -> None:
    known = TaskLengths("tokens", [1.0, None, 3.0])
    for earlier, complete in (
        (None, known),
        (TaskLengths("tokens", [9.0, 8.0]), TaskLengths("tokens", [1.0, 8.0, 3.0])),
        (TaskLengths("tokens", [9.0, 8.0, 7.0, 6.0]), TaskLengths("tokens", [1.0, 8.0, 3.0, 6.0])),
        (TaskLengths("seconds", [9.0, 8.0]), known),
    ):
        assert complete_lengths(known, earlier) == complete
    assert complete_lengths(None, known) == known
    assert complete_lengths(None, None) is None


def test_the_longest_task_of_a_chunk_is_found_wherever_the_chunk_begins() -> None:
    lengths = TaskLengths("tokens", [9.0, 9.0, 1.0, 2.0, 5.0, 3.0])
    chunks = Chunks(Plan(2, [Part((2, 6), (1, 3), [2, 3, 1, 2])]))
    assert [lengths.longest_in(chunk) for chunk in chunks] == [1.0, 5.0, 5.0, 3.0]
    assert lengths.order_chunks(chunks) == [1, 2, 3, 0]
    assert lengths.order_chunks(chunks, [2, 1, 0, 3]) == [2, 1, 3, 0]


@pytest.mark.parametrize("order", ["profile:", "run", ""])
def test_an_order_that_names_no_run_is_refused(order: str) -> None:
    with pytest.raises(UsageError, match=f"--order {order}: write profile:RUN"):
        open_profile(order)


def test_the_length_of_a_task_is_the_mean_of_its_rollouts(tmp_path: Path) -> None:
    book = make_book(tmp_path / "run", tasks=2, samples=3)

    async def write() -> None:
        journal = Journal(book.path, "w", lambda _: None)
        journal.start()
        for sample, tokens in enumerate((2, 4, 7)):
            rollout = scored(book, 0, sample)
            rollout.turns = [Turn(prompt_tokens=1, completion_tokens=tokens)]
            await journal.add(JournalEntry(rollout))
        await journal.close()

    asyncio.run(write())
    assert measure_lengths([book], {"t0": 0, "t1": 1}) == TaskLengths("tokens", [4.3, None])
    assert measure_lengths([book, book], {"t0": 1}) == TaskLengths("tokens", [None, 4.3])
    assert measure_lengths([book], {"t1": 0}) is None
