"""The plan: every key in exactly one chunk, big chunks first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core.manifest import (
    MAX_CHUNK_KEYS,
    Chunks,
    Part,
    Plan,
    compute_chunk_sizes,
    find_repeated_part,
    make_part,
)


@given(keys=st.integers(0, 5000), workers=st.integers(1, 64))
def test_chunk_sizes_cover_all_keys_and_never_grow(keys: int, workers: int) -> None:
    sizes = compute_chunk_sizes(keys, workers)
    assert sum(sizes) == keys
    assert sizes == sorted(sizes, reverse=True)
    assert all(1 <= size <= MAX_CHUNK_KEYS for size in sizes)


def test_big_ones_come_first_and_singles_last() -> None:
    assert compute_chunk_sizes(10, 1) == [5, 2, 1, 1, 1]
    assert compute_chunk_sizes(2000, 1)[0] == MAX_CHUNK_KEYS


@given(
    blocks=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=4),
    workers=st.integers(1, 5),
)
def test_every_key_is_in_exactly_one_chunk(blocks: list[tuple[int, int, int]], workers: int) -> None:
    parts, first = [], 0
    expected = []
    for tasks, sample, width in blocks:
        parts.append(make_part((first, first + tasks), (sample, sample + width), workers))
        expected += [(row, s) for row in range(first, first + tasks) for s in range(sample, sample + width)]
        first += tasks
    plan = Plan(1, parts)
    chunks = Chunks(plan)
    assert [key for chunk in chunks for key in chunk] == expected
    assert plan.requested == len(expected)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(1, 4)), min_size=1, max_size=5), st.integers(1, 4))
def test_side_by_side_no_part_is_ahead_of_another_by_more_than_a_chunk(blocks, workers):
    parts, row = [], 0
    for tasks, samples in blocks:
        parts.append(make_part((row, row + tasks), (0, samples), workers))
        row += tasks
    chunks = Chunks(Plan(1, parts))
    order = chunks.interleave_parts()
    assert sorted(order) == list(range(len(chunks)))
    begun = [chunks[number].start / chunks[number].part.keys for number in order]
    assert begun == sorted(begun)


@pytest.mark.parametrize(
    ("tasks", "samples", "workers", "sizes"),
    [
        (3, 20, 1, [20, 20, 20]),  # one task each
        (20, 4, 1, [16, 16, 16, 16, 16]),  # a few small tasks, whole ones
        (5, 5, 1, [12, 12, 1]),  # at most half of all for one worker
        (10, 6, 1, [18, 18, 18, 6]),  # whole tasks of at least 16 keys
        (4, 20, 8, [5] * 16),  # every worker gets some
        (1, 1, 8, [1]),
        (2, 1, 8, [1, 1]),
        (4, 1, 1, [2, 2]),
        (0, 4, 1, []),
    ],
)
def test_ordered_chunks_hold_whole_tasks(tasks: int, samples: int, workers: int, sizes: list[int]) -> None:
    part = make_part((2, 2 + tasks), (1, 1 + samples), workers, ordered=True)
    assert part.chunks == sizes
    assert Plan(2, [part]).describe_damage() == ""


def test_ordered_chunks_are_not_too_many() -> None:
    part = make_part((0, 1_000_000), (0, 1), 64, ordered=True)
    assert len(part.chunks) <= 4096
    assert sum(part.chunks) == 1_000_000


@pytest.mark.parametrize(
    ("part", "damage"),
    [
        (Part((0, 2), (0, 2), [2, 2]), ""),
        (Part((0, 0), (0, 0), []), ""),
        (Part((4, 6), (2, 4), [4]), "part 1 requests a rollout that another part requests too"),
        (Part((0, 2), (0, 2), [2, 3]), "part 2 has 4 rollouts, but its chunks have 5"),
        (Part((0, 2), (0, 2), [4, 0]), "part 2 has an impossible range"),
        (Part((-1, 1), (0, 2), [4]), "part 2 has an impossible range"),
        (Part((2, 1), (0, 2), []), "part 2 has an impossible range"),
        (Part((0, 2), (-1, 1), [4]), "part 2 has an impossible range"),
        (Part((0, 2), (2, 1), []), "part 2 has an impossible range"),
    ],
)
def test_a_plan_that_contradicts_itself_is_described(part: Part, damage: str) -> None:
    plan = Plan(2, [Part((5, 6), (0, 3), [3]), part])
    assert plan.describe_damage() == damage
    assert plan.samples == max(3, part.samples[1])


PART = st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 4), st.integers(0, 3))


@given(st.lists(PART, max_size=6))
def test_a_part_with_a_key_of_another_part_is_found(blocks: list[tuple[int, int, int, int]]) -> None:
    parts = [make_part((row, row + rows), (low, low + width), 1) for row, rows, low, width in blocks]
    keys = [(row, sample) for part in parts for row in range(*part.tasks) for sample in range(*part.samples)]
    repeated = find_repeated_part(parts)
    assert bool(repeated) == (len(keys) > len(set(keys)))
    assert ("requests a rollout that another part requests too" in Plan(2, parts).describe_damage()) == bool(repeated)


@pytest.mark.parametrize(("schema", "damage"), [(0, "schema 0"), (1, ""), (2, ""), (3, "schema 3; this version reads")])
def test_a_plan_of_an_unknown_schema_is_damaged(schema: int, damage: str) -> None:
    found = Plan(schema, [Part((0, 1), (0, 1), [1])]).describe_damage()
    assert found.startswith(damage)
    assert bool(found) == bool(damage)
