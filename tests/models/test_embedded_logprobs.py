from hypothesis import given
from hypothesis import strategies as st

from rollbook.models.embedded import SampledToken, align_logprobs


def entries(*ids: int) -> list[SampledToken]:
    return [SampledToken(i, -float(at)) for at, i in enumerate(ids)]


def shown(tokens: list[int], *ids: int) -> list[int | None]:
    return [None if s is None else s.id for s in align_logprobs(tokens, entries(*ids))]


def test_a_full_report_is_taken_as_it_is() -> None:
    assert shown([1, 2, 2], 1, 2, 2) == [1, 2, 2]


def test_what_is_left_out_stays_open() -> None:
    assert shown([1, 9, 8, 2], 1, 2) == [1, None, None, 2]
    assert shown([1, 2, 9], 1, 2) == [1, 2, None]
    assert shown([9], *()) == [None]


def test_what_could_belong_to_two_tokens_belongs_to_neither() -> None:
    assert shown([1, 5, 5, 2], 1, 5, 2) == [1, None, None, 2]


def test_a_report_of_other_tokens_is_not_used_at_all() -> None:
    assert shown([1, 2], 1, 3) == [None, None]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_no_entry_is_ever_put_on_the_wrong_token(drawn: list[tuple[int, bool]]) -> None:
    tokens = [token for token, _ in drawn]
    truth = [SampledToken(token, -float(at)) if reported else None for at, (token, reported) in enumerate(drawn)]
    aligned = align_logprobs(tokens, [s for s in truth if s is not None])
    assert all(f is None or f is t for f, t in zip(aligned, truth, strict=True))
    if all(t is not None for t in truth):
        assert aligned == truth
