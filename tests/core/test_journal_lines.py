"""Lines of a journal: they give the rollout back, and their checksum names every change of a byte."""

from __future__ import annotations

import json
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import (
    FailedLine,
    Failure,
    Message,
    RoleCall,
    Rollout,
    Score,
    ScoredLine,
    Task,
    Timing,
    TokenRef,
    Turn,
    add_crc,
    decode_record,
    encode_line,
    encode_pretty,
    encode_record,
    has_crc,
    is_crc_right,
    is_record_intact,
    make_failed_line,
    make_scored_line,
)

TASK = Task(id="a", prompt="p", env="e")
CALLS = [RoleCall("user", 0, 7, "Go on.", 5, 2)]
turns = st.builds(
    Turn,
    prompt_tokens=st.integers(0, 9),
    completion_tokens=st.integers(0, 9),
    finish_reason=st.sampled_from(["stop", "length"]),
    seconds=st.sampled_from([0.0, 0.5]),
    model_version=st.sampled_from([None, "v1"]),
    cached_tokens=st.none() | st.integers(0, 9),
)
ended_rollouts = st.builds(
    Rollout,
    task=st.just(TASK),
    sample=st.integers(0, 9),
    seed=st.integers(0, 9),
    round=st.integers(1, 3),
    attempt=st.integers(1, 3),
    messages=st.just([*TASK.messages, Message("assistant", "x")]),
    turns=st.lists(turns, max_size=3),
    outcome=st.sampled_from([None, {"left": 1}]),
    timing=st.just(Timing(1.0, 2.0, 3.0, 4.0, 5.0)),
    ended=st.sampled_from(["", "max_turns"]),
    role_calls=st.sampled_from([[], CALLS]),
)


@given(ended_rollouts)
def test_a_line_gives_every_field_of_its_rollout_back(rollout: Rollout) -> None:
    refs = [TokenRef(8 * number, 8) for number in range(len(rollout.turns))]
    rollout.score = Score(0.5, {"style": 0.25}, "x", {"why": 1})
    scored = msgspec.json.decode(encode_line(make_scored_line(rollout, refs)), type=ScoredLine)
    assert scored.to_rollout(TASK) == rollout
    assert [turn.tokens for turn in scored.turns] == refs
    assert scored.usage == rollout.usage
    rollout.score, rollout.failure = None, Failure("verifier_error", "data", "verify", "boom")
    failed = msgspec.json.decode(encode_line(make_failed_line(rollout, refs, False)), type=FailedLine)
    assert (failed.to_rollout(TASK), failed.final, failed.usage) == (rollout, False, rollout.usage)


def test_what_there_was_none_of_is_absent_from_a_line() -> None:
    rollout = Rollout(task=TASK, sample=0, seed=0, turns=[Turn()], score=Score(1.0))
    line = json.loads(encode_line(make_scored_line(rollout, [None])))
    assert {"role_calls", "crc"}.isdisjoint(line)
    assert "cached_tokens" not in line["turns"][0]


def test_every_turn_needs_the_place_of_its_ids() -> None:
    rollout = Rollout(task=TASK, sample=0, seed=0, turns=[Turn(), Turn()], score=Score(1.0))
    rollout.failure = Failure("verifier_error", "data", "verify", "boom")
    with pytest.raises(ValueError, match="shorter"):
        make_scored_line(rollout, [None])
    with pytest.raises(ValueError, match="shorter"):
        make_failed_line(rollout, [None], True)


def test_a_checksum_is_the_last_field_and_that_of_zlib() -> None:
    before = b'{"a":1'
    line = add_crc(before + b"}")
    assert json.loads(line) == {"a": 1, "crc": f"{zlib.crc32(before):08x}"}
    assert has_crc(line)
    assert is_crc_right(line)


@given(st.binary(max_size=40), st.data())
def test_a_changed_byte_is_noticed(content: bytes, data: st.DataObject) -> None:
    line = bytearray(add_crc(b'{"a":"' + content + b'"}'))
    place = data.draw(st.integers(0, len(line) - 1))
    line[place] ^= 1 << data.draw(st.integers(0, 7))
    assert not (has_crc(bytes(line)) and is_crc_right(bytes(line)))


@pytest.mark.parametrize("line", [b'{"a":1}', b'{"crc":"00000000"}', b'{"a":1,"crc":"00000000","b":1}', b'"}', b""])
def test_a_line_without_a_checksum_at_its_end_has_none(line: bytes) -> None:
    assert not has_crc(line)


def test_files_that_people_open_are_indented_by_two() -> None:
    assert encode_pretty({"a": [1]}) == b'{\n  "a": [\n    1\n  ]\n}\n'


RECORDS = [{"n": 1}, {"crc": "0badbeef", "n": {"crc": 2}}, {"text": "x" * 100}, {}]


@pytest.mark.parametrize("value", RECORDS)
def test_a_file_of_one_value_has_its_checksum_at_its_end(value: dict[str, object]) -> None:
    data = encode_record({**value, "last": 7})
    decoder = msgspec.json.Decoder(dict[str, object])
    assert decode_record(data, decoder)["last"] == 7
    assert is_record_intact(data)
    compact = data.replace(b'"last": 7', b'"last": 8')
    assert not is_record_intact(compact)
    with pytest.raises(msgspec.DecodeError, match="its checksum is wrong"):
        decode_record(compact, decoder)
    bare = encode_pretty({**value, "last": 8})
    assert is_record_intact(bare)
    assert decode_record(bare, decoder) == {**value, "last": 8}


def test_a_record_that_was_indented_anew_is_recognised_by_what_is_before_its_checksum() -> None:
    data = encode_record({"n": 1})
    assert is_record_intact(data.rstrip(b"\n"))
    assert is_record_intact(data + b" \r\n\t")
    assert not is_record_intact(data.replace(b'"crc": "', b'"crc": "0', 1))
