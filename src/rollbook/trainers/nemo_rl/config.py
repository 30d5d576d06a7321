"""How a code environment is set up: the dictionary that NeMo RL hands over, checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from difflib import get_close_matches

import msgspec

from rollbook.errors import UsageError
from rollbook.sandbox.sandbox import check_provider

MIB = 1 << 20
GIB = 1 << 30
TURNS_PER_CORE = 2
"""Twice the cores: some code sleeps; and the wall clock of code that does not, four times its CPU time, still holds."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting; a None in the dictionary means the default."""

    default_timeout_seconds: float = 5.0
    """CPU time of one message's code, when its sample does not say; the wall clock gets max(1, 4 x) that."""
    default_memory_limit_bytes: int = 256 * MIB
    """Memory of a session beyond the interpreter's own, when its sample does not say."""
    max_timeout_seconds: float = 300.0
    """The most that a sample may ask for."""
    max_memory_limit_bytes: int = 16 * GIB
    """The most that a sample may ask for."""
    max_files_bytes: int = 16 * MIB
    """What the files of a session may hold; in a working_dir, each of them."""
    max_output_chars: int = 8192
    """What is shown of each of stdout, stderr, the value and an error's message; the rest is cut, with a mark."""
    snapshots: bool = True
    """Whether code that dies is undone; without, the session is lost with it."""
    session_lease_seconds: float = 1800.0
    """How long a session is kept after its last turn: longer than a batch takes to generate."""
    max_sessions: int = 1024
    """How many sessions a worker keeps; for one more, the one that was idle longest has to go."""
    batch_timeout_seconds: float = 1800.0
    """When `step` returns at the latest, whatever is still under way."""
    turns_at_once: int | None = None
    """How many turns a worker runs at a time; twice the cores of its machine unless given."""
    packages: tuple[str, ...] = ()
    """What code may import beside the standard library; loaded beforehand."""
    provider: str = "built-in"
    """The sandbox: built-in, bubblewrap (no snapshots), or the address of one that is served elsewhere."""
    terminate_on_evaluation: bool = False
    """Whether an episode ends when the last block of a message ended well and its last expression has a value."""
    terminate_without_code: bool = True
    """Whether an episode ends with a message that has no code."""
    like_nemo_rl: bool = False
    """Whether code is refused, and errors are shown, in the words of NeMo RL's own environment; see alike.py."""
    num_workers: int = 1
    """How many workers share the sessions: Ray actors where Ray runs, sandboxes in this process otherwise."""
    worker_group: str = ""
    """With Ray: environments that name the same group share its workers, and so their samples' sessions."""

    @property
    def threads(self) -> int:
        """`turns_at_once`, on this machine."""
        return self.turns_at_once or TURNS_PER_CORE * (os.cpu_count() or 2)

    def __post_init__(self) -> None:
        check_provider(self.provider)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) in (int, float) and not (math.isfinite(value) and value > 0):
                raise UsageError(f"code environment: {name}={value}: give a positive, finite number")
        for what in ("timeout_seconds", "memory_limit_bytes"):
            default, most = getattr(self, f"default_{what}"), getattr(self, f"max_{what}")
            if default > most:
                raise UsageError(f"code environment: default_{what}={default} is above max_{what}={most}")


def config_of(given: Mapping[str, object] | None) -> Config:
    """The settings that a dictionary asks for; UsageError says which one is wrong."""
    asked = {name: value for name, value in dict(given or {}).items() if value is not None}
    for name in asked:
        if name not in Config.__struct_fields__:
            near = get_close_matches(str(name), Config.__struct_fields__, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(Config.__struct_fields__)}"
            raise UsageError(f"code environment: no setting is called {name}; {hint}")
    try:
        return msgspec.convert(asked, Config)
    except msgspec.ValidationError as error:
        raise UsageError(f"code environment: {error}") from None
