"""A server of the Model Context Protocol whose tools an environment has beside its own: what is written of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.errors import UsageError


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server: a `command` that speaks over its standard input and output, or a `url`.

    Variables of the environment are given by their names, never by their values.
    """

    command: Sequence[str] = ()
    """What is started, in the folder of the environment's source."""
    url: str = ""
    env: Sequence[str] = ()
    """Names of the variables that the command gets, beside HOME, PATH and their like."""
    token_env: str = ""
    """The name of the variable with the bearer token that the URL wants."""
    per_rollout: bool = False
    """Whether each rollout has a process of its own; otherwise one serves all rollouts of a worker."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise UsageError("McpServer: give either command=[...] or url=...")
        if isinstance(self.command, str):
            raise UsageError(f"McpServer: write command={self.command.split()!r}, a list of words")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise UsageError(f"McpServer: url={self.url!r} must begin with http:// or https://")
        if self.url and (self.env or self.per_rollout):
            raise UsageError(f"McpServer: {self.url} is not started here: env and per_rollout are for a command")
        if self.command and self.token_env:
            raise UsageError("McpServer: token_env is for a url; a command gets variables by env=[...]")

    @property
    def shown(self) -> str:
        """What it is called in messages."""
        return f"MCP server {self.url or ' '.join(self.command)}"
