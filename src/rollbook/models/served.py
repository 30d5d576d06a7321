"""What an endpoint serves: the names it lists, and whether it is a vLLM that can report exact tokens."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import msgspec
from yarl import URL

from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.protocol import read_models
from rollbook.models.refusal import WHERE, server_words
from rollbook.models.replica import Replica


class Served(msgspec.Struct, frozen=True):
    """The names served and which of them by vLLM; `names` is None where the endpoint does not list any."""

    base: str
    names: list[str] | None
    vllm: frozenset[str] = frozenset()


async def ask_served(replica: Replica, within_s: float, key_env: str, has_key: bool) -> Served:
    """What a replica serves; RolloutFailed("model_unavailable") if it is away, UsageError if it never will do."""
    status, raw = await replica.get(replica.models, within_s)
    if status in (401, 403):
        raise UsageError(f"{replica.base}: HTTP {status}; {_key_advice(key_env, has_key)}")
    if status >= 500 or status in (408, 429):
        raise RolloutFailed("model_unavailable", WHERE, f"{replica.base}: HTTP {status}: {server_words(raw)}")
    if status in (301, 302, 307, 308):
        raise UsageError(f"{replica.base}: HTTP {status}, the endpoint is elsewhere; give its new URL with -m")
    if status != 200:
        await _look_for_v1(replica, within_s)
        return Served(replica.base, None)
    try:
        rows = read_models(raw).data
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Served(replica.base, None)
    return Served(replica.base, [row.id for row in rows], frozenset(r.id for r in rows if r.owned_by == "vllm"))


def settle_name(name: str, served: Sequence[Served]) -> str:
    """The name to ask for: the one given, which all must serve, or the only one there is."""
    listed = [s for s in served if s.names is not None]
    if name:
        for one in listed:
            check_name(name, one)
        return name
    names = sorted({n for s in listed for n in s.names or ()})
    if len(names) == 1 and all(s.names == names for s in served):
        return names[0]
    found = f"serves {', '.join(names)}" if names else "does not say what it serves"
    raise UsageError(f"{served[0].base} {found}; say which model with --model-name")


def check_name(name: str, served: Served) -> None:
    """UsageError if the endpoint lists its models and this is not one of them."""
    if served.names is None or name in served.names:
        return
    close = get_close_matches(name, served.names, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"{served.base} does not serve {name!r}, only {', '.join(served.names) or 'nothing'}{hint}")


async def _look_for_v1(replica: Replica, within_s: float) -> None:
    if replica.base.endswith("/v1"):
        return
    try:
        status, raw = await replica.get(URL(f"{replica.base}/v1/models"), within_s)
        read_models(raw)
    except (RolloutFailed, msgspec.DecodeError, UnicodeDecodeError):
        return
    if status == 200:
        raise UsageError(f"{replica.base} is not the endpoint; did you mean {replica.base}/v1?")


def _key_advice(key_env: str, has_key: bool) -> str:
    if has_key:
        return f"the key in {key_env} was not accepted (--api-key-env names another variable)"
    return f"set {key_env} to the key, or name another variable with --api-key-env"
