"""What is requested when a run is started: the request, and the settings of a round with changes applied.

Imports little: the command line makes a request before it loads the engine.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import get_args

import msgspec

from rollbook.core import (
    JSON,
    MIN_SECRET_LENGTH,
    PRICE_EXAMPLE,
    SAMPLING_FIELDS,
    Limits,
    RunOptions,
    Sampling,
    Settings,
    ToolFormat,
    check_extra_sampling,
    list_parameters,
    looks_secret,
    parse_price,
    read_roles,
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
        check_numbers(self, RunOptions)
        check_struct("limits", self.limits, Limits)
        check_struct("sampling", self.sampling, Sampling)
        check_extra_sampling(self.sampling.extra)
        check_omitted(self.sampling, self.limits)
        check_headers(self.settings.headers)
        check_stored_secrets(self.sampling, self.settings)
        known = ("auto", *get_args(ToolFormat))
        if self.tool_format not in known:
            raise UsageError(f"--tool-format {self.tool_format}: known are {', '.join(known)}")
        if self.sample is not None and not self.tasks:
            raise UsageError("--sample: name its task with --task")
        if self.settings.workers < 1:
            raise UsageError(f"--workers {self.settings.workers}: give a number from 1 on")
        check_cost_settings(self.settings)
        check_order(self.settings)


def check_omitted(sampling: Sampling, limits: Limits) -> None:
    """Refuse to omit a parameter that was also given a value, or that a limit needs."""
    for name, field in list_parameters(Sampling).items():
        value = getattr(sampling, name)
        if sampling.omits(name) and value != field.default:
            raise UsageError(f"{field.flag} {value}: --sampling {name}=null omits it; give one of them")
    if sampling.omits("max_tokens") and limits.max_tokens_total is not None:
        raise UsageError(f"--max-tokens-total {limits.max_tokens_total}: cannot be enforced if max_tokens is omitted")


def check_stored_secrets(sampling: Sampling, settings: Settings) -> None:
    """Refuse a secret among the parameters of the model or the judge."""
    check_sampling_secrets(sampling.extra, settings)
    check_sampling_secrets(settings.judge_sampling, settings, "--judge-sampling")
    check_roles_given(settings)


def check_roles_given(settings: Settings) -> None:
    """Refuse a secret among the parameters of roles, and headers of roles that name no variable."""
    for role, given in settings.roles.items():
        check_sampling_secrets(given.sampling, settings, f"--role {role}.sampling")
        check_headers(given.headers)


def check_sampling_secrets(values: Mapping[str, JSON], settings: Settings, option: str = "--sampling") -> None:
    """Refuse a secret among parameters, which are stored with the run; the message does not repeat it."""
    known = [os.environ.get(name, "").strip() for name in list_secrets(settings)]
    secrets = [secret for secret in known if len(secret) >= MIN_SECRET_LENGTH]
    way = "name the variable of the key with --judge-key-env NAME" if "judge" in option else "use --header NAME=ENV_VAR"
    way = way.replace("--header NAME", f"{option.removesuffix('.sampling')}.headers.NAME") if "role" in option else way
    for name, text in _list_texts(values):
        if any(secret in text or secret in name for secret in secrets):
            raise UsageError(
                f"{option}: a value equals that of a key variable, and would be stored with the run; {way}"
            )
        if text and looks_secret(name):
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


def check_struct(name: str, value: object, struct: type[msgspec.Struct]) -> None:
    """Refuse a value that is not this struct, or whose fields have wrong types or are out of range."""
    if not isinstance(value, struct):
        raise UsageError(f"{name}={value!r}: give a rollbook.core.{struct.__name__}")
    check_numbers(value, struct)
    try:
        msgspec.convert(msgspec.to_builtins(value), struct)
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(f"{name}: {error}") from None


def check_numbers(options: msgspec.Struct, struct: type[msgspec.Struct]) -> None:
    """Refuse numbers out of range; `struct` is the struct that declares the ranges."""
    for name, field in list_parameters(struct).items():
        value, shown = getattr(options, name), field.flag if field.details.on_command_line else name
        if field.details.minimum is None or (value is None and field.default is None):
            continue
        if field.kinds == (int,):
            least, most = round(field.details.minimum), MAX_COUNT
            if type(value) is not int or not least <= value <= most:
                raise UsageError(f"{shown} {value}: give a whole number from {least} to {most}")
        elif field.kinds == (float,):
            _check_range(shown, value, field.details.minimum, field.details.maximum)


def _check_range(shown: str, value: object, least: float, most: float | None) -> None:
    """Refuse what is not a finite number of this range."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and least <= number <= (math.inf if most is None else most)):
        end = f"to {most:g}" if most is not None else "on"
        raise UsageError(f"{shown} {value}: give a number from {least:g} {end}")


