"""`RoleModel`, what `self.model(NAME)` of an environment returns: asks the model of a role, for the rollout at hand.

On the worker's loop the rollout is known by a context variable; in an environment process its calls go through the
pipe. Imported by environment processes, so it must stay light.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rollbook.core import JSON, Message, RoleCall, as_messages
from rollbook.errors import UsageError


class RoleAsker(Protocol):
    """Asks the models of roles for one rollout, on the worker's loop."""

    def ask(self, role: str, messages: Sequence[Message], sampling: Mapping[str, JSON]) -> Awaitable[RoleCall]:
        """Return the recorded call; RolloutFailed if there is no answer."""
        ...


class BlockingRoleAsker(Protocol):
    """Asks the models of roles from an environment process."""

    def ask_blocking(self, role: str, messages: Sequence[Message], sampling: Mapping[str, JSON]) -> RoleCall:
        """Return the recorded call; RolloutFailed if there is no answer."""
        ...


_loop_asker: ContextVar[RoleAsker | None] = ContextVar("role_asker", default=None)
_process_askers: list[BlockingRoleAsker] = []
"""Of an environment process its only asker: a context variable would not reach the threads of the environment."""


@contextmanager
def use_role_asker(asker: RoleAsker | None) -> Iterator[None]:
    """Let environment code of this context ask models for one rollout."""
    token = _loop_asker.set(asker)
    try:
        yield
    finally:
        _loop_asker.reset(token)


def set_process_asker(asker: BlockingRoleAsker) -> None:
    """Let all environment code of this process ask through its pipe."""
    _process_askers[:] = [asker]


class RoleModel:
    """The model of a role. `ask` is awaited in async methods; `ask_blocking` is for methods that are not async.

    Both take a text, or messages as in `Task(messages=...)`, and sampling parameters by name. They return the call as
    it is recorded, with `text`, `truncated` and counts of tokens. Without an answer the rollout fails: it cannot be
    scored any more, even if the exception is caught.
    """

    def __init__(self, role: str) -> None:
        self._role = role

    def ask(self, messages: str | Sequence[Message | Mapping[str, JSON]], **sampling: JSON) -> Awaitable[RoleCall]:
        """Ask once; to be awaited."""
        asker = _loop_asker.get()
        if asker is None:
            raise UsageError(self._explain("ask", "ask_blocking"))
        return asker.ask(self._role, _read_messages(messages), sampling)

    def ask_blocking(self, messages: str | Sequence[Message | Mapping[str, JSON]], **sampling: JSON) -> RoleCall:
        """Ask once, and wait for the answer. The limit of the method's seconds does not count the waiting."""
        if not _process_askers:
            raise UsageError(self._explain("ask_blocking", "ask"))
        return _process_askers[0].ask_blocking(self._role, _read_messages(messages), sampling)

    def _explain(self, used: str, other: str) -> str:
        if used == "ask" and not _process_askers:
            return f"the role {self._role} was asked outside of a rollout: ask in open, tools, reply, play or verify"
        where, await_ = ("an async", "await ") if other == "ask" else ("a sync", "")
        return f'{used} of the role {self._role}: in {where} method write {await_}self.model("{self._role}").{other}()'


def _read_messages(messages: str | Sequence[Message | Mapping[str, JSON]]) -> list[Message]:
    return [Message("user", messages)] if isinstance(messages, str) else as_messages(messages)
