import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import Turn
from rollbook.errors import TokenError
from rollbook.tokens.sidecar import decode_tokens, encode_tokens

IDS = st.lists(st.integers(0, 2**31 - 1) | st.integers(0, 2), max_size=40)


@st.composite
def previous_ids_and_turns(draw):
    held, ids = draw(IDS), draw(IDS)
    prompt = held[: draw(st.integers(0, len(held)))] + draw(IDS)
    logprobs = draw(st.lists(st.floats(width=32, allow_nan=False), min_size=len(ids), max_size=len(ids)))
    return held, Turn(prompt_ids=prompt, ids=ids, logprobs=logprobs)


@given(previous_ids_and_turns())
def test_a_record_gives_back_exactly_what_was_recorded(case):
    held, turn = case
    assert decode_tokens(encode_tokens(turn, held), held) == (turn.prompt_ids, turn.ids, turn.logprobs)


def test_a_turn_that_continues_stores_only_what_it_adds():
    numbers = random.Random(0)
    held = [numbers.randrange(2**31) for _ in range(5000)]
    assert len(encode_tokens(Turn(prompt_ids=[*held, 5], ids=[6], logprobs=[-0.5]), held)) < 60


@given(previous_ids_and_turns(), st.data())
def test_a_damaged_byte_anywhere_raises(case, data):
    held, turn = case
    record = bytearray(encode_tokens(turn, held))
    record[data.draw(st.integers(0, len(record) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(TokenError):
        decode_tokens(bytes(record), held)


@given(previous_ids_and_turns(), st.data())
def test_a_record_cut_short_raises(case, data):
    held, turn = case
    record = encode_tokens(turn, held)
    with pytest.raises(TokenError):
        decode_tokens(record[: data.draw(st.integers(0, len(record) - 1))], held)


def test_a_record_read_after_the_wrong_history_raises():
    record = encode_tokens(Turn(prompt_ids=[1, 2, 3, 4], ids=[5], logprobs=[-1.0]), [1, 2, 3])
    with pytest.raises(TokenError, match="continues 3 ids, but only 2 came before"):
        decode_tokens(record, [1, 2])


@pytest.mark.parametrize(
    "turn",
    [
        Turn(prompt_ids=[2**31], ids=[], logprobs=[]),
        Turn(prompt_ids=[1], ids=[1], logprobs=[-1e300]),
        Turn(prompt_ids=[1], ids=[1, 2], logprobs=[-1.0]),
        Turn(),
    ],
)
def test_what_cannot_be_recorded_exactly_is_refused(turn):
    with pytest.raises(TokenError):
        encode_tokens(turn, [])


def test_a_single_turn_costs_well_under_a_hundred_microseconds():
    numbers = random.Random(0)
    turn = Turn(
        prompt_ids=[numbers.randrange(50_000) for _ in range(200)],
        ids=[numbers.randrange(50_000) for _ in range(300)],
        logprobs=[-numbers.expovariate(1) for _ in range(300)],
    )

    def seconds():
        begun = time.process_time()
        for _ in range(100):
            encode_tokens(turn, [])
        return (time.process_time() - begun) / 100

    assert min(seconds() for _ in range(10)) < 200e-6
