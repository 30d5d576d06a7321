"""What an endpoint says that it serves, and what is wrong with one that does not say it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest

from rollbook.core import Sampling
from rollbook.errors import ContextFull, RolloutFailed, UsageError
from rollbook.models import chat
from rollbook.models.chat import EndpointModels, fetch_endpoint_models
from rollbook.models.router import Replica

BASE = "http://host:1/v2"


class Listing:
    """A replica that answers every GET like this."""

    base, models = BASE, f"{BASE}/models"

    def __init__(self, status: int, body: object = "") -> None:
        self.status, self.raw = status, body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.asked: list[tuple[object, float]] = []

    async def get(self, url: object, within_s: float) -> tuple[int, bytes]:
        self.asked.append((url, within_s))
        return self.status, self.raw


def fetch(status: int, body: object = "") -> EndpointModels:
    listing = Listing(status, body)
    found = asyncio.run(fetch_endpoint_models(cast(Replica, listing), 3.0, "set the key"))
    assert listing.asked[0] == (f"{BASE}/models", 3.0)
    return found


def test_the_names_are_listed_and_those_of_vllm_marked() -> None:
    rows = [{"id": "a", "owned_by": "vllm"}, {"id": "b", "owned_by": "me"}, {"id": "c"}]
    assert fetch(200, {"data": rows}) == EndpointModels(BASE, ["a", "b", "c"], frozenset({"a"}))


@pytest.mark.parametrize(
    ("body", "problem"),
    [("{}x", "not a list of models"), ("<html><title>Hi</title>", 'an HTML page, "Hi"')],
)
def test_an_answer_that_is_no_list_is_described(body: str, problem: str) -> None:
    assert fetch(200, body) == EndpointModels(BASE, None, problem=problem)


@pytest.mark.parametrize("status", [401, 403])
def test_a_wrong_key_is_one_line(status: int) -> None:
    with pytest.raises(UsageError) as caught:
        fetch(status)
    assert str(caught.value) == f"{BASE}: HTTP {status}; set the key"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_an_endpoint_that_is_elsewhere_is_one_line(status: int) -> None:
    with pytest.raises(UsageError) as caught:
        fetch(status)
    assert str(caught.value) == f"{BASE}: HTTP {status}, the endpoint is elsewhere; give its new URL with -m"


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_server_that_is_down_is_waited_for(status: int) -> None:
    with pytest.raises(RolloutFailed) as caught:
        fetch(status, "busy")
    assert (caught.value.kind, caught.value.message) == ("model_unavailable", f"{BASE}: HTTP {status}: busy")


@pytest.mark.parametrize("status", [400, 404, 409, 499])
def test_any_other_status_is_the_problem(status: int) -> None:
    assert fetch(status) == EndpointModels(BASE, None, problem=f"HTTP {status}")


BODY = json.dumps({"model": "m", "messages": [], "temperature": 0.5, "max_completion_tokens": 5}).encode()


@pytest.mark.parametrize(
    ("status", "text", "advice"),
    [
        (400, "temperature is odd", "; give another value, or pass --sampling temperature=null to omit it"),
        (422, "temperature is odd", "; give another value, or pass --sampling temperature=null to omit it"),
        (
            400,
            "max_completion_tokens is odd",
            "; give another value, or pass --sampling max_tokens=null to omit it",
        ),
        (500, "temperature is odd", ""),
        (400, "all is odd", ""),
    ],
)
def test_a_parameter_that_a_server_complains_about_is_named_with_a_way_out(status: int, text: str, advice: str) -> None:
    error = RolloutFailed("model_rejected", "model", text, status=status)
    found = chat._name_parameter(error, json.dumps({"message": text}).encode(), BODY)
    assert isinstance(found, RolloutFailed)
    assert (found.kind, found.message, found.status) == ("model_rejected", text + advice, status)


def test_a_full_context_is_not_about_a_parameter() -> None:
    full = ContextFull("temperature")
    assert chat._name_parameter(full, b'{"message": "temperature"}', BODY) is full


@pytest.mark.parametrize(
    ("kind", "text", "tools", "schema", "option"),
    [
        ("model_rejected", "no Tools here", True, False, "--tool-format schema"),
        ("model_rejected", "no tools here", False, True, ""),
        ("model_rejected", "no Schema here", False, True, "--tool-format text"),
        ("model_rejected", "no schema here", True, False, ""),
        ("model_rejected", "neither", True, True, ""),
        ("model_unavailable", "no tools here", True, False, ""),
    ],
)
def test_a_server_without_tools_or_schemas_is_named_with_a_way_out(
    kind: str, text: str, tools: bool, schema: bool, option: str
) -> None:
    found = chat._add_advice(RolloutFailed(kind, "model", text), tools, schema)
    assert found.message == (f"{text}; for a server that cannot do this: {option}" if option else text)


@pytest.mark.parametrize(
    ("sampling", "fails"),
    [
        ({"max_tokens": 99}, False),
        ({"max_tokens": 100}, True),
        ({"max_tokens": 101}, True),
        ({"max_tokens": 101, "extra": {"max_tokens": None}}, False),
    ],
)
def test_a_limit_that_leaves_no_room_for_a_prompt_is_a_mistake(sampling: dict[str, Any], fails: bool) -> None:
    found = chat._max_tokens_error("the maximum context length is 100 tokens", Sampling(**sampling))
    assert (found is not None) is fails
    if found is not None:
        advice = f"--max-tokens {sampling['max_tokens']} leaves no room for a prompt: lower it"
        assert found.message == f"the maximum context length is 100 tokens; {advice}"
    assert chat._max_tokens_error("too long", Sampling(**sampling)) is None
