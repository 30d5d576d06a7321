import time
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rollbook.core import Turn
from rollbook.errors import TokenError
from rollbook.tokens import Sequence, merge
from rollbook.tokens.sequences import (
    ANSWER_DIFFERS,
    ANSWER_LEFT_OUT,
    HISTORY_EDITED,
    HISTORY_LEFT_OUT,
    SHORTER,
    require_tokens,
)

THINK, END = 90, 99


def make_turn(prompt, ids, logprobs=None):
    return Turn(prompt_ids=prompt, ids=ids, logprobs=[-0.5] * len(ids) if logprobs is None else logprobs)


def test_no_turns_are_no_sequences():
    assert merge([]) == []


def test_one_turn_is_one_sequence():
    assert merge([make_turn([1, 2], [3, 4], [-0.1, -0.2])]) == [Sequence([1, 2], [3, 4], [1, 1], [-0.1, -0.2])]


def test_a_continued_prompt_extends_the_sequence_with_the_difference_untrained():
    merged = merge([make_turn([1, 2], [3, END]), make_turn([1, 2, 3, END, 7, 8], [4, END])])
    assert merged == [Sequence([1, 2], [3, END, 7, 8, 4, END], [1, 1, 0, 0, 1, 1], [-0.5, -0.5, 0.0, 0.0, -0.5, -0.5])]


def test_a_turn_that_sampled_nothing_keeps_its_prompt_untrained():
    (merged,) = merge([make_turn([1], [2]), make_turn([1, 2, 3], []), make_turn([1, 2, 3, 4], [5])])
    assert (merged.response_ids, merged.mask) == ([2, 3, 4, 5], [1, 0, 0, 1])


@pytest.mark.parametrize(
    ("second_prompt", "at", "reason"),
    [
        ([1, 2, 3], 3, SHORTER),
        ([1, 2, 3, 10, 11, END], 6, None),
        ([1, 2, 3, 10, 12, END, 7], 4, ANSWER_DIFFERS),
        ([1, 2, 3, 11, END, 7], 3, ANSWER_LEFT_OUT),
        ([1, 5, 3, 10, 11, END, 7], 1, HISTORY_EDITED),
        ([1, 3, 10, 11, END, 7], 1, HISTORY_LEFT_OUT),
        ([1, 10, 11, END, 7], 1, HISTORY_LEFT_OUT),
        ([1, 11, END, 7], 1, ANSWER_LEFT_OUT),
        ([8, 8, 8, 8, 8, 8, 8], 0, HISTORY_EDITED),
    ],
)
def test_what_does_not_continue_forks_and_says_where_and_why(second_prompt, at, reason):
    first, second = make_turn([1, 2, 3], [10, 11, END]), make_turn(second_prompt, [20])
    sequences = merge([first, second])
    if reason is None:
        assert len(sequences) == 1
        return
    assert sequences[0] == merge([first])[0]
    assert sequences[1].prompt_ids == second_prompt
    assert sequences[1].response_ids == [20]
    fork = sequences[1].fork
    assert (fork.turn, fork.at, fork.reason) == (1, at, reason)


def test_reasoning_that_a_template_strips_with_its_opening_in_the_prompt_is_recognised():
    first = make_turn([1, 2, THINK], [50, 51, 52, 10, 11, END])
    second = make_turn([1, 2, 10, 11, END, 7, THINK], [60])
    assert merge([first, second])[1].fork.reason == ANSWER_LEFT_OUT


def test_after_a_fork_turns_continue_the_new_sequence():
    sequences = merge([make_turn([1], [2]), make_turn([9], [3]), make_turn([9, 3, 4], [5])])
    assert [s.mask for s in sequences] == [[1], [1, 0, 1]]
    assert [s.fork.turn for s in sequences if s.fork] == [1]


@pytest.mark.parametrize(
    "bare",
    [Turn(), Turn(prompt_ids=[1], ids=[2]), Turn(ids=[2], logprobs=[-0.1]), Turn(completion_tokens=3)],
)
def test_tokens_that_were_not_recorded_are_never_guessed(bare):
    with pytest.raises(TokenError, match="turn 1 has no token ids"):
        merge([make_turn([1], [2]), bare])


