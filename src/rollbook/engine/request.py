"""What is asked for when a run is started: the request, and the settings of a round with changes applied.

Imports little: the command line makes a request before it loads the engine.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from rollbook.core import (
    JSON,
    PRICE_EXAMPLE,
    Limits,
    RunOptions,
    Sampling,
    Settings,
    ToolFormat,
    list_parameters,
    parse_price,
)
from rollbook.environments import Environment
from rollbook.errors import UsageError
from rollbook.models import check_headers, list_secrets

MAX_COUNT = 10**9


class Request(RunOptions, frozen=True, kw_only=True):
    """A run before it has a directory: its meaning, and the settings of its first round.

    `env` may be a blend (a .yaml file); then samples, sampling, limits and tool_format are for those of its
    environments that do not say otherwise, and `limit` is for each of them.
    """

    env: str | Environment | type[Environment]

    def __post_init__(self) -> None:
        check_counts(self, RunOptions)
        check_counts(self.limits, Limits)
        check_omitted(self.sampling, self.limits)
        check_headers(self.settings.headers)
        check_stored_secrets(self.sampling, self.settings)
        known = ("auto", *get_args(ToolFormat))
        if self.tool_format not in known:
            raise UsageError(f"--tool-format {self.tool_format}: known are {', '.join(known)}")
        if self.sample is not None and not self.tasks:
            raise UsageError("--sample goes with --task: which task's sample is meant?")
        if self.settings.workers < 1:
            raise UsageError(f"--workers {self.settings.workers}: give a number from 1 on")
        check_cost_settings(self.settings)


def check_omitted(sampling: Sampling, limits: Limits) -> None:
    """Refuse to omit a parameter that was also given a value, or that a limit needs."""
    for name, field in list_parameters(Sampling).items():
        value = getattr(sampling, name)
        if sampling.omits(name) and value != field.default:
            raise UsageError(f"{field.flag} {value}: --sampling {name}=null omits it; give one of them")
    if sampling.omits("max_tokens") and limits.max_tokens_total is not None:
        raise UsageError(f"--max-tokens-total {limits.max_tokens_total}: cannot be kept if max_tokens is omitted")


_SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:key|token|auth)$|api[_-]?key|(?:access|auth|bearer|session|id)[_-]?token$|secret|passw(?:or)?d|^pwd$"
    r"|authorization|credential",
    re.IGNORECASE,
)
_PLAIN_NAMES = frozenset({"prompt_cache_key", "bos_token", "eos_token", "pad_token", "unk_token", "stop_token"})
"""Parameters of servers that only look like names of secrets."""
MIN_SECRET_LENGTH = 8
"""Shorter values of key variables are placeholders such as EMPTY."""


def check_stored_secrets(sampling: Sampling, settings: Settings) -> None:
    """Refuse a secret among the parameters of the model or the judge."""
    check_sampling_secrets(sampling.extra, settings)
    check_sampling_secrets(settings.judge_sampling, settings, "--judge-sampling")


def check_sampling_secrets(values: Mapping[str, JSON], settings: Settings, option: str = "--sampling") -> None:
    """Refuse a secret among parameters, which are stored with the run; the message does not repeat it."""
    known = [os.environ.get(name, "").strip() for name in list_secrets(settings)]
    secrets = [secret for secret in known if len(secret) >= MIN_SECRET_LENGTH]
    way = "name the variable of the key with --judge-key-env NAME" if "judge" in option else "use --header NAME=ENV_VAR"
    for name, text in _list_texts(values):
        if any(secret in text or secret in name for secret in secrets):
            raise UsageError(f"{option}: a value is that of a key variable, and would be stored with the run; {way}")
        if text and name not in _PLAIN_NAMES and _SECRET_NAME.search(name):
            raise UsageError(f"{option} {name}=...: looks like a secret, and would be stored with the run; {way}")


def _list_texts(value: JSON, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text and number inside of parameters with its name; names of other values with an empty text."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _list_texts(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _list_texts(each, name)
    else:
        yield name, "" if value is None or isinstance(value, bool) else str(value)


def check_counts(options: msgspec.Struct, struct: type[msgspec.Struct]) -> None:
    """Refuse whole numbers out of range; `struct` is the struct that declares the ranges."""
    for name, field in list_parameters(struct).items():
        least, value = field.details.minimum, getattr(options, name)
        if least is None or value is None or field.kinds != (int,) or not field.details.on_command_line:
            continue
        if not (isinstance(value, int) and least <= value <= MAX_COUNT):
            raise UsageError(f"{field.flag} {value}: give a whole number from {least} to {MAX_COUNT}")


def check_cost_settings(settings: Settings) -> None:
    """Refuse a price that cannot be read, and a limit on costs without a price."""
    if settings.price is not None:
        parse_price(settings.price)
    elif settings.max_cost is not None:
        raise UsageError(f"--max-cost {settings.max_cost:g}: say what tokens cost with {PRICE_EXAMPLE}")


def as_list(urls: str | Sequence[str]) -> list[str]:
    """Return one or several URLs as a list."""
    return [urls] if isinstance(urls, str) else list(urls)


def update_settings(base: Settings, changes: dict[str, JSON]) -> Settings:
    """Settings with changes; an unknown one is refused with the known ones."""
    unknown = set(changes) - set(Settings.__struct_fields__)
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise UsageError(f"no setting is called {sorted(unknown)[0]}; there are {known}")
    try:
        updated = msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(base, **changes)), Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None
    check_headers(updated.headers)
    check_sampling_secrets(updated.judge_sampling, updated, "--judge-sampling")
    check_cost_settings(updated)
    return updated


def choose_run_folder(env: str) -> Path:
    """Return a run directory that does not exist yet: runs/ENVIRONMENT-TIME."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", env.partition("?")[0]).strip("-.") or "run"
    stem = Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 100))]
    return next((folder for folder in candidates if not folder.exists()), stem)


def make_sampling(given: Sampling | Mapping[str, JSON], **values: JSON) -> Sampling:
    """Return the sampling of a Python call: a Sampling or its parameters by name, and those that were given apart.

    >>> make_sampling({"top_k": 20, "seed": None}, temperature=0.5, top_p=None)
    Sampling(temperature=0.5, top_p=1.0, max_tokens=1024, extra={'top_k': 20, 'seed': None})
    """
    sampling = given if isinstance(given, Sampling) else Sampling().override(given)
    return sampling.override({name: value for name, value in values.items() if value is not None})
