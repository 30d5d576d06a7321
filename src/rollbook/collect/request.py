"""What is asked for when a run is started."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from rollbook.core.manifest import Limits, Sampling, Settings, ToolFormat
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

MOST = 10**9


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A run before it has a directory: its meaning, and the settings of its first round."""

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
        for name, value, least in (
            ("max-turns", limits.max_turns, 1),
            ("max-tokens-total", limits.max_tokens_total, 1),
            ("tool-chars", limits.tool_chars, 1),
            ("stop-repeats", limits.stop_repeats, 2),
        ):
            if value is not None and not (isinstance(value, int) and least <= value <= MOST):
                raise UsageError(f"--{name} {value}: give a whole number from {least} to {MOST}")
        known = ("auto", *get_args(ToolFormat))
        if self.tool_format not in known:
            raise UsageError(f"--tool-format {self.tool_format}: known are {', '.join(known)}")
