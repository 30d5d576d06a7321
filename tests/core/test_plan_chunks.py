"""The plan: every key in exactly one chunk, big chunks first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollbook.core.manifest import MAX_CHUNK_KEYS, Chunks, Plan, compute_chunk_sizes, make_part


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
