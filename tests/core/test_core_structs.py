"""The nouns: what they accept, what they refuse, and that JSON gives them back."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import JSON, Group, Sampling, check_extra_sampling
from rollbook.core.failure import FAILURE_KINDS, Failure, attempts_allowed, check_retry_rules, reopens
from rollbook.core.journal_lines import FailedLine, ScoredLine, make_failed_line, make_scored_line
from rollbook.core.json import iterate_lines
from rollbook.core.rollout import Rollout, Score, Turn, as_score
from rollbook.core.seeds import derive_role_seed, derive_seed
from rollbook.core.task import Message, Task, TaskLine, as_messages
from rollbook.errors import InvalidReward, RolloutFailed, UsageError


def test_a_task_keeps_extra_fields_for_the_verifier() -> None:
    task = Task(id="a", prompt="hi", answer="7", level=3)
    assert (task.level, task.answer, task.messages) == (3, "7", [Message("user", "hi")])
    with pytest.raises(AttributeError, match="level"):
        _ = task.missing


def test_a_task_needs_a_prompt_or_messages_but_not_both() -> None:
    with pytest.raises(UsageError, match="either prompt or messages"):
        Task(id="a")
    with pytest.raises(UsageError, match="either prompt or messages"):
        Task(id="a", prompt="x", messages=[{"role": "user", "content": "x"}])


@given(answer=st.one_of(st.none(), st.text(), st.integers(-(2**53), 2**53)), level=st.lists(st.integers(-9, 9)))
def test_a_task_survives_its_line(answer: object, level: list[int]) -> None:
    task = Task(id="a", prompt="p", answer=answer, env="e", level=level)
    line = msgspec.json.decode(msgspec.json.encode(task.line()), type=TaskLine)
    assert Task.from_line(line) == task


@pytest.mark.parametrize(("value", "reward"), [(True, 1.0), (False, 0.0), (0.5, 0.5), (3, 3.0), (Score(0.25), 0.25)])
def test_what_a_verifier_may_return(value: object, reward: float) -> None:
    assert as_score(value).reward == reward


@pytest.mark.parametrize("value", [None, "1", float("nan"), float("inf"), [1], {}, object()])
def test_what_is_not_a_finite_number_is_not_a_score(value: object) -> None:
    with pytest.raises(InvalidReward):
        as_score(value)


def test_a_part_must_be_finite_too() -> None:
    with pytest.raises(InvalidReward, match="style"):
        Score(1.0, {"style": math.nan})


@pytest.mark.parametrize(("given", "stored"), [(7, "7"), ("7", "7"), ("", ""), (None, None), (1.5, "1.5")])
def test_the_answer_of_a_score_is_text_if_there_is_one(given: JSON, stored: str | None) -> None:
    assert Score(1.0, answer=given).answer == stored


def test_the_seed_of_a_sample_depends_on_nothing_else() -> None:
    assert derive_seed(0, "a", 0) == derive_seed(0, "a", 0)
    assert len({derive_seed(r, t, s) for r in range(3) for t in "abc" for s in range(50)}) == 450
    assert all(0 <= derive_seed(0, "t", s) < 2**31 for s in range(1000))


def test_the_failure_table_of_the_design() -> None:
    attempts = {kind: (row.side, row.attempts) for kind, row in FAILURE_KINDS.items()}
    assert attempts["model_unavailable"] == ("infra", 4)
    assert attempts["worker_lost"] == ("infra", 3)
    assert attempts["verifier_timeout"] == ("data", 2)
    assert attempts["verifier_error"] == ("data", 1)
    assert attempts_allowed("model_timeout", {"model_timeout": 9}) == 9


def test_retry_rules() -> None:
    assert reopens(["infra"], "model_timeout")
    assert not reopens(["infra"], "verifier_error")
    assert reopens(["verifier_error"], "verifier_error")
    assert not reopens([], "model_timeout")
    assert check_retry_rules(["none"]) == []
    with pytest.raises(UsageError, match="not a failure kind"):
        check_retry_rules(["verifer_error"])


def test_messages_are_taken_as_dictionaries_too() -> None:
    message = as_messages([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}])[0]
    assert message.text == "a"


def test_lines_give_the_rollout_back() -> None:
    task = Task(id="a", prompt="p", env="e")
    turn = Turn([1, 2], [3], [-0.5], 2, 1, "stop", 0.25, "v1")
    rollout = Rollout(task=task, sample=1, seed=5, messages=[*task.messages, Message("assistant", "x")], turns=[turn])
    rollout.score = Score(1.0, {"a": 0.5}, "x", {"why": "because"})
    line = msgspec.json.decode(msgspec.json.encode(make_scored_line(rollout, [None])), type=ScoredLine)
    again = line.to_rollout(task)
    assert (again.reward, again.text, again.score, again.seed) == (1.0, "x", rollout.score, 5)
    assert again.turns[0].completion_tokens == 1


def test_a_failed_line_keeps_how_far_it_got() -> None:
    task = Task(id="a", prompt="p", env="e")
    rollout = Rollout(task=task, sample=0, seed=5, messages=task.messages, turns=[Turn(completion_tokens=4)])
    rollout.failure = Failure.from_error(RolloutFailed("verifier_error", "verify", "boom"))
    line = msgspec.json.decode(msgspec.json.encode(make_failed_line(rollout, [None], True)), type=FailedLine)
    assert (line.final, line.failure.side, line.turns[0].completion_tokens) == (True, "data", 4)
    with pytest.raises(AttributeError, match="no score"):
        _ = line.to_rollout(task).reward


def test_text_is_what_the_model_said_not_what_it_was_shown() -> None:
    task = Task(id="a", messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "shown"}])
    assert Rollout(task=task, sample=0, seed=0, messages=task.messages).text == ""


def test_a_task_may_allow_fewer_turns_and_only_then_its_line_says_so() -> None:
    task = Task("a", "p", max_turns=2)
    assert Task.from_line(msgspec.json.decode(msgspec.json.encode(task.line()), type=TaskLine)).max_turns == 2
    plain = Task("a", "p").line()
    assert b"max_turns" not in msgspec.json.encode(plain)
    assert Task.from_line(plain).max_turns is None
    for wrong in (0, -1, True, "2", 1.5):
        with pytest.raises(UsageError, match="max_turns"):
            Task("a", "p", max_turns=wrong)


def test_lines_of_a_file_come_with_their_numbers_and_offsets_and_blank_ones_are_skipped() -> None:
    found = list(iterate_lines(io.BytesIO(b'{"a":1}\n\n  \r\n{"b":2}')))
    assert found == [(1, 0, b'{"a":1}\n'), (4, 13, b'{"b":2}')]


def roll(reward: float | None = None, ended: str = "", reasons: tuple[str, ...] = ("stop",)) -> Rollout:
    """Return a rollout with turns that ended for these reasons, which failed if it has no reward."""
    turns = [Turn(None, None, None, 3, 2, finish_reason=reason) for reason in reasons]
    rollout = Rollout(task=Task(id="a", prompt="hi"), sample=0, seed=1, turns=turns, ended=ended)
    if reward is None:
        rollout.failure = Failure.from_error(RolloutFailed("model_timeout", "test", "too slow"))
    else:
        rollout.score = Score(reward)
    return rollout


@pytest.mark.parametrize(
    ("ended", "reasons", "truncated"),
    [
        ("", (), False),
        ("", ("stop",), False),
        ("", ("length",), True),
        ("", ("context_length",), True),
        ("", ("length", "stop"), False),
        ("max_turns", ("stop",), True),
        ("max_turns", (), True),
    ],
)
def test_a_rollout_is_truncated_by_its_last_answer_or_by_a_limit(
    ended: str, reasons: tuple[str, ...], truncated: bool
) -> None:
    assert roll(1.0, ended, reasons).truncated is truncated


def test_a_group_separates_scored_rollouts_from_failed_ones() -> None:
    good, bad, lost = roll(1.0), roll(0.0), roll()
    group = Group(good.task, [good, lost, bad])
    assert (group.scored, group.failed) == ([good, bad], [lost])
    assert Group(good.task, [bad, good]).rewards == [0.0, 1.0]
    with pytest.raises(AttributeError, match="has no score"):
        _ = group.rewards


def test_a_turn_has_tokens_if_their_ids_were_recorded() -> None:
    assert Turn([1], [2], [-0.5], 1, 1).has_tokens
    assert not roll(1.0).turns[0].has_tokens


def test_one_call_may_change_sampling_except_what_the_run_omits() -> None:
    run = Sampling(temperature=0.2, extra={"seed": None, "top_p": None, "min_p": 0.1})
    call = run.override({"temperature": 0.5, "max_tokens": 9, "seed": 7, "top_p": 0.5, "top_k": 3})
    assert (call.temperature, call.top_p, call.max_tokens) == (0.5, 1.0, 9)
    assert call.extra == {"seed": None, "top_p": None, "min_p": 0.1, "top_k": 3}
    assert (run.omits("top_p"), run.omits("min_p"), run.omits("top_k")) == (True, False, False)


@pytest.mark.parametrize("values", [{}, {"top_k": 3}, {"seed": None, "temperature": None}, {"min_p": None}])
def test_extra_parameters_are_accepted(values: dict[str, JSON]) -> None:
    check_extra_sampling(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_k": 1, "seed": 3}, "--x seed=3: seed is not an extra parameter"),
        ({"temperature": 0.5}, "--x temperature=0.5: temperature is not an extra parameter"),
        ({"messages": None}, "--x messages=None: messages is not an extra parameter"),
        ({"max_completion_tokens": 5}, "--x max_completion_tokens=5: give --max-tokens"),
    ],
)
def test_parameters_that_rollbook_sets_itself_are_refused(values: dict[str, JSON], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_extra_sampling(values, "--x")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "other",
    [Task("b", prompt="x"), Task("a", prompt="y"), Task("a", prompt="x", answer=1), Task("a", prompt="x", level=1),
     Task("a", prompt="x", env="e"), Task("a", prompt="x").line(), "a", None],
)  # fmt: skip
def test_tasks_are_equal_only_to_tasks_with_the_same_line(other: object) -> None:
    task = Task("a", prompt="x")
    assert task == Task("a", prompt="x")
    assert task != other
    assert (task == other) is False


def test_tasks_are_one_in_sets_by_environment_and_id() -> None:
    one, same, other = (Task(id=name, prompt="hi", env="Sums") for name in "aab")
    assert len({one, same, other}) == 2
    assert hash(one) != hash(Task(id="a", prompt="hi", env="Other"))
    assert (repr(one), one.prompt) == ("Task(id='a')", "hi")


def test_a_task_may_allow_a_single_turn() -> None:
    assert Task("a", "p", max_turns=1).max_turns == 1


def test_a_rollout_is_named_by_its_task_and_its_sample() -> None:
    assert Rollout(task=Task("a", "p"), sample=3, seed=0).key == ("a", 3)
    with pytest.raises(AttributeError, match=r"rollout \('a', 0\) has no score"):
        _ = roll().reward


def test_seeds_stay_what_they_were_since_runs_are_continued_with_them() -> None:
    assert [derive_seed(0, "a", 0), derive_seed(7, "sum-1", 3)] == [600759591, 446642791]
    assert [derive_role_seed(5, "user", 2), derive_role_seed(5, "user2", 0)] == [1670677061, 242759066]


def test_what_is_not_given_of_a_task_is_empty() -> None:
    task = Task("a", "p")
    assert (task.env, task.answer, task.max_turns, task.fields) == ("", None, None, {})
    with pytest.raises(AttributeError, match=r"task 'a' has no field 'level'; extra fields: none$"):
        _ = task.level
    with pytest.raises(AttributeError, match=r"extra fields: a, b$"):
        _ = Task("a", "p", b=1, a=2).level
    assert [Message("assistant").text, Message("assistant", []).text, Message("user", [{}]).text] == ["", "", ""]
    assert Task("a", messages=[]).prompt == ""


def test_the_option_of_extra_parameters_is_named_in_errors() -> None:
    with pytest.raises(UsageError, match=r"^--sampling seed=3: "):
        check_extra_sampling({"seed": 3})


def test_lines_longer_than_a_limit_come_in_pieces() -> None:
    found = list(iterate_lines(io.BytesIO(b"abcdef\ngh\n"), 4))
    assert found == [(1, 0, b"abcd"), (2, 4, b"ef\n"), (3, 7, b"gh\n")]


@pytest.mark.parametrize("attempts", [{}, {"model_timeout": 1}])
def test_a_kind_without_a_budget_of_its_own_has_that_of_the_table(attempts: dict[str, int]) -> None:
    assert attempts_allowed("model_timeout", attempts) == attempts.get("model_timeout", 4)


@pytest.mark.parametrize("value", [Decimal("0.5"), Fraction(1, 2), 0.5])
def test_a_reward_may_be_any_kind_of_number_and_is_a_float(value: object) -> None:
    for score in (as_score(value), Score(value), Score(0.0, {"style": value})):  # type: ignore[arg-type,dict-item]
        assert 0.5 in (score.reward, score.parts.get("style"))
        assert {type(each) for each in (score.reward, *score.parts.values())} == {float}


@pytest.mark.parametrize("reward", [math.nan, math.inf, "1", None, 1j])
def test_a_score_without_a_finite_reward_cannot_be_made(reward: float) -> None:
    with pytest.raises(InvalidReward, match=r"^the reward is "):
        Score(reward)
