"""Environment code that breaks: which kind of failure it is, and in which words it is told."""

from __future__ import annotations

from pathlib import Path

from rollbook.core.failure import KINDS
from rollbook.errors import InvalidReward, RollbookError, RolloutFailed


def kind_of(error: BaseException, otherwise: str) -> str:
    """The failure that an exception of environment code is; it may name its own by raising RolloutFailed."""
    if isinstance(error, RolloutFailed) and error.kind in KINDS:
        return error.kind
    if isinstance(error, InvalidReward):
        return "invalid_reward"
    if isinstance(error, RollbookError):
        from rollbook.sandbox import SandboxError

        return "sandbox_error" if isinstance(error, SandboxError) else otherwise
    return otherwise


def describe(error: BaseException) -> str:
    """An exception and the line of the environment it came from, in one line; ours are clear as they are."""
    if isinstance(error, RolloutFailed):
        return error.message
    if isinstance(error, InvalidReward):
        return str(error)
    frames, trace = [], error.__traceback__
    while trace:
        frames.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    where = f" ({frames[-1]})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
