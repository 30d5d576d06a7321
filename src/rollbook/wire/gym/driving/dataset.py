"""Rows of NeMo Gym as tasks: each keeps its whole row, which goes along with every request about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rollbook.core.json import JSON
from rollbook.core.task import Task
from rollbook.environments.offered import read_offers
from rollbook.environments.rows import Row, rows
from rollbook.errors import RolloutFailed, UsageError
from rollbook.wire.gym.items import foreign_item
from rollbook.wire.gym.params import KEY, Params, read_params
from rollbook.wire.gym.row import AGENT, ANSWERS, TASK_INDEX
from rollbook.wire.gym.tools import chat_tools

ROUTES = ("seed_session", "verify", "aggregate_metrics", "reverify_mode")
"""What a tool cannot be called: every resources server has routes of these names."""

_OPTIONS = {"temperature": "--temperature", "top_p": "--top-p", "max_tokens": "--max-tokens"}


class Dataset:
    """The rows of a file; what they ask for and do not get is in `notes`.

    `check` may refuse one more of them; `bare` ones need no prompt, for somebody else makes it; where all that they ask
    for is `forwarded`, only the sampling of this run comes before theirs.
    """

    def __init__(
        self,
        path: str | None,
        env: str,
        check: Callable[[Task, Params], None] = lambda *_: None,
        *,
        bare: bool = False,
        forwarded: bool = False,
    ) -> None:
        self._path, self._env, self._check, self._bare = path or "", env, check, bare
        self._forwarded = forwarded
        self._sampling: set[str] = set()
        self._extra: set[str] = set()

    @property
    def notes(self) -> list[str]:
        """What rows say about sampling that this run decides."""
        said = []
        if self._sampling:
            names = ", ".join(_OPTIONS[name] for name in _OPTIONS if name in self._sampling)
            said.append(f"rows of {self._path} ask for sampling of their own; what counts is {names} of this run")
        if self._extra and not self._forwarded:
            names = ", ".join(sorted(self._extra))
            said.append(f"rows of {self._path} ask for {names}, which the model is not told; give it with --sampling")
        return said

    def tasks(self) -> Iterator[Task]:
        """One task a row, in the order of the file; UsageError with file and line for a row that cannot be asked."""
        if not self._path:
            raise UsageError(f"{self._env}: which rows? give --data rows.jsonl, with {KEY} in each")
        seen: set[str] = set()
        for index, row in enumerate(rows(self._path)):
            try:
                yield self._task(row, index, seen)
            except UsageError as error:
                raise UsageError(f"{row.where}: {error}") from None

    def _params(self, asked: JSON) -> Params:
        """What a row asks; others may make the prompt, and then it has none."""
        if self._bare and isinstance(asked, dict) and asked.get("input") == []:
            return Params([])
        return read_params(asked)

    def _task(self, row: Row, index: int, seen: set[str]) -> Task:
        params = self._params(row.values.get(KEY))
        self._sampling |= {name for name in _OPTIONS if getattr(params, name) is not None}
        self._extra |= params.extra.keys()
        name = row.id if row.id not in seen else f"{row.id}@{row.line}"
        seen.add(name)
        answer = next((row.values[key] for key in ANSWERS if row.values.get(key) is not None), None)
        task = Task(name, messages=params.messages, answer=answer)
        task.fields = {**row.values, TASK_INDEX: _index(row.values, index)}
        self._check(task, params)
        return task


def _index(values: dict[str, JSON], index: int) -> int:
    """Which task of the file it is: as the row says, if it does, else by its place."""
    given = values.get(TASK_INDEX, index)
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise UsageError(f"{TASK_INDEX} is no whole number but {given!r:.80}")
    return given


def tools_of(task: Task) -> list[JSON]:
    """The tools that a task's row offers, in the form of chat completions."""
    return chat_tools(task.fields[KEY].get("tools") or [])


def check_items(params: Params) -> None:
    """Refuse items that no chat completion can say: a hosted search, a call of somebody else's tools."""
    for message in params.messages:
        if item := foreign_item(message):
            raise UsageError(f"{KEY}.input: a {item.get('type')} cannot be said in chat completions; leave it out")


def check_tools(_: Task, params: Params) -> None:
    """Refuse tools that no model of ours could be offered, or that would be another route of the server."""
    check_items(params)
    try:
        named = read_offers(params.tools, {})
    except RolloutFailed as error:
        raise UsageError(error.message.replace("offers(task)", f"{KEY}.tools")) from None
    for name in ROUTES:
        if name in named:
            raise UsageError(f"{KEY}.tools: a tool called {name} would be the server's own route; rename it")


def agent_of(task: Task) -> str | None:
    """The agent that a row names."""
    given = task.fields.get(AGENT)
    name = given.get("name") if isinstance(given, dict) else None
    if given is not None and not (isinstance(name, str) and name):
        raise UsageError(f"{AGENT} names no agent: {given!r:.80}; write {{'name': ...}}".replace("'", '"'))
    return name
