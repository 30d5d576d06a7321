import random
import struct
import time
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import Turn
from rollbook.errors import TokenError
from rollbook.tokens.sidecar import HEADER_BYTES, decode_tokens, encode_tokens, read_header

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


def make_record(body, shared=0, rest=1, sampled=1, version=1):
    """Return a record with the right checksum, whatever is in it."""
    head = struct.pack("<BIII", version, shared, rest, sampled)
    return head + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + body


WHOLE = zlib.compress(struct.pack("<2i1f", 7, 8, -0.5))


def test_a_record_is_read_as_its_format_says():
    assert decode_tokens(make_record(WHOLE), []) == ([7], [8], [-0.5])
    assert decode_tokens(make_record(WHOLE, shared=2), [1, 2, 3]) == ([1, 2, 7], [8], [-0.5])
    assert read_header(make_record(WHOLE, shared=5)[:HEADER_BYTES]) == (5, 1, 1)
    assert (
        encode_tokens(Turn([7], [8], [-0.5]), [])[:HEADER_BYTES]
        == make_record(encode_tokens(Turn([7], [8], [-0.5]), [])[HEADER_BYTES:])[:HEADER_BYTES]
    )


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (make_record(b"no zlib"), "is damaged"),
        (make_record(b""), "is damaged"),
        (make_record(WHOLE, rest=2), r"2 \+ 1 ids holds 12 bytes"),
        (make_record(WHOLE, sampled=2), r"1 \+ 2 ids holds 12 bytes"),
        (make_record(WHOLE, version=2), "version 2; this Rollbook reads version 1"),
        (make_record(WHOLE)[: HEADER_BYTES - 1], "is cut short"),
        (make_record(WHOLE)[:HEADER_BYTES], "its checksum does not match"),
    ],
)
def test_a_record_that_is_not_of_its_format_is_an_error(record, words):
    with pytest.raises(TokenError, match=words):
        decode_tokens(record, [])


def test_a_header_that_is_cut_short_is_an_error():
    with pytest.raises(TokenError, match="is cut short"):
        read_header(make_record(WHOLE)[: HEADER_BYTES - 1])
