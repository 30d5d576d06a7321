from hypothesis import given
from hypothesis import strategies as st

from rollbook.tokens.sequences import overlap_length, shared_prefix_length

IDS = st.lists(st.integers(0, 2), max_size=30)


@given(IDS, IDS)
def test_shared_prefix_is_the_longest_common_beginning(one, other):
    length = shared_prefix_length(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


@given(IDS, IDS)
def test_overlap_is_the_longest_end_that_begins_the_other(tail, head):
    expected = max(n for n in range(min(len(tail), len(head)) + 1) if tail[len(tail) - n :] == head[:n])
    assert overlap_length(tail, head) == expected
