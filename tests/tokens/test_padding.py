import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollbook.tokens import Fork, Sequence, batch

PAD = 7
IDS = st.lists(st.integers(0, 200_000), max_size=12)


@st.composite
def sequences(draw):
    response = draw(IDS)
    size = {"min_size": len(response), "max_size": len(response)}
    return Sequence(
        draw(IDS),
        response,
        draw(st.lists(st.integers(0, 1), **size)),
        draw(st.lists(st.floats(-100, 0, width=32), **size)),
        draw(st.none() | st.builds(Fork, st.integers(0, 9), st.integers(0, 9), st.text(max_size=5))),
    )


@given(st.lists(sequences(), max_size=6), st.integers(0, 9))
def test_taking_the_padding_off_gives_back_the_sequences(rows, pad_id):
    assert batch(rows, pad_id).sequences() == rows


def test_prompts_are_padded_on_the_left_and_responses_on_the_right():
    one = Sequence([1], [2, 3, 4], [1, 0, 1], [-0.5, 0.0, -0.25])
    two = Sequence([5, 6, 8], [9], [1], [-1.0])
    padded = batch([one, two], PAD)
    assert padded.prompts.tolist() == [[PAD, PAD, 1], [5, 6, 8]]
    assert padded.responses.tolist() == [[2, 3, 4], [9, PAD, PAD]]
    assert padded.attention_mask.tolist() == [[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]
    assert padded.position_ids.tolist() == [[0, 0, 0, 1, 2, 3], [0, 1, 2, 3, 3, 3]]
    assert padded.response_mask.tolist() == [[1, 0, 1], [1, 0, 0]]
    assert padded.logprobs.tolist() == [[-0.5, 0.0, -0.25], [-1.0, 0.0, 0.0]]


def test_the_documented_shapes_and_types_hold():
    padded = batch([Sequence([1, 2], [3], [1], [-0.5])] * 4, PAD)
    assert padded.input_ids.shape == padded.attention_mask.shape == padded.position_ids.shape == (4, 3)
    assert padded.response_mask.shape == padded.logprobs.shape == (4, 1)
    assert padded.input_ids.dtype == padded.response_mask.dtype == np.int64
    assert padded.logprobs.dtype == np.float32


def test_nothing_makes_an_empty_batch():
    assert batch([], PAD).input_ids.shape == (0, 0)


def test_positions_on_padding_are_those_of_the_last_token_or_none():
    empty, long = Sequence([], [], [], []), Sequence([1, 2], [3, 4, 5], [1, 1, 1], [-0.5] * 3)
    short, prompt = Sequence([1], [2], [1], [-0.5]), Sequence([1, 2], [], [], [])
    padded = batch([empty, long, short, prompt], PAD)
    assert padded.position_ids.tolist() == [[0] * 5, [0, 1, 2, 3, 4], [0, 0, 1, 1, 1], [0, 1, 1, 1, 1]]
    assert padded.attention_mask.tolist() == [[0] * 5, [1] * 5, [0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
