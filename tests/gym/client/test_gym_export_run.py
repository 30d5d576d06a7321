"""A book as the files of Gym's collector, and back."""

import asyncio
import json

import pytest

from rollbook import Shortfall, run
from rollbook.book import Book, rollouts
from rollbook.errors import UsageError
from rollbook.gym.client.export_run import CollectionFiles, export_gym
from rollbook.gym.client.import_run import import_gym
from rollbook.gym.metrics import aggregate_metrics
from rollbook.stats import Expression
from support.gym_servers import COUNTING, Counter, call, row, write_rows, write_said
from support.sums import SUMS, write_script, write_sums

BROKEN = SUMS.replace("        return roll", "        assert task.id != 'sum-3', 'broken'\n        return roll")


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    folder = tmp_path_factory.mktemp("output")
    script = write_script(folder, prompt_ids=[1, 2], ids=[3, 4], logprobs=[-0.5, -0.25])
    with pytest.raises(Shortfall):
        run(write_sums(folder, BROKEN), script, out=folder / "run", samples=2)
    return folder / "run"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_four_files_are_written_under_gyms_names(book, tmp_path):
    done = export_gym(book, tmp_path / "run.jsonl")
    assert (done.written, done.unscored) == (18, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.jsonl",
        "run_aggregate_metrics.json",
        "run_failures.jsonl",
        "run_materialized_inputs.jsonl",
    ]


def test_a_rollout_has_its_items_its_tokens_its_reward_and_its_indices(book, tmp_path):
    export_gym(book, tmp_path / "run.jsonl")
    record = next(r for r in lines(tmp_path / "run.jsonl") if (r["id"], r["_ng_rollout_index"]) == ("sum-4", 1))
    (item,) = record["response"]["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "8")
    assert (item["generation_token_ids"], item["generation_log_probs"]) == ([3, 4], [-0.5, -0.25])
    assert (record["reward"], record["expected_answer"], record["_ng_task_index"]) == (1.0, "8", 4)
    assert record["agent_ref"] == {"name": "Sums"}
    assert record["responses_create_params"]["max_output_tokens"] == 1024


def test_inputs_are_all_that_was_asked_and_failures_all_that_failed(book, tmp_path):
    export_gym(book, tmp_path / "run.jsonl")
    files = CollectionFiles(tmp_path / "run.jsonl")
    requested = [(r["_ng_task_index"], r["_ng_rollout_index"]) for r in lines(files.inputs)]
    assert requested == [(task, sample) for task in range(10) for sample in range(2)]
    failed = lines(files.failures)
    assert {(r["_ng_task_index"], r["_ng_failure_class"], r["_ng_failure_terminal"]) for r in failed} == {
        (3, "verifier_error", True)
    }
    assert all("reward" not in r for r in failed)


def test_metrics_are_those_of_the_rows_that_were_written(book, tmp_path):
    export_gym(book, tmp_path / "run.jsonl")
    (record,) = json.loads(CollectionFiles(tmp_path / "run.jsonl").metrics.read_text())
    whole = aggregate_metrics(lines(tmp_path / "run.jsonl"))
    assert record["agent_ref"] == {"name": "Sums"}
    assert record["agent_metrics"]["mean/reward"] == pytest.approx(16 / 18)
    assert {name: record[name] for name in whole} == whole


def test_only_what_is_kept_is_written(book, tmp_path):
    done = export_gym(book, tmp_path / "run.jsonl", Expression("reward >= 1"))
    assert (done.written, done.filtered) == (16, 2)
    assert {r["reward"] for r in lines(tmp_path / "run.jsonl")} == {1.0}


def test_no_file_is_written_over(book, tmp_path):
    (tmp_path / "run_failures.jsonl").touch()
    with pytest.raises(UsageError, match=r"run_failures\.jsonl exists already"):
        export_gym(book, tmp_path / "run.jsonl")


def test_a_driven_row_comes_back_as_it_was_with_what_the_server_added(tmp_path):
    requested = row("add", COUNTING, id="a", initial_count=3, expected_count=4, agent_ref={"name": "mine"}, odd=[1])

    async def main():
        async with Counter(says={"library": 0.5}) as server:
            answers = write_said(tmp_path / "s.jsonl", a=[call("increment_counter", count=1), {"answer": "4"}])
            data = write_rows(tmp_path / "rows.jsonl", requested)
            await run(server.url, answers, data=data, out=tmp_path / "run")

    asyncio.run(main())
    export_gym(tmp_path / "run", tmp_path / "out.jsonl")
    (record,) = lines(tmp_path / "out.jsonl")
    assert (record["agent_ref"], record["odd"], record["library"], record["reward"]) == (
        {"name": "mine"},
        [1],
        0.5,
        1.0,
    )
    assert record["responses_create_params"]["tools"] == COUNTING


def test_what_was_exported_is_imported_as_it_was(book, tmp_path):
    export_gym(book, tmp_path / "out.jsonl")
    report = asyncio.run(import_gym(tmp_path / "out.jsonl", tmp_path / "back"))
    assert (report.requested, report.scored, report.failed) == (20, 18, {"verifier_error": 2})
    before = {r.key: r for r in rollouts(Book(book), tokens=True)}
    after = {r.key: r for r in rollouts(Book(tmp_path / "back"), tokens=True)}
    assert before.keys() == after.keys()
    for key, rollout in before.items():
        assert (after[key].score, after[key].messages) == (rollout.score, rollout.messages)
        assert [t.ids for t in after[key].turns] == [t.ids for t in rollout.turns]
        assert after[key].seed == rollout.seed
