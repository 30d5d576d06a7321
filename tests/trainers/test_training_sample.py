"""What a trainer is given of a rollout: exact sequences, or the same ids with an all-zero mask where it failed."""

from __future__ import annotations

import pytest

from rollbook.core import Turn
from rollbook.errors import TokenError
from rollbook.trainers.formats import sample_of
from support.token_rollouts import played


def test_a_scored_rollout_is_its_sequences_and_its_reward() -> None:
    sample = sample_of(played([1, 2], [3, 4], reward=0.5))
    assert (sample.reward, sample.masked, sample.last and sample.last.mask) == (0.5, False, [1, 1])


def test_a_failed_rollout_keeps_its_ids_and_trains_none_of_them() -> None:
    sample = sample_of(played([1, 2], [3, 4], reward=None))
    assert sample.masked
    assert sample.reward is None
    assert sample.last is not None
    assert (sample.last.prompt_ids, sample.last.response_ids, sample.last.mask) == ([1, 2], [3, 4], [0, 0])


def test_nothing_is_made_up_where_no_token_is_known() -> None:
    failed = played([1], [2], reward=None)
    failed.turns = [Turn(completion_tokens=3)]
    assert sample_of(failed).sequences == []
    scored = played([1], [2], reward=1.0)
    scored.turns = [Turn(completion_tokens=3)]
    with pytest.raises(TokenError, match="t#0: turn 0 has no token ids"):
        sample_of(scored)


def test_a_scored_rollout_whose_sampled_tokens_have_no_ids_is_refused() -> None:
    """Trainers pair rows with rewards by their place, so a sample without a row would shift all that follow."""
    scored = played([1], [2], reward=1.0)
    scored.turns = [Turn([1], [], [], completion_tokens=3)]
    with pytest.raises(TokenError, match="t#0: 3 tokens were sampled, and none has an id"):
        sample_of(scored)


def test_what_forked_is_several_sequences_and_the_earlier_ones_are_counted() -> None:
    sample = sample_of(played([1, 2], [3, 4], [9], [8], reward=1.0))
    assert len(sample.sequences) == 2
    assert sample.untrained == 2
