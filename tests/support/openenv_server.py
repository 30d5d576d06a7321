"""Two environments by the real package `openenv`, served: python openenv_server.py guess|shop PORT_FILE."""

import random
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State


class GuessAction(Action):
    """Guess once."""

    number: int


class GuessObservation(Observation):
    words: str


class Guess(Environment):
    """A number to be guessed."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._secret, self._left = 0, 3

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> GuessObservation:
        self._secret, self._left = random.Random(seed).randrange(10), 3
        return GuessObservation(words=f"Guess my number, episode {seed}.")

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: Any) -> GuessObservation:
        if action.number < 0:
            raise RuntimeError("the machine broke")
        self._left -= 1
        right = action.number == self._secret
        words = "Right." if right else "Higher." if action.number < self._secret else "Lower."
        done = right or not self._left
        return GuessObservation(words=words, done=done, reward=float(right) if done else None)

    @property
    def state(self) -> State:
        return State()

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="guess", description="A guessing game.")


class Shop(MCPEnvironment):
    """Tools by MCP."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp: Any = FastMCP("shop")
        self.bought: list[str] = []

        @mcp.tool
        def buy(what: str, count: int = 1) -> str:
            """Buy something."""
            self.bought += [what] * count
            return f"{len(self.bought)} bought"

        super().__init__(mcp)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        self.bought.clear()
        return Observation(done=False, reward=0.0)

    def step(self, action: Action, timeout_s: float | None = None, **rest: Any) -> Observation:
        said = super().step(action, timeout_s=timeout_s, **rest)
        return self._paid(said)

    async def step_async(self, action: Action, timeout_s: float | None = None, **rest: Any) -> Observation:
        return self._paid(await super().step_async(action, timeout_s=timeout_s, **rest))

    def _paid(self, said: Observation) -> Observation:
        if isinstance(said, CallToolObservation):
            said.reward, said.done = 0.5, len(self.bought) >= 2
        return said

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        return Observation(metadata={"error": "unknown"})

    @property
    def state(self) -> State:
        return State()


def main(name: str, port_file: Path) -> None:
    """Serve one of them."""
    made = (Guess, GuessAction, GuessObservation) if name == "guess" else (Shop, CallToolAction, CallToolObservation)
    app = create_fastapi_app(*made, max_concurrent_envs=2)
    listener = socket.create_server(("127.0.0.1", 0))
    port_file.write_text(f"{listener.getsockname()[1]}\n")
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
