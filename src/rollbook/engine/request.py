"""What is asked for when a run is started: the request, and the settings of a round with changes applied.

Imports little: the command line makes a request before it loads the engine.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from rollbook.core import JSON, MINIMUM_LIMITS, Limits, Sampling, Settings, ToolFormat
from rollbook.environments import Environment
from rollbook.errors import UsageError

MAX_COUNT = 10**9


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A run before it has a directory: its meaning, and the settings of its first round.

    `env` may be a blend (a .yaml file); then samples, sampling, limits and tool_format are for those of its
    environments that do not say otherwise, and `limit` is for each of them.
    """

    env: str | Environment
    model: list[str] = []
    model_name: str = ""
    samples: int = 1
    limit: int | None = None
    out: str
    seed: int = 0
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    settings: Settings = Settings()
    data: str | None = None
    template: str | None = None
    judge: list[str] = []
    judge_name: str = ""
    tasks: list[str] | None = None
    sample: int | None = None
    tool_format: Literal["auto"] | ToolFormat = "auto"
    agent: str = ""
    continue_tokens: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("samples", self.samples, 1), ("limit", self.limit, 1), ("sample", self.sample, 0)):
            if value is not None and not (isinstance(value, int) and least <= value <= MAX_COUNT):
                raise UsageError(f"--{name} {value}: give a whole number from {least} to {MAX_COUNT}")
        self._check_limits()
        if self.sample is not None and not self.tasks:
            raise UsageError("--sample goes with --task: which task's sample is meant?")
        if self.settings.workers < 1:
            raise UsageError(f"--workers {self.settings.workers}: give a number from 1 on")

    def _check_limits(self) -> None:
        limits = self.limits
        for name in ("max_turns", "max_tokens_total", "tool_chars", "stop_repeats"):
            value, least = getattr(limits, name), MINIMUM_LIMITS[name]
            if value is not None and not (isinstance(value, int) and least <= value <= MAX_COUNT):
                raise UsageError(
                    f"--{name.replace('_', '-')} {value}: give a whole number from {least:g} to {MAX_COUNT}"
                )
        known = ("auto", *get_args(ToolFormat))
        if self.tool_format not in known:
            raise UsageError(f"--tool-format {self.tool_format}: known are {', '.join(known)}")


def update_settings(base: Settings, changes: dict[str, JSON]) -> Settings:
    """Settings with changes; an unknown one is refused with the known ones."""
    unknown = set(changes) - set(Settings.__struct_fields__)
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise UsageError(f"no setting is called {sorted(unknown)[0]}; there are {known}")
    try:
        return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(base, **changes)), Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None
