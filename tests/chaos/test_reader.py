"""The independent reader of `make chaos` finds every kind of violation that it looks for."""

from __future__ import annotations

import ast
import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos import reader
from chaos.schedule import WEIGHTS, make_schedule
from rollbook.book import Book
from rollbook.book.seals import measure_extent
from rollbook.core import Message, Rollout, Score, Seal, Turn, encode_pretty
from rollbook.engine.book_worker import BookJobSource
from rollbook.reports import make_report
from rollbook.tokens.sidecar import decode_tokens, encode_tokens
from support.books import edit_journal, edit_record, failed, make_book, open_round, played
from support.endpoint import answer_to, prompt_ids, seeded_logprob

TASKS, SAMPLES = 4, 2
BROKEN = 3


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of a model that answers as the endpoint of the chaos test; the last task always fails."""
    book = make_book(tmp_path / "run", TASKS, SAMPLES)
    round_ = open_round(book)

    async def work() -> None:
        source = BookJobSource(book, round_)
        await source.join()
        while job := await source.next():
            make = make_broken if job.row == BROKEN else make_scored
            await source.mark(job, make(book, job.row, job.sample), True)
        await source.leave()

    asyncio.run(work())
    make_report(book.path)  # writes metrics.json
    return book.path


def make_scored(book: Book, row: int, sample: int) -> Rollout:
    rollout = played(book, row, sample)
    text = answer_to([{"role": "user", "content": f"What is {row} + {row}?"}], rollout.seed)
    rollout.messages[-1] = Message("assistant", text)
    prompt, ids = prompt_ids([{"role": "user", "content": f"What is {row} + {row}?"}]), [*text.encode(), 256]
    logprobs = [seeded_logprob(rollout.seed, at, token) for at, token in enumerate(ids)]
    rollout.turns = [Turn(prompt, ids, logprobs, len(prompt), len(ids))]
    rollout.score = Score(float(text.endswith(f" {2 * row}.")), answer=text.rstrip(".").split()[-1])
    return rollout


def make_broken(book: Book, row: int, sample: int) -> Rollout:
    rollout = make_scored(book, row, sample)
    rollout.score, rollout.failure = None, failed(book, row, sample, "verifier_error").failure
    return rollout


def read_metrics(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_bytes())


def expect(run: Path, **changed: object) -> dict[str, Any]:
    tasks = {f"t{i}": {"env": "Sums", "a": i, "b": i, "broken": i == BROKEN, "extracts": True} for i in range(TASKS)}
    expected = {"tasks": tasks, "samples": SAMPLES, "seed": 0, "report": read_metrics(run), "verify": {"damage": []}}
    return expected | {"damaged": [], "sealed": {}} | changed


def journal(run: Path) -> Path:
    return next(path for path in (run / "journals").glob("*.1.jsonl"))


def reseal(run: Path) -> None:
    """Make the seals fit the files again, as an attacker would, or a bug."""
    for path in (run / "done").iterdir():
        seal = msgspec.json.decode(path.read_bytes(), type=Seal)
        for name in seal.files:
            size = (run / "journals" / name).stat().st_size
            seal.files[name] = measure_extent(run / "journals" / name, size)
        path.write_bytes(encode_pretty(seal))


def change(old: str, new: str, count: int = 1) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        assert edit_journal(journal(run), old, new, count) == count
        reseal(run)

    return edit


def drop_line(run: Path) -> None:
    lines = journal(run).read_bytes().splitlines(keepends=True)
    journal(run).write_bytes(b"".join(lines[1:]))
    reseal(run)


def add_other_line(run: Path) -> None:
    """A second line of the first key, by the same attempt, with another time."""
    first = journal(run).read_bytes().splitlines(keepends=True)[0]
    with open(journal(run), "ab") as file:
        file.write(first)
    lines = journal(run).read_text().splitlines(keepends=True)
    journal(run).write_text("".join([*lines[:-1], lines[-1].replace('"attempt":1', '"attempt": 1')]))
    edit_journal(journal(run), '"attempt": 1(.*)"seconds":0.5', '"attempt":1\\1"seconds":0.7')
    reseal(run)


def drop_line_and_count(run: Path) -> None:
    """A scored line is gone, and its seal counts one less."""
    drop_line(run)
    edit_record(run / "done" / "00000.json", scored=json.loads((run / "done" / "00000.json").read_text())["scored"] - 1)


def add_second_attempt(run: Path) -> None:
    """The first key is scored once more by a second attempt, with another reward."""
    first = journal(run).read_bytes().splitlines(keepends=True)[0]
    journal(run).write_bytes(journal(run).read_bytes() + first.replace(b'"attempt":1', b'"attempt":2'))
    edit_journal(journal(run), '("attempt":2.*)"reward":[01]', '\\1"reward":7')
    reseal(run)


def swap_rewards(run: Path) -> None:
    lines = journal(run).read_text().splitlines(keepends=True)
    rewards = [json.loads(line)["reward"] for line in lines]
    one, other = rewards.index(0.0), rewards.index(1.0)
    for at, old, new in ((one, 0, 1), (other, 1, 0)):
        lines[at] = lines[at].replace(f'"reward":{old}.0', f'"reward":{new}.0')
    journal(run).write_text("".join(lines))
    edit_journal(journal(run), "^", "")  # right checksums
    reseal(run)


def forge_tokens(change: Callable[[list[int], list[int], list[float]], object]) -> Callable[[Path], None]:
    """Let the first line refer to a record with other values, whose own checksum is right."""

    def edit(run: Path) -> None:
        sidecar = journal(run).with_suffix(".tokens")
        ref = json.loads(journal(run).read_text().splitlines()[0])["turns"][0]["tokens"]
        prompt, ids, logprobs = decode_tokens(sidecar.read_bytes()[ref["at"] : ref["at"] + ref["size"]], [])
        change(prompt, ids, logprobs)
        record, at = encode_tokens(Turn(prompt, ids, logprobs), []), sidecar.stat().st_size
        sidecar.write_bytes(sidecar.read_bytes() + record)
        forged = f'"tokens":{{"at":{at},"size":{len(record)}}}'
        assert edit_journal(journal(run), f'"tokens":{{"at":{ref["at"]},"size":{ref["size"]}}}', forged, 1) == 1
        reseal(run)

    return edit


def swap_logprobs(run: Path) -> None:
    """Two rollouts with the same answer have each other's logprobs."""
    lines = [json.loads(line) for line in journal(run).read_text().splitlines()]
    texts = [line["messages"][-1]["content"] for line in lines]
    twice = next(text for text in texts if texts.count(text) > 1)
    one, other = [line["turns"][0]["tokens"] for line in lines if line["messages"][-1]["content"] == twice][:2]
    for old, new in ((one, {"at": -1, "size": -1}), (other, one), ({"at": -1, "size": -1}, other)):
        pattern, text = (f'"tokens":{{"at":{ref["at"]},"size":{ref["size"]}}}' for ref in (old, new))
        assert edit_journal(journal(run), pattern, text) == 1
    reseal(run)


