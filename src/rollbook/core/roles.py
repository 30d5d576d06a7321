"""Roles: models of a run besides the policy, each by a name such as judge, user or opponent, and their calls.

What a role means (its model and sampling) is in run.json, where its model is reached is in the rounds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from rollbook.core.json import JSON, JSON_ERRORS, decode
from rollbook.core.prices import format_cost, parse_price
from rollbook.errors import UsageError

JUDGE = "judge"
"""The role that `--judge` is short for."""

ROLE_EXAMPLE = "--role user=http://host:8000/v1"
_ROLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_GIVEN_FIELDS = ("model", "name", "sampling", "key_env", "headers", "price")
_MAPPING_FIELDS = ("sampling", "headers")


class RoleSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the model of a role is, the variable with its key, and the price of its tokens.

    `name` and `sampling` are given when a run is planned. They are what the role means, so they are stored in run.json.
    """

    urls: list[str] = []
    name: str = ""
    sampling: dict[str, JSON] = {}
    key_env: str = ""
    headers: dict[str, str] = {}
    wire_names: dict[str, str] = {}
    price: str = ""


class RoleCall(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One call of the model of a role. `number` counts the calls of the role in the rollout, from 0.

    `text` is its answer without thoughts. `cost` is by the price that the role had then. `in_verification`: the call
    was made to score the rollout, so that another verification makes it again.
    """

    role: str
    number: int
    seed: int
    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    finish_reason: str = "stop"
    in_verification: bool = False
    cost: float | None = None

    @property
    def truncated(self) -> bool:
        """Whether the answer was cut by its token limit."""
        return self.finish_reason == "length"

    @property
    def is_counted(self) -> bool:
        """Whether the server reported how many tokens it has."""
        return bool(self.prompt_tokens or self.completion_tokens)


class RoleUse(msgspec.Struct, frozen=True):
    """The calls of a role in all attempts of a run, and their tokens; `cost` is None without a price."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None

    def add(self, other: RoleUse | RoleCall) -> RoleUse:
        """Return the sum of two uses, or of a use and one more call."""
        costs = [each.cost for each in (self, other) if each.cost is not None]
        return RoleUse(
            self.calls + (other.calls if isinstance(other, RoleUse) else 1),
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            sum(costs) if costs else None,
        )

    def describe(self, role: str) -> str:
        """Return the use in words.

        >>> RoleUse(3, 30, 12).describe("user")
        'role user: 3 calls, 30 prompt tokens, 12 completion tokens'
        """
        calls = "1 call" if self.calls == 1 else f"{self.calls} calls"
        tokens = f"{self.prompt_tokens} prompt tokens, {self.completion_tokens} completion tokens"
        return f"role {role}: {calls}, {tokens}{'' if self.cost is None else f', cost {format_cost(self.cost)}'}"


def default_key_variable(role: str) -> str:
    """Return the variable that holds the key of a role's endpoint unless another one is named.

    >>> default_key_variable("user")
    'USER_API_KEY'
    """
    return f"{role.upper()}_API_KEY"


def parse_roles(options: Sequence[str]) -> dict[str, RoleSettings]:
    """Parse `--role`: NAME=MODEL, or NAME.KEY=VALUE for its other settings.

    >>> parse_roles(["user=http://host/v1", "user.name=small", "user.sampling.top_k=20"])["user"]
    RoleSettings(urls=['http://host/v1'], name='small', sampling={'top_k': 20}, key_env='', headers={}, \
wire_names={}, price='')
    """
    found: dict[str, dict[str, JSON]] = {}
    for text in options:
        path, equals, value = text.partition("=")
        role, _, key = path.partition(".")
        if not equals or not role or not value:
            raise UsageError(f"--role {text}: write NAME=MODEL, as in {ROLE_EXAMPLE}")
        _add_option(found.setdefault(role, {}), text, key or "model", value)
    return read_roles(found, "--role ")


def _add_option(given: dict[str, JSON], text: str, key: str, value: str) -> None:
    field, dot, name = key.partition(".")
    if field == "model" and not dot:
        given[field] = [*given.get(field, []), value]
    elif field in _MAPPING_FIELDS and name:
        given.setdefault(field, {})[name] = _read_value(value) if field == "sampling" else value
    elif field not in _GIVEN_FIELDS or dot or field in _MAPPING_FIELDS:
        known = "name, key_env, price, sampling.KEY and headers.NAME"
        raise UsageError(f"--role {text.partition('=')[0]}: a role has {known}, as in --role user.name=NAME")
    elif field in given:
        raise UsageError(f"--role {text}: {field} is given twice; give one of them")
    else:
        given[field] = value


def _read_value(text: str) -> JSON:
    try:
        return decode(text)
    except JSON_ERRORS:
        return text


def read_roles(given: object, where: str = "roles: ") -> dict[str, RoleSettings]:
    """Return roles as they are given in Python or YAML: by name, a model, several replicas of it, or a mapping.

    >>> read_roles({"user": {"model": "openai/gpt-5-mini", "sampling": {"temperature": 0.7}}})["user"].urls
    ['openai/gpt-5-mini']
    """
    if not isinstance(given, Mapping):
        raise UsageError(f"{where}{given!r}: give models by role, as in roles={{'user': 'http://host:8000/v1'}}")
    return {role: _read_role(role, value, where) for role, value in given.items()}


def _read_role(role: object, value: object, where: str) -> RoleSettings:
    if not isinstance(role, str) or not _ROLE_NAME.fullmatch(role):
        raise UsageError(f"{where}{role}: a role is named with small letters, digits and _, as in {ROLE_EXAMPLE}")
    if isinstance(value, RoleSettings):
        return value
    fields = dict(value) if isinstance(value, Mapping) else {"model": value}
    for name in fields:
        if name not in _GIVEN_FIELDS:
            raise UsageError(f"{where}{role}: {name} is unknown; a role has {', '.join(_GIVEN_FIELDS)}")
    model = fields.pop("model", [])
    urls = [model] if isinstance(model, str) else model
    if not isinstance(urls, list) or not all(isinstance(url, str) and url for url in urls):
        raise UsageError(f"{where}{role}: {model!r} is not a model; write a URL, or a list of URLs of its replicas")
    try:
        made = msgspec.convert({**fields, "urls": urls}, RoleSettings)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}{role}: {error}") from None
    if made.price:
        _check_price(made.price, f"{where}{role}.price")
    return made


def _check_price(price: str, where: str) -> None:
    try:
        parse_price(price)
    except UsageError:
        way = "write the prices of a million tokens: in=2.5,out=10"
        raise UsageError(f"{where}={price}: {way}") from None
