"""A book as the files of Gym's collector, and back."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook import Shortfall, run, run_async
from rollbook.book import Book, rollouts
from rollbook.errors import UsageError
from rollbook.gym.client.export_run import CollectionFiles, apply_difference, export_gym, find_difference
from rollbook.gym.client.import_run import import_gym
from rollbook.gym.metrics import aggregate_metrics
from rollbook.stats import Expression
from support.gym_servers import COUNTING, Counter, call, row, write_rows, write_said
from support.sums import SUMS, write_script, write_sums

DATA = Path(__file__).parents[1] / "data"
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
    assert record["agent_ref"] == {"name": "Sums_agent"}
    assert record["responses_create_params"]["max_output_tokens"] == 1024
    assert record["response"]["usage"] is None, "Gym 0.4 and 0.5.1 refuse null details"
    assert (record["input_tokens"], record["output_tokens"], record["total_tokens"]) == (2, 2, 4)


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
    assert record["agent_ref"] == {"name": "Sums_agent"}
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


def run_counter(folder, requested):
    """Run one row against a server that adds a field to its verdict."""

    async def main():
        async with Counter(says={"library": 0.5}) as server:
            name = requested.get("id") or requested["uuid"]
            script = write_said(folder / "s.jsonl", **{name: [call("increment_counter", count=1), {"answer": "4"}]})
            data = write_rows(folder / "rows.jsonl", requested)
            await run_async(server.url, script, data=data, out=folder / "run")

    asyncio.run(main())


def test_a_driven_row_comes_back_as_it_was_with_what_the_server_added(tmp_path):
    requested = row("add", COUNTING, id="a", initial_count=3, expected_count=4, agent_ref={"name": "mine"}, odd=[1])
    run_counter(tmp_path, requested)
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
        assert (after[key].turns, after[key].timing) == (rollout.turns, rollout.timing)
        assert (after[key].seed, after[key].task.env) == (rollout.seed, rollout.task.env)


def sort_lines(path):
    return sorted(json.dumps(line, sort_keys=True) for line in lines(path))


def export_again(folder, source):
    """Import a collection and export it again; gives both collections' files."""
    asyncio.run(import_gym(source, folder / "imported"))
    export_gym(folder / "imported", folder / "again" / "run.jsonl")
    return CollectionFiles(source), CollectionFiles(folder / "again" / "run.jsonl")


def test_what_was_exported_imported_and_exported_again_is_the_same(book, tmp_path):
    export_gym(book, tmp_path / "first" / "run.jsonl")
    first, again = export_again(tmp_path, tmp_path / "first" / "run.jsonl")
    assert sort_lines(again.rollouts) == sort_lines(first.rollouts)
    assert sort_lines(again.inputs) == sort_lines(first.inputs)
    assert again.metrics.read_text() == first.metrics.read_text()
    (failure, *_), (same, *_) = lines(first.failures), lines(again.failures)
    assert failure["rollbook"]["failure"] == same["rollbook"]["failure"]


def test_a_driven_row_with_what_the_server_added_survives_a_round_trip(tmp_path):
    run_counter(tmp_path, row("add", COUNTING, uuid="u", initial_count=3, expected_count=4, agent_ref={"name": "mine"}))
    export_gym(tmp_path / "run", tmp_path / "first" / "run.jsonl")
    first, again = export_again(tmp_path, tmp_path / "first" / "run.jsonl")
    assert lines(again.rollouts) == lines(first.rollouts)
    assert lines(again.inputs) == lines(first.inputs)
    assert {r.task.id for r in rollouts(Book(tmp_path / "imported"))} == {"u"}


def test_lines_that_gym_wrote_come_back_as_gym_wrote_them(tmp_path):
    """Ids, null sampling, detailed usage, unknown fields: a Gym collection survives an import and an export."""
    recorded = [json.loads(line) for line in (DATA / "rollouts.jsonl").read_text().splitlines()]
    agents = ["b_agent", "a_agent", "b_agent"]
    indices = [{"_ng_task_index": n, "_ng_rollout_index": 0, "agent_ref": {"name": a}} for n, a in enumerate(agents)]
    written = [
        {**line, **more, "latency_ms": 12.5} for line, more in zip([*recorded, recorded[0]], indices, strict=True)
    ]
    requested = [
        {"responses_create_params": r["responses_create_params"], **more}
        for r, more in zip(written, indices, strict=True)
    ]
    (tmp_path / "gym").mkdir()
    write_rows(tmp_path / "gym" / "run.jsonl", *written)
    write_rows(tmp_path / "gym" / "run_materialized_inputs.jsonl", *requested)
    first, again = export_again(tmp_path, tmp_path / "gym" / "run.jsonl")
    assert sort_lines(again.rollouts) == sort_lines(first.rollouts)
    assert sort_lines(again.inputs) == sort_lines(first.inputs)
    assert lines(again.inputs)[0]["responses_create_params"]["temperature"] is None


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a"]) | st.just(1.0),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


@given(JSONS, JSONS)
def test_a_difference_turns_one_value_into_the_other(made, original):
    difference = find_difference(made, original)
    assert json.dumps(apply_difference(made, json.loads(json.dumps(difference))), sort_keys=True) == json.dumps(
        original, sort_keys=True
    )
