"""Answers that are not UTF-8, as of a proxy in front of a server: quoted as far as they can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.core import ModelSpec, Settings
from rollbook.errors import RolloutFailed
from rollbook.models.anthropic import AnthropicModel
from rollbook.models.chat import fetch_endpoint_models
from rollbook.models.chat_protocol import read_answer
from rollbook.models.router import Replica
from rollbook.models.server_errors import find_refused_parameter, make_http_error, read_server_message

BYTES = b"caf\xe9 is closed"
TEXT = "caf\ufffd is closed"


def read_message(raw: bytes) -> object:
    model = AnthropicModel(ModelSpec("m"), Settings(urls=["http://host/v1"]))
    return model._read_completion(raw, 0.0, None, False)


@pytest.mark.parametrize("read", [read_answer, lambda raw: read_answer(raw, True), read_message])
def test_an_answer_that_cannot_be_read_is_quoted(read: Callable[[bytes], object]) -> None:
    with pytest.raises(RolloutFailed, match=TEXT) as caught:
        read(BYTES)
    assert caught.value.kind == "bad_completion"


def test_an_error_that_cannot_be_read_is_quoted() -> None:
    assert read_server_message(BYTES) == TEXT
    assert TEXT in str(make_http_error(500, None, BYTES))
    assert find_refused_parameter(BYTES, ["seed"]) is None
    assert find_refused_parameter(b"caf\xe9: unknown parameter seed", ["seed"])


def test_a_list_of_models_that_cannot_be_read_is_none() -> None:
    async def get(*_: object) -> tuple[int, bytes]:
        return 200, BYTES

    replica: Any = SimpleNamespace(base="http://host/v1", models="", get=get)
    found = asyncio.run(fetch_endpoint_models(replica, 1.0, ""))
    assert (found.names, found.problem) == (None, "not a list of models")


def test_secrets_are_removed_from_what_cannot_be_read() -> None:
    session: Any = None
    replica = Replica("http://host/v1", session, 1.0, lambda text: text.replace("closed", "open"))
    assert replica._scrub_bytes(BYTES) == "caf\ufffd is open".encode()
