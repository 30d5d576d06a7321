"""What is asked for when a run is started."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from rollbook.core.manifest import LEAST, Limits, Sampling, Settings, ToolFormat
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

MOST = 10**9


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
            if value is not None and not (isinstance(value, int) and least <= value <= MOST):
                raise UsageError(f"--{name} {value}: give a whole number from {least} to {MOST}")
        self._check_limits()
        if self.sample is not None and not self.tasks:
            raise UsageError("--sample goes with --task: which task's sample is meant?")
        if self.settings.workers < 1:
            raise UsageError(f"--workers {self.settings.workers}: give a number from 1 on")

    def _check_limits(self) -> None:
        limits = self.limits
        for name in ("max_turns", "max_tokens_total", "tool_chars", "stop_repeats"):
            value, least = getattr(limits, name), LEAST[name]
            if value is not None and not (isinstance(value, int) and least <= value <= MOST):
                raise UsageError(f"--{name.replace('_', '-')} {value}: give a whole number from {least:g} to {MOST}")
        known = ("auto", *get_args(ToolFormat))
        if self.tool_format not in known:
            raise UsageError(f"--tool-format {self.tool_format}: known are {', '.join(known)}")
