"""Which declarations of an MCP server are valid."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from rollbook import Environment, McpServer, Task
from rollbook.core import Limits
from rollbook.environments.registry import load_instance
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.errors import UsageError


class Named(Environment):
    def __init__(self) -> None:
        self.mcp = [McpServer(command=["true"])]

    def tasks(self):
        yield Task(id="a", prompt="b")

    def verify(self, task, rollout):
        return True


class Blocking(Named):
    def open(self, task):
        return []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "give either command"),
        ({"command": ["a"], "url": "http://a"}, "give either command"),
        ({"command": "python server.py"}, r"write command=\['python', 'server.py'\]"),
        ({"url": "localhost:80"}, "must begin with http"),
        ({"url": "http://a", "env": ["A"]}, "env and per_rollout are for a command"),
        ({"url": "http://a", "per_rollout": True}, "env and per_rollout are for a command"),
        ({"command": ["a"], "token_env": "A"}, "token_env is for a url"),
    ],
)
def test_a_server_that_makes_no_sense_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        McpServer(**given)


def test_a_server_is_called_by_its_command_or_its_url() -> None:
    assert McpServer(command=["python", "server.py"]).display_name == "MCP server python server.py"
    assert McpServer(url="http://localhost:80/mcp").display_name == "MCP server http://localhost:80/mcp"


def test_servers_make_the_state_async_and_are_offered() -> None:
    spec = load_instance(Named()).spec
    assert (spec.verify, spec.state, spec.offers) == ("sync", "async", True)


def test_beside_servers_no_state_may_block() -> None:
    with pytest.raises(UsageError, match="must all be async or all sync; async: the tools of MCP servers; sync: open"):
        load_instance(Blocking())


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rollbook.environments.mcp", None)
    environment = Named()
    runtime = EnvironmentRuntime(load_instance(environment).spec, Limits(), environment=lambda: environment)
    with pytest.raises(UsageError, match=r"has MCP servers, which need a package: pip install 'rollbook\[mcp\]'"):
        asyncio.run(runtime.open())
