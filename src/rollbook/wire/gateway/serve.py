"""Serving a gateway, from what was asked for until somebody says that it is enough."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from rollbook.core.manifest import Settings
from rollbook.errors import UsageError
from rollbook.models.chat import ChatModel
from rollbook.models.model import Model
from rollbook.models.target import open_model, resolve_model
from rollbook.wire.gateway.standalone import Standalone, Terms
from rollbook.wire.serving import serve

Say = Callable[[str], None]


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to ask, where to listen, and how."""

    upstream: list[str] = []
    model_name: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    out: str | None = None
    settings: Settings = Settings()
    terms: Terms = Terms()


async def serve_gateway(asked: Serving, key: str, ready: Callable[[str], None], say: Say) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the address, `say` a line for all that fails."""
    out = None if asked.out is None else folder_of(asked.out)
    async with opened(asked, say) as model:
        app = Standalone(model, asked.terms, key, out, say).app()
        await serve(app, asked.host, asked.port, ready, cancelling=True)


def folder_of(out: str) -> Path:
    """Where records go; made if it is not there."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"-o {out}: {error.strerror}") from None
    return Path(out)


@asynccontextmanager
async def opened(asked: Serving, say: Say) -> AsyncIterator[Model]:
    """The model; agents decide themselves what of its reasoning they send back."""
    spec, urls = resolve_model(asked.upstream, asked.model_name)
    settings = msgspec.structs.replace(asked.settings, urls=urls)
    chat = spec.kind == "chat"
    model = ChatModel(spec, settings, send_reasoning=True, say=say) if chat else open_model(spec, settings, say=say)
    try:
        await model.open()
        yield model
    finally:
        await model.close()