def check_cost_settings(settings: Settings) -> None:
    """Refuse a price that cannot be read, and a limit on costs without a price."""
    if settings.price is not None:
        parse_price(settings.price)
    elif settings.max_cost is not None and not any(given.price for given in settings.roles.values()):
        raise UsageError(f"--max-cost {settings.max_cost:g}: give the price of tokens with {PRICE_EXAMPLE}")


def check_order(settings: Settings) -> None:
    """Refuse an order by a run that does not exist, before anything is written."""
    if settings.order:
        from rollbook.book import open_profile

        open_profile(settings.order)


def as_list(texts: str | Sequence[str], name: str = "model") -> list[str]:
    """Return one or several texts as a list; anything else is refused under the name of its parameter."""
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise UsageError(f"{name}={texts!r}: give a string or a list of strings")
    return list(texts)


def as_text(path: str | PathLike[str] | None, name: str) -> str | None:
    """Return a path as text; anything else is refused under the name of its parameter."""
    if path is None or isinstance(path, str):
        return path
    if not isinstance(path, PathLike):
        raise UsageError(f"{name}={path!r}: give a path")
    return os.fspath(path)


def update_settings(base: Settings, changes: dict[str, JSON]) -> Settings:
    """Settings with changes; an unknown one is refused with the known ones."""
    unknown = set(changes) - set(Settings.__struct_fields__)
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise UsageError(f"no setting is called {sorted(unknown)[0]}; there are {known}")
    if "roles" in changes:
        changes = {**changes, "roles": read_roles(changes["roles"])}
    try:
        updated = msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(base, **changes)), Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None
    if "judge_sampling" in changes:
        check_extra_sampling(updated.judge_sampling, "--judge-sampling")
    check_headers(updated.headers)
    check_sampling_secrets(updated.judge_sampling, updated, "--judge-sampling")
    check_roles_given(updated)
    check_cost_settings(updated)
    check_order(updated)
    return updated


_claimed: dict[Path, tuple[int, Path | None]] = {}
"""Folders that were claimed for runs: by which process, and the folder above if it was made for them."""


def claim_run_folder(env: str | Environment | type[Environment]) -> Path:
    """Make a new folder for a run, runs/ENVIRONMENT-TIME, so that no other start takes it; return its path.

    It is removed by `release_run_folder`, at the latest when the process ends, if nothing was written to it.
    """
    if not isinstance(env, str):
        env = env.__name__ if isinstance(env, type) else type(env).__name__
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", env.partition("?")[0]).strip("-.") or "run"
    stem = Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}"
    for folder in (stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 1000))):
        try:
            above = None if folder.parent.exists() else folder.parent.absolute()
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # whoever writes the run explains it
            return folder
        _claimed[folder.absolute()] = os.getpid(), above
        return folder
    return stem


def release_run_folder(folder: Path) -> None:
    """Remove a claimed folder if nothing was written to it, and `runs` if it was made for it alone."""
    pid, above = _claimed.pop(folder.absolute(), (0, None))
    if pid == os.getpid():  # not in a child process, which has a copy of the table
        with suppress(OSError):  # a run is in it
            folder.absolute().rmdir()
            if above is not None:
                above.rmdir()


@atexit.register
def _release_all() -> None:
    for folder in list(_claimed):
        release_run_folder(folder)


def make_sampling(given: Sampling | Mapping[str, JSON], **values: JSON) -> Sampling:
    """Return the sampling of a Python call: a Sampling or its parameters by name, and those that were given apart.

    None omits a parameter of the mapping; one that is given twice is refused.

    >>> make_sampling({"top_k": 20, "seed": None}, temperature=0.5, top_p=None)
    Sampling(temperature=0.5, top_p=1.0, max_tokens=1024, extra={'top_k': 20, 'seed': None})
    """
    apart = {name: value for name, value in values.items() if value is not None}
    for name in _list_given(given):
        if name in apart:
            raise UsageError(f"{name}={apart[name]}: sampling has another {name}; give one of them")
    if isinstance(given, Sampling):
        return msgspec.structs.replace(given, **apart)
    own = {name: given[name] for name in SAMPLING_FIELDS if given.get(name) is not None}
    extra = {name: value for name, value in given.items() if name not in own}
    return Sampling(**own, **apart, extra=extra)


def _list_given(sampling: Sampling | Mapping[str, JSON]) -> list[str]:
    """Return the names of the parameters that `sampling` sets or omits."""
    if isinstance(sampling, Sampling):
        fields = list_parameters(Sampling)
        return [*sampling.extra, *(name for name in SAMPLING_FIELDS if getattr(sampling, name) != fields[name].default)]
    if not isinstance(sampling, Mapping):
        raise UsageError(f"sampling={sampling!r}: give a dictionary, as in sampling={{'top_k': 20}}, or a Sampling")
    return list(sampling)
