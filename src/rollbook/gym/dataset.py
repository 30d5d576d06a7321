"""Write an environment's tasks as files of rows for Gym, and read Gym's rows as tasks of a remote environment.

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
from rollbook.gym.rows import AGENT_REF, TASK_INDEX, is_index, make_agent_ref, make_row, read_expected_answer, read_task
from rollbook.models import CREATE_PARAMS, CreateParams, get_foreign_item, read_create_params, to_chat_tools
from rollbook.reports import write_lines_atomically


def make_rows(loaded: LoadedEnvironment, agent: str = "") -> Iterator[dict[str, JSON]]:
    """Yield the environment's tasks as rows, each with its tools; the rows of a harness are yielded unchanged."""
    if isinstance(loaded.instance, HarnessEnvironment):
        for number, row in enumerate(read_harness_dataset(loaded.instance.harness)):
            try:
                read_task(row)
            except UsageError as error:
                raise UsageError(f"row {number} of get_dataset(): {error}") from None
            yield {**row, **make_agent_ref(agent)}
        return
    for task in iterate_tasks(loaded):
        yield make_row(task, [*loaded.spec.tools, *_offered_tools(loaded, task)], agent)


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
    """Write the rows to a file and return their number."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent}: {error.strerror}") from None
    count = write_lines_atomically(path, map(_encode_row, islice(make_rows(loaded, agent), limit)))
    if not count:
        raise UsageError(f"{loaded.cls.__name__} has no tasks")
    return count


def _encode_row(row: dict[str, JSON]) -> bytes:
    """Return a row as JSON, after checking that its task can be read back from it."""
    try:
        read_task(row)
        return encode(row)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"row {row.get('id')!r} cannot be stored as JSON: {error}") from None


RESERVED_TOOL_NAMES = ("seed_session", "verify", "aggregate_metrics", "reverify_mode")
"""Names that a tool cannot have: every resources server has routes of these names."""

_SAMPLING_OPTIONS = {"temperature": "--temperature", "top_p": "--top-p", "max_tokens": "--max-tokens"}


class RowDataset:
    """The rows of a file as tasks; `notes` lists what the rows request and do not get.

    `prepare` may change a row before it is read, `check` may refuse it. With `prompt_optional`, rows need no prompt,
    because the server makes it. With `forwards_params`, the server gets all parameters of a row, and only this run's
    sampling overrides them.
    """

    def __init__(
        self,
        path: str | None,
        env: str,
        check: Callable[[Task, CreateParams], None] = lambda *_: None,
        *,
        prompt_optional: bool = False,
        forwards_params: bool = False,
        prepare: Callable[[dict[str, JSON]], dict[str, JSON]] = lambda row: row,
    ) -> None:
        self._path, self._env, self._check, self._prompt_optional = path or "", env, check, prompt_optional
        self._forwards_params, self._prepare = forwards_params, prepare
        self._sampling: set[str] = set()
        self._extra: set[str] = set()

    @property
    def notes(self) -> list[str]:
        """What rows request that this run decides instead."""
        notes = []
        if self._sampling:
            names = ", ".join(_SAMPLING_OPTIONS[name] for name in _SAMPLING_OPTIONS if name in self._sampling)
            notes.append(f"rows of {self._path} set their own sampling; {names} of this run is used instead")
        if self._extra and not self._forwards_params:
            names = ", ".join(sorted(self._extra))
            notes.append(f"rows of {self._path} ask for {names}, which is ignored; give it with --sampling")
        return notes

    def tasks(self) -> Iterator[Task]:
        """Yield one task per row, in file order; UsageError with file and line for a row that cannot be used."""
        if not self._path:
            raise UsageError(f"{self._env}: which rows? give --data rows.jsonl, with {CREATE_PARAMS} in each")
        seen: set[str] = set()
        for index, row in enumerate(rows(self._path)):
            try:
                yield self._make_task(row, index, seen)
            except UsageError as error:
                raise UsageError(f"{row.where}: {error}") from None

    def _read_params(self, params: JSON) -> CreateParams:
        """Return a row's parameters; without messages where the server makes the prompt."""
        if self._prompt_optional and isinstance(params, dict) and params.get("input") == []:
            return CreateParams([])
        return read_create_params(params)

    def _make_task(self, row: DataRow, index: int, seen: set[str]) -> Task:
        values = self._prepare(row.values)
        params = self._read_params(values.get(CREATE_PARAMS))
        self._sampling |= {name for name in _SAMPLING_OPTIONS if getattr(params, name) is not None}
        self._extra |= params.extra.keys()
        name = row.id if row.id not in seen else f"{row.id}@{row.line}"
        seen.add(name)
        task = Task(name, messages=params.messages, answer=read_expected_answer(values))
        task.fields = {**values, TASK_INDEX: _read_task_index(values, index)}
        self._check(task, params)
        return task


def _read_task_index(values: dict[str, JSON], index: int) -> int:
    """Return the task index of a row, by default its position in the file."""
    value = values.get(TASK_INDEX, index)
    if not is_index(value):
        raise UsageError(f"{TASK_INDEX} is not a whole number but {value!r:.80}")
    return value


def read_row_tools(task: Task) -> list[JSON]:
    """Return the tools of a task's row, in chat completions form."""
    return to_chat_tools(task.fields[CREATE_PARAMS].get("tools") or [])


def check_tools(_: Task, params: CreateParams) -> None:
    """Refuse tools that cannot be offered to a model, or that have the name of a server route.

    Items that chat completions cannot express are refused too: a hosted search, a call of another provider's tools.
    """
    for message in params.messages:
        if item := get_foreign_item(message):
            raise UsageError(
                f"{CREATE_PARAMS}.input: a {item.get('type')} cannot be expressed in chat completions; leave it out"
            )
    try:
        tools = read_offered_tools(params.tools, {})
    except RolloutFailed as error:
        raise UsageError(error.message.replace("offers(task)", f"{CREATE_PARAMS}.tools")) from None
    for name in RESERVED_TOOL_NAMES:
        if name in tools:
            raise UsageError(
                f"{CREATE_PARAMS}.tools: a tool called {name} has the name of a route of the server; rename it"
            )


def read_agent_name(task: Task) -> str | None:
    """Return the agent that a row names."""
    reference = task.fields.get(AGENT_REF)
    name = reference.get("name") if isinstance(reference, dict) else None
    if reference is not None and not (isinstance(name, str) and name):
        raise UsageError(f"{AGENT_REF} names no agent: {reference!r:.80}; write {{'name': ...}}".replace("'", '"'))
    return name
