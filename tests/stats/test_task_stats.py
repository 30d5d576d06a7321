from statistics import mean, stdev

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.stats import majority_vote
from rollbook.stats.columns import COST_COLUMNS, NO_ANSWER, TaskStats, TextIds, make_columns
from rollbook.stats.metrics import TaskProfile

rollouts = st.lists(
    st.tuples(st.integers(0, 6), st.floats(-5, 5), st.integers(NO_ANSWER, 3)),
    min_size=1,
    max_size=60,
)


def columns_from(rows):
    return make_columns(*zip(*rows, strict=True))


def rows_of(rows, wanted=range(8), failed=None, **more):
    return dict(TaskProfile(columns_from(rows), ["w", "x", "y", "z"], **more).rows(failed or {}, wanted))


@settings(deadline=None)
@given(rollouts)
def test_every_task_has_its_own_numbers(rows):
    found = rows_of(rows)
    for task in range(8):
        rewards = [reward for row, reward, _ in rows if row == task]
        assert found[task]["n"] == len(rewards)
        if not rewards:
            assert found[task]["mean"] is None
            continue
        assert found[task]["mean"] == pytest.approx(mean(rewards))
        assert (found[task]["min"], found[task]["max"]) == (min(rewards), max(rewards))
        assert found[task]["std"] == (None if len(rewards) < 2 else pytest.approx(stdev(rewards), abs=1e-9))


@settings(deadline=None)
@given(rollouts)
def test_the_majority_is_the_most_frequent_answer_and_its_share_is_of_those_that_answered(rows):
    found = rows_of(rows)
    for task in range(8):
        answers = [answer for row, _, answer in rows if row == task and answer != NO_ANSWER]
        if not answers:
            assert (found[task]["majority"], found[task]["majority_share"]) == (None, None)
            continue
        most = max(answers.count(answer) for answer in answers)
        assert answers.count("wxyz".index(found[task]["majority"])) == most
        assert found[task]["majority_share"] == pytest.approx(most / len(answers))


def test_numbers_at_k_are_null_for_tasks_with_fewer_rollouts():
    found = rows_of([(0, 1.0, 0)] * 4 + [(1, 0.0, 1)] * 2, [0, 1], ks=[1, 4])
    assert (found[0]["pass@4"], found[0]["pass^4"], found[0]["maj@4"]) == (1.0, 1.0, 1.0)
    assert "pass^1" not in found[0]  # it is pass@1
    assert (found[1]["pass@4"], found[1]["pass^4"], found[1]["maj@4"], found[1]["pass@1"]) == (None, None, None, 0.0)


def test_a_vote_that_was_drawn_says_how_sure_it_is(monkeypatch):
    rows = [(0, 1.0, 0), (0, 0.0, 1), (0, 0.0, 2)]
    assert "maj@2_drawing_error" not in rows_of(rows, [0], ks=[2])[0]
    monkeypatch.setattr(majority_vote, "EXACT_STEPS", 0)
    drawn = rows_of(rows, [0], ks=[2])[0]
    assert drawn["maj@2"] == pytest.approx(1 / 3, abs=6 * drawn["maj@2_drawing_error"])
    assert drawn["maj@2_drawing_error"] > 0


def test_best_at_k_is_there_for_rewards_that_are_not_binary_and_a_threshold_decides_passing():
    binary, graded = rows_of([(0, 1.0, 0), (0, 0.0, 1)], [0]), rows_of([(0, 0.6, 0), (0, 0.2, 1)], [0], threshold=0.5)
    assert not any(name.startswith("best@") for name in binary[0])
    assert (graded[0]["best@2"], graded[0]["pass@1"]) == (0.6, 0.5)


def test_failures_are_counted_beside_the_scores():
    found = rows_of([(0, 1.0, 0)], [0, 1], {1: 3})
    assert (found[0]["failed"], found[1]["failed"], found[1]["n"]) == (0, 3, 0)


def test_equal_rewards_have_no_spread_in_spite_of_rounding():
    assert rows_of([(0, 0.1, 0)] * 10, [0])[0]["std"] == 0.0


def test_tokens_turns_and_seconds_are_means():
    held = make_columns(
        [0, 0], [1.0, 0.0], completion_tokens=[10, 20], turns=[1, 3], seconds=[0.5, 1.5], truncated=[1, 0]
    )
    row = dict(TaskProfile(held, []).rows({}, [0]))[0]
    assert (row["completion_tokens"], row["turns"], row["seconds"], row["truncated"]) == (15.0, 2.0, 1.0, 0.5)


def test_no_rollouts_are_no_tasks():
    none = TaskStats(make_columns([], []))
    assert len(none) == 0
    assert none.maj_at([1]) == {}
    assert dict(TaskProfile(make_columns([], []), []).rows({}, [0]))[0]["n"] == 0


@pytest.mark.parametrize("offset", [0.0, 1e7, 1e15])
def test_an_offset_does_not_change_the_spread_of_a_task(offset):
    assert rows_of([(0, offset + step, NO_ANSWER) for step in range(3)])[0]["std"] == pytest.approx(1.0)


@pytest.mark.filterwarnings("error")
def test_what_overflows_is_null_without_a_warning():
    found = rows_of([(0, 1.7e308, 0), (0, 1.7e308, 0), (1, 1.7e308, 1), (1, -1.7e308, 0)])
    assert (found[0]["mean"], found[0]["std"], found[1]["std"]) == (None, 0.0, None)
    assert found[0]["max"] == 1.7e308


def test_a_task_of_an_environment_without_answers_has_no_majority_numbers():
    held = make_columns([0, 0, 1, 1], [1.0, 0.0, 1.0, 1.0], [0, 1, NO_ANSWER, NO_ANSWER])
    found = dict(TaskProfile(held, ["w", "x"], groups=np.array([0, 1])).rows({}, range(2)))
    assert (found[0]["maj@2"], found[1]["maj@1"], found[1]["maj@2"]) == (0.5, None, None)
    assert found[1]["pass@2"] == 1.0


def test_texts_are_numbered_in_order_and_none_has_no_text() -> None:
    ids = TextIds({None: NO_ANSWER})
    assert [ids[text] for text in ("b", "a", None, "b")] == [0, 1, NO_ANSWER, 0]
    assert ids.texts == ["b", "a"]


def test_columns_made_of_plain_sequences_have_no_answers_no_costs_and_no_parts() -> None:
    made = make_columns([0, 1], [1.0, 0.5])
    assert made.answer.tolist() == [NO_ANSWER] * 2
    assert {name: getattr(made, name).tolist() for name in COST_COLUMNS} == {name: [0, 0] for name in COST_COLUMNS}
    assert [len(each) for each in (made.parts.place, made.parts.name, made.parts.value)] == [0, 0, 0]
    assert made.cut.dtype == made.truncated.dtype == np.bool_
