"""Files of rows: write an environment's tasks as rows for Gym, and read Gym's rows as tasks of a remote environment.

A task that was read keeps its whole row, which is sent with every request about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from rollbook.core import JSON, Task, encode
from rollbook.engine import iterate_tasks
from rollbook.environments import DataRow, LoadedEnvironment, explain_error, read_offered_tools, rows
from rollbook.errors import RolloutFailed, UsageError
from rollbook.gym.harness import HarnessEnvironment, read_harness_dataset
from rollbook.gym.rows import AGENT_REF, ANSWER_KEYS, TASK_INDEX, make_row, read_task
from rollbook.models import CREATE_PARAMS, CreateParams, get_foreign_item, read_create_params, to_chat_tools
from rollbook.reports import write_lines_atomically


def make_rows(loaded: LoadedEnvironment, agent: str = "") -> Iterator[dict[str, JSON]]:
    """The environment's own tasks as rows, each with its tools; the rows of a harness as they are."""
    if isinstance(loaded.instance, HarnessEnvironment):
        ref = {AGENT_REF: {"type": "responses_api_agents", "name": agent}} if agent else {}
        for number, row in enumerate(read_harness_dataset(loaded.instance.harness)):
            _check_row(row, number)
            yield {**row, **ref}
        return
    for task in iterate_tasks(loaded):
        yield make_row(task, [*loaded.spec.tools, *_offered_tools(loaded, task)], agent)


def _check_row(row: dict[str, JSON], number: int) -> None:
    try:
        read_task(row)
    except UsageError as error:
        raise UsageError(f"row {number} of get_dataset(): {error}") from None


def _offered_tools(loaded: LoadedEnvironment, task: Task) -> Iterable[JSON]:
    if not loaded.spec.offers:
        return ()
    try:
        return loaded.instance.offers(task)
    except Exception as error:
        raise UsageError(
            f"{loaded.cls.__name__}.offers() raised {explain_error(error)} for task {task.id!r}"
        ) from error


def write_rows(loaded: LoadedEnvironment, path: Path, *, agent: str = "", limit: int | None = None) -> int:
    """Write the rows to a file; how many there are."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: {error.strerror}") from None
    count = write_lines_atomically(path, map(_encode_row, islice(make_rows(loaded, agent), limit)))
    if not count:
        raise UsageError(f"{loaded.cls.__name__} has no tasks")
    return count


def _encode_row(row: dict[str, JSON]) -> bytes:
    """A row as JSON, once it is known that its task can be read back from it."""
    try:
        read_task(row)
        return encode(row)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"row {row.get('id')!r} does not fit JSON: {error}") from None


RESERVED_TOOL_NAMES = ("seed_session", "verify", "aggregate_metrics", "reverify_mode")
"""What a tool cannot be called: every resources server has routes of these names."""

_SAMPLING_OPTIONS = {"temperature": "--temperature", "top_p": "--top-p", "max_tokens": "--max-tokens"}


class RowDataset:
    """The rows of a file; what they ask for and do not get is in `notes`.

    `check` may refuse one more of them; with `prompt_optional` they need no prompt, for somebody else makes it; where
    all that they ask for is forwarded (`forwards_params`), only the sampling of this run comes before theirs.
    """

    def __init__(
        self,
        path: str | None,
        env: str,
        check: Callable[[Task, CreateParams], None] = lambda *_: None,
        *,
        prompt_optional: bool = False,
        forwards_params: bool = False,
    ) -> None:
        self._path, self._env, self._check, self._prompt_optional = path or "", env, check, prompt_optional
        self._forwards_params = forwards_params
        self._sampling: set[str] = set()
        self._extra: set[str] = set()

    @property
    def notes(self) -> list[str]:
        """What rows say about sampling that this run decides."""
        said = []
        if self._sampling:
            names = ", ".join(_SAMPLING_OPTIONS[name] for name in _SAMPLING_OPTIONS if name in self._sampling)
            said.append(f"rows of {self._path} ask for sampling of their own; what counts is {names} of this run")
        if self._extra and not self._forwards_params:
            names = ", ".join(sorted(self._extra))
            said.append(f"rows of {self._path} ask for {names}, which the model is not told; give it with --sampling")
        return said

    def tasks(self) -> Iterator[Task]:
        """One task a row, in the order of the file; UsageError with file and line for a row that cannot be asked."""
        if not self._path:
            raise UsageError(f"{self._env}: which rows? give --data rows.jsonl, with {CREATE_PARAMS} in each")
        seen: set[str] = set()
        for index, row in enumerate(rows(self._path)):
            try:
                yield self._make_task(row, index, seen)
            except UsageError as error:
                raise UsageError(f"{row.where}: {error}") from None

    def _read_params(self, asked: JSON) -> CreateParams:
        """What a row asks; others may make the prompt, and then it has none."""
        if self._prompt_optional and isinstance(asked, dict) and asked.get("input") == []:
            return CreateParams([])
        return read_create_params(asked)

    def _make_task(self, row: DataRow, index: int, seen: set[str]) -> Task:
        params = self._read_params(row.values.get(CREATE_PARAMS))
        self._sampling |= {name for name in _SAMPLING_OPTIONS if getattr(params, name) is not None}
        self._extra |= params.extra.keys()
        name = row.id if row.id not in seen else f"{row.id}@{row.line}"
        seen.add(name)
        answer = next((row.values[key] for key in ANSWER_KEYS if row.values.get(key) is not None), None)
        task = Task(name, messages=params.messages, answer=answer)
        task.fields = {**row.values, TASK_INDEX: _read_task_index(row.values, index)}
        self._check(task, params)
        return task


def _read_task_index(values: dict[str, JSON], index: int) -> int:
    """Which task of the file it is: as the row says, if it does, else by its place."""
    given = values.get(TASK_INDEX, index)
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise UsageError(f"{TASK_INDEX} is no whole number but {given!r:.80}")
    return given


def read_row_tools(task: Task) -> list[JSON]:
    """The tools that a task's row offers, in the form of chat completions."""
    return to_chat_tools(task.fields[CREATE_PARAMS].get("tools") or [])


def check_items(params: CreateParams) -> None:
    """Refuse items that no chat completion can say: a hosted search, a call of somebody else's tools."""
    for message in params.messages:
        if item := get_foreign_item(message):
            raise UsageError(
                f"{CREATE_PARAMS}.input: a {item.get('type')} cannot be said in chat completions; leave it out"
            )


def check_tools(_: Task, params: CreateParams) -> None:
    """Refuse tools that no model of ours could be offered, or that would be another route of the server."""
    check_items(params)
    try:
        named = read_offered_tools(params.tools, {})
    except RolloutFailed as error:
        raise UsageError(error.message.replace("offers(task)", f"{CREATE_PARAMS}.tools")) from None
    for name in RESERVED_TOOL_NAMES:
        if name in named:
            raise UsageError(f"{CREATE_PARAMS}.tools: a tool called {name} would be the server's own route; rename it")


def read_agent_name(task: Task) -> str | None:
    """The agent that a row names."""
    given = task.fields.get(AGENT_REF)
    name = given.get("name") if isinstance(given, dict) else None
    if given is not None and not (isinstance(name, str) and name):
        raise UsageError(f"{AGENT_REF} names no agent: {given!r:.80}; write {{'name': ...}}".replace("'", '"'))
    return name
