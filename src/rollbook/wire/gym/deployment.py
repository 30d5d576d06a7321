"""All that NeMo Gym needs to use an environment, side by side: configuration, rows, and the folder of the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from rollbook.collect.loop import on_fast_loop
from rollbook.core.json import encode
from rollbook.environments.registry import Loaded
from rollbook.wire.gym.config import generate_gym_config, write_gym_config
from rollbook.wire.gym.rowfile import write_rows
from rollbook.wire.gym.serve import Serving, load, server_name
from rollbook.wire.gym.shim import serve_command, write_shim

PORTS = range(9400, 9900)


class Deployment(msgspec.Struct, frozen=True):
    """What was written."""

    name: str
    port: int
    data: Path
    rows: int
    shim: Path


def deploy(
    asked: Serving,
    out: Path,
    model_url: str,
    model_name: str,
    *,
    judges: Sequence[str] = (),
    limit: int | None = None,
    domain: str = "other",
    api_key_env: str = "OPENAI_API_KEY",
) -> Deployment:
    """Write it: the YAML to `out`, the rows to data/, the server's folder to resources_servers/."""
    loaded = load(asked)
    name, root = server_name(loaded, asked.eval_type), out.resolve().parent
    spec, asked = loaded.spec, msgspec.structs.replace(asked, port=asked.port or port_for(name))
    config = generate_gym_config(
        asked.host,
        asked.port,
        root / "data",
        name,
        model_url,
        model_name,
        domain=domain,
        agent="gymnasium_agent" if spec.replies else "simple_agent",
        max_steps=asked.limits.max_turns if spec.tools or spec.offers or spec.replies else None,
        api_key_env=api_key_env,
    )
    data = root / "data" / f"{name}.jsonl"
    rows = on_fast_loop(lambda: _written(loaded, data, f"{name}_agent", limit))
    write_gym_config(config, out)
    shim = write_shim(root, name, f"http://{asked.host}:{asked.port}", serve_command(*_words(asked, judges)))
    return Deployment(name, asked.port, data, rows, shim)


def port_for(name: str) -> int:
    """Gym wants to know the port beforehand; servers of different names should not be after the same one."""
    return PORTS[crc32(name.encode()) % len(PORTS)]


async def _written(loaded: Loaded, data: Path, agent: str, limit: int | None) -> int:
    """Write the rows; an environment that offers tools for each task may have to be started before it knows them."""
    if not loaded.spec.offers:
        return write_rows(loaded, data, agent=agent, limit=limit)
    try:
        await loaded.instance.start()
        return write_rows(loaded, data, agent=agent, limit=limit)
    finally:
        await loaded.instance.stop()


def _words(asked: Serving, judges: Sequence[str]) -> Iterator[str]:
    """The command line of what was asked for."""
    yield from (asked.env, "--host", asked.host, "--port", str(asked.port))
    given = {
        "--data": asked.data,
        "--prompt-template": asked.template,
        "--eval-type": asked.eval_type,
        "--judge-name": asked.judge_name,
    }
    for option, value in given.items():
        if value:
            yield from (option, value)
    for url in judges:
        yield from ("--judge", url)
    for key, value in asked.harness_args.items():
        yield from ("--harness-arg", f"{key}={encode(value).decode()}")