def test_unequal_ids_and_logprobs_are_an_error_with_the_numbers():
    with pytest.raises(TokenError, match="turn 0 has 2 ids and 1 logprobs"):
        merge([make_turn([1], [2, 3], [-0.1])])


def test_a_call_refused_because_the_context_is_full_sampled_nothing():
    refused = Turn(finish_reason="context_length")
    assert merge([make_turn([1], [2]), refused]) == merge([make_turn([1], [2])])


@st.composite
def conversations(draw):
    """Turns that continue, or edit, cut or drop earlier ids; few distinct ids, so that accidental matches are
    common."""
    ids = st.lists(st.integers(0, 3), max_size=6)
    turns, held = [], draw(ids)
    for _ in range(draw(st.integers(0, 6))):
        prompt = draw(st.sampled_from([held, held[:-1], held[1:], held[: len(held) // 2]])) + draw(ids)
        sampled = draw(ids)
        logprobs = draw(st.lists(st.floats(-20, 0), min_size=len(sampled), max_size=len(sampled)))
        turns.append(make_turn(prompt, sampled, logprobs))
        held = prompt + sampled
    return turns


@given(conversations())
def test_every_sampled_token_is_trained_exactly_once_with_its_logprob_after_its_own_prompt(turns):
    trained = []
    for sequence in merge(turns):
        whole = sequence.prompt_ids + sequence.response_ids
        for position, mask in enumerate(sequence.mask):
            if mask:
                end = len(sequence.prompt_ids) + position
                trained.append((tuple(whole[:end]), whole[end], sequence.logprobs[position]))
    sampled = [(tuple(t.prompt_ids + t.ids[:i]), token, t.logprobs[i]) for t in turns for i, token in enumerate(t.ids)]
    assert trained == sampled


@given(conversations())
@example([make_turn([1, 2], [3], [-0.5]), make_turn([1, 0, 3], [2], [-0.5])])
def test_a_fork_names_the_first_position_that_differs(turns):
    sequences = merge(turns)
    assert [sequence.fork is None for sequence in sequences] == [place == 0 for place in range(len(sequences))]
    for before, sequence in pairwise(sequences):
        held = before.prompt_ids + before.response_ids
        at = sequence.fork.at
        assert held[:at] == sequence.prompt_ids[:at]
        assert held[at : at + 1] != sequence.prompt_ids[at : at + 1]


def test_merging_is_linear_in_tokens():
    def seconds(turns_count):
        turns, held = [], [1]
        for _ in range(turns_count):
            turns.append(make_turn(held, [2] * 20))
            held = [*held, *[2] * 20, 3]
        tokens = sum(len(t.prompt_ids) + len(t.ids) for t in turns)
        begun = time.process_time()
        assert len(merge(turns)) == 1
        return (time.process_time() - begun) / tokens

    small, large = min(seconds(50) for _ in range(5)), min(seconds(800) for _ in range(3))
    assert large < 4 * small


@pytest.mark.parametrize(
    ("first_changed", "reason"), [(0, HISTORY_EDITED), (2, HISTORY_EDITED), (3, ANSWER_DIFFERS), (5, ANSWER_DIFFERS)]
)
def test_the_last_answer_begins_with_its_first_token(first_changed, reason):
    held = [1, 2, 3, 10, 11, END]
    prompt = [*held[:first_changed], *[20] * (6 - first_changed), 7]
    fork = merge([make_turn(held[:3], held[3:]), make_turn(prompt, [8])])[1].fork
    assert (fork.at, fork.reason) == (first_changed, reason)


@pytest.mark.parametrize(
    "turn", [Turn(finish_reason="context_length", completion_tokens=1), Turn(finish_reason="length")]
)
def test_only_a_call_that_was_refused_before_any_token_is_left_out(turn):
    with pytest.raises(TokenError, match="turn 1 has no token ids"):
        merge([make_turn([1], [2]), turn])
    kept = make_turn([1, 2, 3], [4])
    refused = Turn(kept.prompt_ids, kept.ids, kept.logprobs, finish_reason="context_length")
    assert len(merge([make_turn([1], [2]), refused])[0].response_ids) == 3


def test_one_turn_by_itself_is_turn_0():
    with pytest.raises(TokenError, match=r"^turn 0 has no token ids"):
        require_tokens(Turn())
