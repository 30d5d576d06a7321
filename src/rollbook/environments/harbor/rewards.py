"""The rewards that tests left: reward.json or reward.txt, and which of several counts."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path

from rollbook.errors import RolloutFailed

MAX_BYTES = 1 << 20
REWARD_FILES = ("reward.json", "reward.txt")
REWARD = "reward"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""Python would also read 1_0, digits of other scripts and `infinity`."""


def read_rewards(folder: Path) -> dict[str, float]:
    """Return the rewards by name that tests wrote into a folder; RolloutFailed says why there are none.

    If both files exist they must agree on `reward`: code under test that writes one of them cannot overrule the other.
    """
    texts = {name: _read_file(folder / name) for name in REWARD_FILES}
    rewards = [parse_json(texts["reward.json"])] if texts["reward.json"] is not None else []
    rewards += [parse_text(texts["reward.txt"])] if texts["reward.txt"] is not None else []
    if not rewards:
        raise RolloutFailed("verifier_error", "tests", "the tests wrote neither reward.json nor reward.txt")
    if len(rewards) == 2 and rewards[0].get(REWARD) != rewards[1][REWARD]:
        why = "reward.json and reward.txt contradict each other: if both exist, both must have the same reward"
        raise RolloutFailed("invalid_reward", "tests", why)
    return rewards[0]


def _read_file(path: Path) -> str | None:
    """Return the text of a small regular file; None if there is none. Anything else is an invalid reward."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
                raise RolloutFailed(
                    "invalid_reward", "tests", f"{path.name} is not a file of at most {MAX_BYTES} bytes"
                )
            return file.read(MAX_BYTES).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise RolloutFailed("invalid_reward", "tests", f"{path.name} cannot be read: {error}") from None


def parse_text(text: str | None) -> dict[str, float]:
    """Return the reward of reward.txt: one finite number."""
    number = (text or "").strip()
    if not _NUMBER.fullmatch(number):
        raise RolloutFailed("invalid_reward", "tests", f"reward.txt holds no number: {text!r:.100}")
    return {REWARD: _check_finite(REWARD, float(number))}


def parse_json(text: str | None) -> dict[str, float]:
    """Return the rewards of reward.json: an object of finite numbers, or one number."""
    try:
        value = json.loads(text or "", object_pairs_hook=_take_unique)
    except (ValueError, RecursionError):
        raise RolloutFailed("invalid_reward", "tests", f"reward.json is not JSON: {text!r:.100}") from None
    rewards = value if isinstance(value, dict) else {REWARD: value}
    if not rewards:
        raise RolloutFailed("invalid_reward", "tests", "reward.json names no reward")
    for name in rewards:
        if not is_encodable(name):
            raise RolloutFailed("invalid_reward", "tests", f"reward.json has a name that is not Unicode: {name!a:.100}")
    return {name: _check_finite(name, number) for name, number in rewards.items()}


def is_encodable(text: str) -> bool:
    """Whether a text can be written: JSON may have half of a character (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _take_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON; one with a name twice is refused, because either value could be the right one."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise RolloutFailed("invalid_reward", "tests", f"reward.json names {name!r:.100} twice")
        found[name] = value
    return found


def _check_finite(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RolloutFailed("invalid_reward", "tests", f"{name} is {value!r:.100}, no number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RolloutFailed("invalid_reward", "tests", f"{name} is {value!r:.100}, not finite")
    return number


def choose_reward(rewards: dict[str, float], named: str = "") -> tuple[float, dict[str, float]]:
    """Return the reward that counts, and the others as parts: the named one, `reward`, or the only one.

    >>> choose_reward({"speed": 0.5, "reward": 1.0})
    (1.0, {'speed': 0.5})
    >>> choose_reward({"speed": 0.5}, "")
    (0.5, {})
    """
    name = named or (REWARD if REWARD in rewards or len(rewards) > 1 else next(iter(rewards)))
    if name not in rewards:
        known = ", ".join(sorted(rewards))
        way = "say which counts with ?reward=NAME, or with reward in [metadata] of task.toml"
        why = f"the tests gave {known} and no {name}: {way}"
        raise RolloutFailed("invalid_reward", "tests", why)
    return rewards[name], {other: value for other, value in rewards.items() if other != name}


def combine_rewards(steps: list[dict[str, float]], *, final: bool) -> dict[str, float]:
    """Return the rewards of a task of several steps: the last step's, or the means over those that were reached.

    >>> combine_rewards([{"reward": 1.0}, {"reward": 0.0, "style": 1.0}], final=False)
    {'reward': 0.5, 'style': 0.5}
    """
    if final or len(steps) == 1:
        return steps[-1]
    names = dict.fromkeys(name for rewards in steps for name in rewards)
    return {name: sum(rewards.get(name, 0.0) for rewards in steps) / len(steps) for name in names}


def misses_reward(rewards: dict[str, float], least: dict[str, float]) -> bool:
    """Whether a step got less than it must have for the next one to begin."""
    return any(rewards.get(name, -math.inf) < value for name, value in least.items())
