"""Partial columns: however rollouts are split, and in whatever order the parts are merged, the numbers are the same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbook.stats.columns import NO_ANSWER, Columns, RewardParts, merge_columns
from rollbook.stats.metrics import TaskProfile, compute_metrics

rollouts = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from([0.0, 1.0]) | st.floats(-1e6, 1e6),
        st.integers(NO_ANSWER, 3),
        st.integers(0, 9),
        st.lists(st.tuples(st.integers(0, 2), st.floats(-5, 5)), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def make_full_columns(rows):
    """Return columns with every field set."""
    parts = [(place, name, value) for place, (*_, held) in enumerate(rows) for name, value in held]
    places, names, values = zip(*parts, strict=True) if parts else ((), (), ())
    task, reward, answer, size = (np.array([row[at] for row in rows]) for at in range(4))
    held = RewardParts(np.array(places, np.int32), np.array(names, np.int32), np.array(values, np.float64))
    floats = reward.astype(np.float64)
    return Columns(task, floats, answer, size * 3, size * 7, size + 1, size > 5, size > 7, size / 4.0, held)


def numbers(columns):
    made = compute_metrics("e", columns, ["x", "y", "z"], requested=len(columns)).json()
    rows = dict(TaskProfile(columns, list("abcd")).rows({}, range(5)))
    return made.pop("parts"), made, rows


@settings(deadline=None)
@given(rollouts, st.data())
def test_the_pieces_of_any_split_merge_in_any_order_to_the_whole(rows, data):
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    pieces = [[row for row, owner in zip(rows, owners, strict=True) if owner == mine] for mine in range(4)]
    several = [make_full_columns(piece) for piece in data.draw(st.permutations(pieces)) if piece]
    parts, made, tasks = numbers(merge_columns(several))
    whole_parts, whole, whole_tasks = numbers(make_full_columns(rows))
    # Counts, tokens, rewards and all that is made of them are the same to the last bit.
    assert made == whole
    assert parts == pytest.approx(whole_parts, abs=1e-12)
    for row in whole_tasks:
        assert tasks[row] == whole_tasks[row]


@settings(deadline=None)
@given(rollouts, st.integers(0, 40), st.integers(0, 40))
def test_merging_is_associative(rows, first, second):
    one, two, three = (
        rows[: min(first, second)],
        rows[min(first, second) : max(first, second)],
        rows[max(first, second) :],
    )
    a, b, c = (make_full_columns(piece) for piece in (one, two, three))
    left, right = merge_columns([merge_columns([a, b]), c]), merge_columns([a, merge_columns([b, c])])
    for name in ("task", "reward", "answer", "prompt_tokens", "completion_tokens", "turns", "truncated", "seconds"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist()
    whole = make_full_columns(rows)
    assert left.parts.place.tolist() == right.parts.place.tolist() == whole.parts.place.tolist()


@settings(deadline=None)
@given(rollouts, st.data())
def test_the_parts_of_selected_rollouts_stay_with_them(rows, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    found = make_full_columns(rows).where(mask)
    expected = (
        make_full_columns([row for row, chosen in zip(rows, mask, strict=True) if chosen]) if mask.any() else None
    )
    if expected is None:
        assert (len(found), len(found.parts.place)) == (0, 0)
        return
    for name in ("task", "reward", "answer", "seconds", "cut"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    for name in ("place", "name", "value"):
        assert getattr(found.parts, name).tolist() == getattr(expected.parts, name).tolist()


def test_no_columns_merge_to_none():
    assert len(merge_columns([])) == 0
