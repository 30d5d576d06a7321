"""Finding agents by asking a head server of NeMo Gym: where each of them listens.

The head server hands out keys as well, in clear: nothing of what it says is kept but names and addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.errors import UsageError
from rollbook.wire.gym.driving.composition import AGENTS, Block, blocks, resolved

CONFIG, INSTANCES = "/global_config_dict_yaml", "/server_instances"
WITHIN_S = 10.0
MOST_BYTES = 64 << 20
_EVERYWHERE = ("0.0.0.0", "::", "")


def agents_at(head: str) -> dict[str, str]:
    """The agents that a head server knows, by name: their addresses. UsageError says why there are none."""
    config = read_config(_get(head, CONFIG), f"{head}{CONFIG}")
    check_instances(decode(_get(head, INSTANCES)), head)
    found = {block.name: _address(block, config, head) for block in blocks(config) if block.kind == AGENTS}
    if not found:
        raise UsageError(f"{head}: the head server knows no agents ({AGENTS})")
    return found


def read_config(raw: bytes, where: str) -> Mapping[str, JSON]:
    """The configuration that a head server hands out: YAML, as a string in JSON."""
    import yaml

    try:
        text = decode(raw)
        value = yaml.safe_load(text) if isinstance(text, str) else text
    except (msgspec.DecodeError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{where}: not a head server's configuration: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: not a head server's configuration, but {type(value).__name__}")
    return value


def check_instances(value: JSON, head: str) -> None:
    """Refuse two servers of one name: a row could mean either."""
    listed = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
    names = Counter(str(item.get("process_name") or item.get("name")) for item in listed)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{head}{INSTANCES}: two servers are called {twice}; give them names of their own")


def _address(block: Block, config: Mapping[str, JSON], head: str) -> str:
    host, port = (resolved(block.settings.get(name), config) for name in ("host", "port"))
    if not isinstance(port, int | str) or not str(port).isdigit():
        raise UsageError(f"{head}: the agent {block.name} has no port; is it up?")
    own = urlsplit(head).hostname
    return f"http://{own if str(host or '') in _EVERYWHERE else host}:{port}"


def _get(head: str, path: str) -> bytes:
    try:
        with build_opener(ProxyHandler({})).open(f"{head}{path}", timeout=WITHIN_S) as reply:
            raw: bytes = reply.read(MOST_BYTES)
            return raw
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        words = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise UsageError(f"{head}{path}: {words}; is a head server there?") from None