def change_failure(old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        assert edit_journal(next((run / "journals").glob("*.failures.jsonl")), old, new, 1) == 1
        reseal(run)

    return edit


def change_task(old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        text = (run / "tasks.jsonl").read_text()
        assert old in text
        (run / "tasks.jsonl").write_text(text.replace(old, new, 1))

    return edit


def drop_failure(run: Path) -> None:
    path = next((run / "journals").glob("*.failures.jsonl"))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    reseal(run)


def flip_record(run: Path) -> None:
    """The number of duplicates in a seal changes, on which no count of lines depends."""
    path = run / "done" / "00000.json"
    path.write_text(path.read_text().replace('"dropped": 0', '"dropped": 1'))


def fail_scored_line(run: Path) -> None:
    """A scored rollout becomes a failure of its verifier."""
    lines = journal(run).read_text().splitlines(keepends=True)
    journal(run).write_text("".join(lines[1:]))
    failures = next((run / "journals").glob("*.failures.jsonl"))
    scored, failed = json.loads(lines[0]), json.loads(failures.read_text().splitlines()[0])
    failures.write_text(
        failures.read_text() + json.dumps(failed | {"task": scored["task"], "sample": scored["sample"]})
    )
    edit_journal(failures, "^", "")  # right checksums
    reseal(run)


def repeat_by_another_worker(run: Path) -> None:
    """Another worker takes over every chunk, and runs again what was scored."""
    for path in list((run / "leases").glob("*.1")):
        path.with_suffix(".2").write_bytes(path.read_bytes())
        edit_record(path.with_suffix(".2"), worker="other")
    for path in list((run / "journals").iterdir()):
        (run / "journals" / f"other.{path.name.partition('.')[2]}").write_bytes(path.read_bytes())
    for path in (run / "done").iterdir():
        names = [path.name for path in (run / "journals").iterdir()]
        edit_record(path, epoch=2, files={name: {"bytes": 0, "sha256": ""} for name in names})
    reseal(run)


def repeat_in_a_later_round(run: Path) -> None:
    """A second round runs the first key again, with the same result."""
    first = journal(run).read_bytes().splitlines(keepends=True)[0]
    journal(run).write_bytes(journal(run).read_bytes() + first.replace(b'"round":1', b'"round":2'))
    edit_journal(journal(run), "^", "")  # right checksums
    reseal(run)


def cut_sidecar(run: Path) -> None:
    """The last token record is not whole: a write failed, and nobody noticed."""
    path = journal(run).with_suffix(".tokens")
    path.write_bytes(path.read_bytes()[:-40])
    reseal(run)


def flip_sealed_byte(run: Path) -> None:
    data = bytearray(journal(run).read_bytes())
    data[data.index(b'"reward"') + 9] ^= 1
    journal(run).write_bytes(data)


def remove_seal(run: Path) -> None:
    (run / "done" / "00000.json").unlink()


def give_chunk_away(run: Path) -> None:
    path = run / "leases" / "00000.1"
    lease = json.loads(path.read_text())
    path.unlink()
    path.write_text(json.dumps(lease | {"worker": "somebody-1-else"}))


def test_a_sound_run_has_no_violation(run: Path) -> None:
    assert reader.check(run, expect(run, sealed=reader.count_sealed(run))) == []


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (drop_line, "is lost"),
        (drop_line_and_count, "is lost"),
        (add_second_attempt, "run again by the same worker"),
        (add_second_attempt, "reward: 7"),
        (swap_rewards, "reward: 1.0, not 0.0"),
        (forge_tokens(lambda prompt, ids, logprobs: ids.__setitem__(0, ids[0] + 1)), "token ids"),
        (forge_tokens(lambda prompt, ids, logprobs: prompt.pop()), "prompt ids"),
        (forge_tokens(lambda prompt, ids, logprobs: prompt.__setitem__(7, 99)), "prompt ids"),
        (forge_tokens(lambda prompt, ids, logprobs: logprobs.__setitem__(3, -0.5)), "logprobs"),
        (forge_tokens(lambda prompt, ids, logprobs: logprobs.reverse()), "logprobs"),
        (swap_logprobs, "logprobs"),
        (change('"content":"What is ', '"content":"What was '), "messages"),
        (change('"messages":.{"role":"user"', '"messages":[{"role":"system"'), "messages"),
        (change('"answer":"\\d+"', '"answer":"999"'), "answer: '999'"),
        (change('"answer":"\\d+"', '"answer":null'), "answer: None"),
        (change('"env":"Sums"', '"env":"Other"'), "env: 'Other', not 'Sums'"),
        (change('"parts":{}', '"parts":{"a":1.0}'), "parts"),
        (change('"usage":{"prompt_tokens":\\d+', '"usage":{"prompt_tokens":1'), "usage"),
        (change('"turns":.{"prompt_tokens":\\d+', '"turns":[{"prompt_tokens":1'), "turns"),
        (change('"finish_reason":"stop"', '"finish_reason":"length"'), "turns"),
        (change('"seed":\\d+', '"seed":5'), "seed: 5"),
        (change_failure('"content":"What is ', '"content":"What was '), "messages"),
        (change_failure('"env":"Sums"', '"env":"Other"'), "env: 'Other'"),
        (change_task('"What is 1 + 1?"', '"What is 1 + 2?"'), "tasks.jsonl: t1: messages"),
        (change_task('"answer":"2"', '"answer":"3"'), "tasks.jsonl: t1: answer"),
        (change_task('"env":"Sums"', '"env":"Other"'), "tasks.jsonl: t0: env"),
        (drop_failure, "is lost"),
        (drop_failure, "sealed"),
        (flip_record, "00000.json is damaged, and `verify` does not report it"),
        (add_other_line, "two different lines of one attempt"),
        (change('"reward":1.0', '"reward":0.0'), "reward: 0.0, not 1.0"),
        (change('"reward":0.0', '"reward":1.0'), "reward: 1.0, not 0.0"),
        (change('"reward":0.0', '"reward":1.0'), "the report, all: mean"),
        (change("The answer is (.*?)\\.", "The answer is 5."), "messages"),
        (change('"task":"t0"', '"task":"t9"'), "was never asked"),
        (change('"task":"t0"(.*)"reward":[01]', '"task":"t3"\\1"reward":1'), "its verifier always raises"),
        (change('"at":0', '"at":1'), "token ids"),
        (repeat_in_a_later_round, "was scored in round 1, and run again in 2"),
        (cut_sidecar, ".tokens is damaged, and `verify` does not report it"),
        (flip_sealed_byte, "`verify` does not report it"),
        (remove_seal, "is not sealed"),
        (give_chunk_away, "its worker never owned"),
    ],
)
def test_a_violation_is_found(run: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(run)
    assert [each for each in reader.check(run, expect(run)) if words in each]


def test_a_sealed_line_that_no_longer_counts_and_a_wrong_report_are_found(run: Path) -> None:
    sealed = dict.fromkeys(reader.count_sealed(run), "00000000")
    wrong = read_metrics(run) | {"scored": 5, "failed": {}, "pending": 3}
    found = reader.check(run, expect(run, sealed=sealed, report=wrong))
    assert sum("another line counts" in each for each in found) == len(sealed) == 6
    for words in ("scored: 5, not 6", "failed: {}", "pending: 3, not 0"):
        assert [each for each in found if each.startswith("the report, all: ") and words in each]


@pytest.mark.parametrize(
    ("scope", "changes", "words"),
    [
        ("overall", {"mean": 0.123}, "metrics.json, all: mean 0.123, not "),
        ("overall", {"pass@2": 0.123}, "metrics.json, all: pass@2 0.123, not "),
        ("Sums", {"pass^1": 0.123}, "metrics.json, Sums: pass^1 0.123, not "),
        ("overall", {"pass@1_interval": [0.1, 0.2]}, "metrics.json, all: pass@1_interval [0.1, 0.2], not "),
        ("Sums", {"mean_interval": None}, "metrics.json, Sums: mean_interval None, not "),
        ("overall", {"prompt_tokens": 7}, "metrics.json, all: prompt_tokens: 7, not "),
        ("Sums", {"turns": 7}, "metrics.json, Sums: turns: 7, not 6"),
        ("", {"dropped": 1}, "metrics.json, all: dropped: 1, not 0"),
        ("overall", {"scored": 7}, "metrics.json, all: scored: 7, not 6"),
        ("Sums", {"mean": None}, "metrics.json, Sums: mean None, not "),
        ("Sums", {"failed": {"verifier_error": 3}}, "metrics.json, Sums: failed: "),
        ("Sums", {"requested": 9}, "metrics.json, Sums: requested: 9, not 8"),
        ("", {"environments": {}}, "metrics.json has the environments []"),
    ],
)
def test_a_wrong_number_of_the_final_report_is_found(
    run: Path, scope: str, changes: dict[str, object], words: str
) -> None:
    metrics = read_metrics(run)
    expected = expect(run)
    part = metrics["environments"].get(scope) or metrics.get(scope) or metrics
    part.update(changes)
    (run / "metrics.json").write_text(json.dumps(metrics))
    found = reader.check(run, expected)
    assert len(found) == 1
    assert words in found[0]


def test_a_failure_without_a_cause_is_found(run: Path) -> None:
    fail_scored_line(run)
    found = [each for each in reader.check(run, expect(run)) if "nothing is wrong with its verifier" in each]
    assert len(found) == 1


def test_rollouts_that_were_scored_before_a_takeover_and_run_again_are_found(run: Path) -> None:
    repeat_by_another_worker(run)
    assert len([each for each in reader.check(run, expect(run)) if "and run again after it" in each]) == 6


@pytest.mark.parametrize(("most", "found"), [(5, 1), (6, 0)])
def test_too_many_repeats_after_two_takeovers_are_found(
    run: Path, monkeypatch: pytest.MonkeyPatch, most: int, found: int
) -> None:
    repeat_by_another_worker(run)
    for path in list((run / "leases").glob("*.2")):
        path.with_suffix(".3").write_bytes(path.read_bytes())
    monkeypatch.setattr(reader, "MOST_REPEATED", most)
    wrong = [each for each in reader.check(run, expect(run)) if "run again by others" in each]
    assert len(wrong) == found


@pytest.mark.parametrize(("attempt", "found"), [(1, 2), (2, 2), (3, 0)])
def test_a_failure_that_is_given_up_too_early_is_found(run: Path, attempt: int, found: int) -> None:
    path = next((run / "journals").glob("*.failures.jsonl"))
    edit_journal(path, '"kind":"verifier_error"', '"kind":"sandbox_error"')
    edit_journal(path, '"attempt":1', f'"attempt":{attempt}')
    reseal(run)
    assert len([each for each in reader.check(run, expect(run)) if "is given up after" in each]) == found


def test_what_seals_and_heartbeats_count_is_read(run: Path) -> None:
    names, scored, failed = reader.count_reported(run) or ([], 0, 0)
    assert "00000.json" in names
    assert (scored, failed, reader.count_pending(run)) == (6, 2, 0)
    worker = json.loads((run / "leases" / "00000.1").read_text())["worker"]
    edit = run / "workers" / f"{worker}.json"
    presence = json.loads(edit.read_text())
    for path in (run / "done").iterdir():
        path.unlink()
    edit.write_text(json.dumps(presence | {"chunks": {"0": {"scored": 3, "failed": {"verifier_error": 1}}}}))
    assert (reader.count_reported(run) or ())[1:] == (3, 1)
    edit.write_text("{")
    assert reader.count_reported(run) is None


def test_students_quantiles_and_an_interval_are_those_of_the_tables() -> None:
    assert [round(reader.find_quantile(freedom), 4) for freedom in (2, 9, 40, 200)] == [4.3027, 2.2622, 2.0211, 1.9719]
    low, high = reader.find_interval([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]) or (0.0, 0.0)
    assert (low, high) == (0.0, 1.0)
    low, high = reader.find_interval([[0.5], [0.6], [0.7], [0.6]]) or (0.0, 0.0)
    assert (round(low, 4), round(high, 4)) == (0.4701, 0.7299)
    assert reader.find_interval([[1.0], [1.0]]) is None


def test_a_sealed_chunk_that_was_run_again_is_found(run: Path) -> None:
    before = reader.count_sealed(run)
    assert edit_journal(journal(run), '"seconds":0.5', '"seconds":0.6', 1) == 1
    reseal(run)
    found = reader.check(run, expect(run, sealed=before))
    assert len(found) == 1
    assert "was sealed, and another line counts now" in found[0]


def test_damage_that_nobody_did_is_found(run: Path) -> None:
    damage = {"damage": [{"path": "journals/x.1.jsonl"}]}
    assert reader.check(run, expect(run, verify=damage)) == ["`verify` reports x.1.jsonl, which nobody damaged"]


def test_a_seed_determines_the_schedule_and_all_kinds_of_faults_happen() -> None:
    assert make_schedule(3) == make_schedule(3) != make_schedule(4)
    assert {fault.kind for seed in range(40) for fault in make_schedule(seed)} == set(WEIGHTS)


def test_the_reader_imports_the_standard_library_alone() -> None:
    tree = ast.parse(Path(reader.__file__).read_text())
    plain = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    of = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert plain
    assert not [name for name in [*plain, *of] if name.partition(".")[0] not in sys.stdlib_module_names]
