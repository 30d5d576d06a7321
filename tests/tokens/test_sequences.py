import math

import pytest

from rollbook.errors import RollbookError, TokenError
from rollbook.tokens import Sequence


def test_a_sequence_counts_what_was_sampled():
    sequence = Sequence([1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0.0, -0.1])
    assert sequence.trained == 2
    assert len(sequence) == 5
    assert sequence.fork is None


@pytest.mark.parametrize(
    ("mask", "logprobs", "words"),
    [
        ([1], [-0.1, -0.2], "2 response ids, 1 mask values and 2 logprobs"),
        ([1, 1], [-0.1], "2 response ids, 2 mask values and 1 logprobs"),
        ([1, 2], [-0.1, -0.2], r"a mask holds 0 and 1 only, not \[2\]"),
        ([0, 3], [-0.1, -0.2], r"a mask holds 0 and 1 only, not \[3\]"),
        ([0, 1], [math.nan, math.nan], "token 1 of 2 is nan"),
        ([1, 0], [-math.inf, 0.0], "token 0 of 2 is -inf"),
    ],
)
def test_a_sequence_that_contradicts_itself_cannot_be_made(mask, logprobs, words):
    with pytest.raises(RollbookError, match=words):
        Sequence([1], [7, 8], mask, logprobs)


def test_a_logprob_of_an_untrained_token_may_be_anything():
    assert Sequence([1], [7, 8], [0, 1], [math.nan, -0.5]).trained == 1


def test_its_numbers_are_arrays_from_the_start():
    sequence = Sequence([1, 2], [3, 200_000], [1, 0], [-0.5, 0.0])
    arrays = sequence.arrays
    assert arrays is sequence.arrays
    assert [a.dtype.name for a in arrays] == ["int64", "int64", "int8", "float32"]
    assert [a.tolist() for a in arrays] == [[1, 2], [3, 200_000], [1, 0], [-0.5, 0.0]]
    assert sequence == Sequence([1, 2], [3, 200_000], [1, 0], [-0.5, 0.0])


@pytest.mark.parametrize("ids", [["x"], [None], [1 << 70], [2.7], ["2"], [[1, 2]], [-1]])
def test_what_is_no_id_is_an_error(ids):
    with pytest.raises(TokenError, match="token id"):
        Sequence([1], ids, [1], [-0.5])
    with pytest.raises(TokenError, match="token id"):
        Sequence(ids, [1], [1], [-0.5])


@pytest.mark.parametrize(("mask", "logprobs"), [([0.5], [-0.5]), (["1"], [-0.5]), ([1], ["-0.5"]), ([1], [[-0.5]])])
def test_what_is_no_mask_or_logprob_is_an_error(mask, logprobs):
    with pytest.raises(TokenError, match=r"mask values|logprobs"):
        Sequence([1], [2], mask, logprobs)


def test_what_nobody_trains_is_a_number_in_a_batch_all_the_same():
    assert Sequence([1], [7, 8], [0, 1], [math.nan, -0.5]).arrays.logprobs.tolist() == [0.0, -0.5]


def test_lists_of_ids_of_several_lengths_are_no_ids():
    with pytest.raises(TokenError, match="holds invalid token ids"):
        Sequence([1], [[1], [2, 3]], [1, 1], [-0.5] * 2)


def test_what_is_no_id_and_no_mask_is_shown_cut():
    with pytest.raises(TokenError) as caught:
        Sequence([1], [2.5] * 90, [1] * 90, [-0.5] * 90)
    assert str(caught.value).endswith(f": {str([2.5] * 90)[:60]}")
    with pytest.raises(TokenError, match=r"0 and 1 only, not \[2, 3, 4\]"):
        Sequence([1], [7] * 5, [5, 4, 3, 2, 1], [-0.5] * 5)
    with pytest.raises(TokenError, match=r"holds the token id -7$"):
        Sequence([3, -7, -2], [1], [1], [-0.5])
