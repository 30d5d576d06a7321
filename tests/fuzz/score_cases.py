"""Scores that are known: rewards as tests and servers write them, and rows that an expression selects."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from fuzz.cases import Case, MakeCase, draw_name, draw_number, draw_object, draw_text
from rollbook.core import FAILURE_KINDS, Score, as_score
from rollbook.environments.harbor.rewards import (
    choose_reward,
    combine_rewards,
    misses_reward,
    parse_json,
    parse_text,
    read_rewards,
)
from rollbook.errors import InvalidReward, RolloutFailed
from rollbook.gym.rows import make_failed_row, make_scored_row, read_failure, read_score
from rollbook.stats.row_selection import CurateOptions, Expression, curate, rename_columns

Value: TypeAlias = bool | int | float | str | list[object] | None
Row: TypeAlias = Mapping[str, Value]
Known: TypeAlias = tuple[str, Callable[[Row], Value]]
"""An expression as text, and the same as a function of a row."""

INVALID = "it is refused"
COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
CALCULATE: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip


def or_invalid(read: Callable[[], object]) -> object:
    """Return what a reader returns, or that it refuses its input as an invalid reward."""
    try:
        return read()
    except (RolloutFailed, InvalidReward) as error:
        return INVALID if getattr(error, "kind", "invalid_reward") == "invalid_reward" else error


def make_reward_text(draw: random.Random) -> Case:
    number = draw_number(draw)
    text = draw.choice(("%s", "%s\n", " %s \n")) % repr(number)
    return Case(text, parse_text(text), {"reward": float(number)})


def make_reward_json(draw: random.Random) -> Case:
    rewards = {draw_name(draw): draw_number(draw) for _ in range(draw.randint(1, 4))}
    text = json.dumps(rewards)
    number = draw_number(draw)
    found = parse_json(text), parse_json(json.dumps(number))
    return Case(text, found, ({name: float(each) for name, each in rewards.items()}, {"reward": float(number)}))


def make_invalid_reward(draw: random.Random) -> Case:
    text = draw.choice(("", "nan", "inf", "-inf", "1_0", "1 2", "0x1", "true", "1e999", "passed", "\u0663"))
    value = draw.choice(("", "{}", "NaN", '{"reward": true}', '{"reward": null}', '{"reward": "1"}', "[1]", "1e999",
                         '{"reward": 1, "reward": 0}', '{"reward": Infinity}', "tru"))  # fmt: skip
    return Case(
        (text, value), (or_invalid(lambda: parse_text(text)), or_invalid(lambda: parse_json(value))), (INVALID, INVALID)
    )


def make_reward_files(draw: random.Random) -> Case:
    """Both files must agree on `reward`; one of them is enough; without any there is no reward."""
    written = {"reward": float(draw.randint(-2, 2)), draw_name(draw): draw.random()}
    in_text = draw.choice((None, written["reward"], written["reward"] + 1))
    in_json = draw.choice((None, written))
    with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
        if in_text is not None:
            Path(folder, "reward.txt").write_text(str(in_text))
        if in_json is not None:
            Path(folder, "reward.json").write_text(json.dumps(in_json))
        try:
            found: object = read_rewards(Path(folder))
        except RolloutFailed as error:
            found = error.kind
    expected: object = in_json if in_json is not None else {"reward": in_text}
    if in_text is None and in_json is None:
        expected = "verifier_error"
    elif in_text is not None and in_json is not None and in_text != written["reward"]:
        expected = "invalid_reward"
    return Case((in_json, in_text), found, expected)


def make_chosen_reward(draw: random.Random) -> Case:
    rewards = {name: draw.random() for name in draw.sample(("reward", "speed", "style", "size"), draw.randint(1, 3))}
    named = draw.choice(("", "", draw.choice(list(rewards))))
    name = named or ("reward" if len(rewards) > 1 else next(iter(rewards)))
    others = {other: value for other, value in rewards.items() if other != name}
    expected: object = (rewards[name], others) if name in rewards else INVALID
    return Case((rewards, named), or_invalid(lambda: choose_reward(rewards, named)), expected)


def make_steps(draw: random.Random) -> Case:
    steps = [{"reward": float(draw.randint(0, 4)), "x": float(draw.randint(0, 4))} for _ in range(draw.randint(1, 4))]
    least = {"reward": float(draw.randint(0, 4))}
    mean = {name: sum(step[name] for step in steps) / len(steps) for name in ("reward", "x")}
    found = combine_rewards(steps, final=True), combine_rewards(steps, final=False), misses_reward(steps[0], least)
    return Case((steps, least), found, (steps[-1], mean, steps[0]["reward"] < least["reward"]))


def make_score(draw: random.Random) -> Case:
    value = draw.choice((True, False, draw_number(draw), float("nan"), "1", None))
    is_number = isinstance(value, bool | int | float) and value == value
    found = or_invalid(lambda: as_score(value).reward)
    return Case(value, found, float(value) if is_number and value is not None else INVALID)


def make_verified_row(draw: random.Random) -> Case:
    """A score that is sent in a row comes back from it, our own details included and left out."""
    parts = {draw_name(draw): draw.uniform(-1, 1) for _ in range(draw.randint(0, 3))}
    answer = draw.choice((None, draw_text(draw)))
    score = Score(draw.uniform(-1, 1), parts, answer, draw_object(draw))
    row = make_scored_row({"id": "x"}, score)
    plain = read_score({name: value for name, value in row.items() if name != "rollbook"}, {"id": "x"})
    return Case(row, (read_score(row, {"id": "x"}), plain.reward, plain.answer), (score, score.reward, answer))


def make_failed_verdict(draw: random.Random) -> Case:
    """A row that says that it failed has no score, whatever reward it has too; a kind of ours comes back as it is."""
    kind, message = draw.choice(sorted(FAILURE_KINDS)), draw_text(draw) or "x"
    verdicts: list[tuple[dict[str, object], str | None]] = [
        (make_failed_row({"id": "x"}, kind, message), kind),
        ({"_ng_failure_class": "odd", "_ng_failure_message": message}, "sandbox_error"),
        ({"_ng_failure_class": "odd", "_ng_failure_terminal": True}, "verifier_error"),
        ({"_ng_failure_class": "judge_failed", "_ng_failure_judge_error": message}, "judge_error"),
        ({"mask_sample": True}, "verifier_error"),
        ({"_ng_no_persist": True}, "environment_error"),
        ({"mask_sample": False, "_ng_no_persist": None}, None),
    ]
    verdict, expected = draw.choice(verdicts)
    found = read_failure({"reward": draw.choice((0.0, 1.0)), **verdict}, "here", "sandbox_error")
    return Case(verdict, found.kind if found else None, expected)


NAMES = ("mean", "n", "std", "pass_4", "level")


def draw_row(draw: random.Random) -> dict[str, Value]:
    row: dict[str, Value] = {name: draw.choice((None, draw.randint(-2, 3), round(draw.random(), 2))) for name in NAMES}
    return {**row, "word": draw.choice((None, "four", "forty", ""))}


def draw_arithmetic(draw: random.Random, depth: int) -> Known:
    """Return a number: a name, a constant, its negative, or a calculation; unknown if a part of it is."""
    kind = draw.randrange(4 if depth else 2)
    if kind == 0:
        name = draw.choice(NAMES)
        return name, lambda row: row[name]
    if kind == 1:
        number = draw.choice((draw.randint(0, 4), round(draw.random(), 1)))
        return repr(number), lambda row: number
    left, first = draw_arithmetic(draw, depth - 1)
    if kind == 2:
        return f"-({left})", lambda row: None if (value := first(row)) is None else -value
    sign = draw.choice(list(CALCULATE))
    right, second = draw_arithmetic(draw, depth - 1)
    return f"({left}) {sign} ({right})", lambda row: calculate(sign, first(row), second(row))


def calculate(sign: str, left: Value, right: Value) -> Value:
    if left is None or right is None or (sign == "/" and right == 0):
        return None
    assert isinstance(left, int | float)
    assert isinstance(right, int | float)
    return CALCULATE[sign](left, right)


def draw_condition(draw: random.Random, depth: int = 3) -> Known:
    """Return a condition: a chain of comparisons, membership, or others joined by and, or, not."""
    kind = draw.randrange(5 if depth else 2)
    if kind == 0:
        return draw_chain(draw)
    if kind == 1:
        return draw_membership(draw)
    if kind == 2:
        text, value = draw_condition(draw, depth - 1)
        return f"not ({text})", lambda row: None if (v := value(row)) is None else not v
    word = "and" if kind == 3 else "or"
    parts = [draw_condition(draw, depth - 1) for _ in range(draw.randint(2, 3))]
    return f" {word} ".join(f"({text})" for text, _ in parts), lambda row: decide(
        word, [value(row) for _, value in parts]
    )


def decide(word: str, values: list[Value]) -> Value:
    """Join conditions: a false one decides `and`, a true one `or`, whatever is unknown besides it."""
    decisive = word == "or"
    if decisive in values:
        return decisive
    return None if None in values else not decisive


def draw_chain(draw: random.Random) -> Known:
    signs = [draw.choice(list(COMPARE)) for _ in range(draw.randint(1, 4))]
    parts = [draw_arithmetic(draw, 1) for _ in range(len(signs) + 1)]
    text = f"({parts[0][0]})" + "".join(f" {sign} ({part})" for sign, (part, _) in zip(signs, parts[1:], strict=True))

    def evaluate(row: Row) -> Value:
        values = [value(row) for _, value in parts]
        links = zip(signs, values, values[1:], strict=False)
        return decide("and", [None if None in (a, b) else COMPARE[sign](a, b) for sign, a, b in links])

    return text, evaluate


def draw_membership(draw: random.Random) -> Known:
    absent = draw.choice(("", "not "))
    if draw.random() < 0.5:
        numbers = [draw.randint(-2, 3) for _ in range(draw.randint(1, 3))]
        text, found = f"level {absent}in {draw.choice((str(numbers), f'({numbers[0]},)'))}", numbers
        found = numbers if text.endswith("]") else numbers[:1]
        return text, lambda row: None if row["level"] is None else (row["level"] in found) is not bool(absent)
    part = draw.choice(("four", "ty", ""))
    return (
        f"'{part}' {absent}in word",
        lambda row: None if (v := row["word"]) is None else (part in str(v)) is not bool(absent),
    )


def make_condition(draw: random.Random) -> Case:
    (text, evaluate), row = draw_condition(draw), draw_row(draw)
    expression = Expression(text)
    return Case((text, row), (expression(row), expression.matches(row)), (value := evaluate(row), value is True))


def make_arithmetic(draw: random.Random) -> Case:
    (text, evaluate), row = draw_arithmetic(draw, 3), draw_row(draw)
    return Case((text, row), Expression(text)(row), evaluate(row))


def make_columns(draw: random.Random) -> Case:
    k = draw.randint(1, 99)
    row = {f"pass@{k}": 1, f"pass^{k}": 2, f"maj@{k}": 3, f"best@{k}": 4, "mean": 5}
    names = {f"pass_{k}": 1, f"pass_hat_{k}": 2, f"maj_{k}": 3, f"best_{k}": 4, "mean": 5}
    return Case(row, rename_columns(row), names)


def make_curated(draw: random.Random) -> Case:
    """The rows that are kept, sorted by a value with unknown ones last, and no more than the limit."""
    rows = [{"id": number, **draw_row(draw)} for number in range(draw.randint(1, 12))]
    (keep, is_kept), descending = draw_condition(draw), draw.random() < 0.5
    limit = draw.choice((None, draw.randint(1, 5)))
    options = CurateOptions.parse(keep, "std", descending=descending, limit=limit)
    result = curate([json.dumps(row).encode() for row in rows], options)
    kept = [row for row in rows if is_kept(row) is True]
    known = [row for row in kept if row["std"] is not None]
    known.sort(key=lambda row: -row["std"] if descending else row["std"])
    expected = [row["id"] for row in [*known, *(row for row in kept if row["std"] is None)]][:limit]
    found = result.rows, result.matched, [json.loads(line)["id"] for line in result.lines]
    return Case((keep, descending, limit, rows), found, (len(rows), len(kept), expected))


def make_buckets(draw: random.Random) -> Case:
    """A bucket has its lower edge, the last one both; a row outside of all, or without a value, is in none."""
    edges = sorted(draw.sample((-1, 0, 0.25, 0.5, 1, 2), draw.randint(2, 4)))
    rows = [{"id": n, "mean": draw.choice((None, *edges, draw.uniform(-2, 3)))} for n in range(draw.randint(1, 12))]
    options = CurateOptions.parse(bucket=f"mean:{','.join(map(str, edges))}")
    result = curate([json.dumps(row).encode() for row in rows], options)
    last = len(edges) - 2
    counts = [0] * (last + 1)
    for value in (row["mean"] for row in rows):
        for n, (low, high) in enumerate(pairwise(edges)):
            if value is not None and (low <= value < high or (n == last and value == high)):
                counts[n] += 1
    found = [available for available, _ in result.buckets.values()], result.outside
    return Case((edges, rows), found, (counts, len(rows) - sum(counts)))


CASES: dict[str, MakeCase] = {
    "reward text": make_reward_text,
    "reward json": make_reward_json,
    "invalid reward": make_invalid_reward,
    "reward files": make_reward_files,
    "chosen reward": make_chosen_reward,
    "rewards of steps": make_steps,
    "score": make_score,
    "verified row": make_verified_row,
    "failed verdict": make_failed_verdict,
    "curate condition": make_condition,
    "curate arithmetic": make_arithmetic,
    "curate columns": make_columns,
    "curated rows": make_curated,
    "curate buckets": make_buckets,
}
