"""A trainer's rows: as tasks, as lines of JSONL files by number, and those that did not come back.

Each environment reads its own rows, as it does from the file of `--data`. Of files only the offsets of the lines are in
memory. verl, TRL and NeMo RL raise the same exception for missing rows, which names them.
"""

from __future__ import annotations

import os
import re
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from rollbook.core import (
    FAILURE_KINDS,
    JSON,
    JSON_ERRORS,
    FailureSide,
    Rollout,
    Task,
    TaskLine,
    decode,
    encode_line,
    iterate_lines,
)
from rollbook.engine import Entry
from rollbook.environments import Environment, parameters_of, resolve
from rollbook.errors import Shortfall, UsageError

AGENT_KEY, PARAMS_KEY = "agent_ref", "responses_create_params"
_TASK_LINE_KEYS = {"id", "env", "messages"}
"""The keys that only a line of tasks.jsonl has together."""


def read_environment_name(row: Mapping[str, JSON]) -> str | None:
    """Return the environment of a row: NeMo Gym's `agent_ref`, or the `env` of a line of tasks.jsonl."""
    reference = row.get(AGENT_KEY)
    name = reference.get("name") if isinstance(reference, dict) else reference
    return str(name) if name else (str(row["env"]) if row.keys() >= _TASK_LINE_KEYS else None)


def read_prompt(row: Mapping[str, JSON]) -> list[JSON]:
    """Return the prompt of a row, every item unchanged."""
    params = row.get(PARAMS_KEY)
    prompt = params.get("input") if isinstance(params, dict) else row.get("messages", row.get("prompt"))
    return prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt or ""}]


def make_environment(entry: Entry, data: str | None = None) -> Environment:
    """Return the environment of an entry, with `data` instead of its own rows if given."""
    return resolve(entry.env, data or entry.data, entry.template).instance


def read_tasks(entry: Entry, rows: Sequence[JSON], places: Sequence[int] | None = None) -> list[Task]:
    """Return one task per row, in order; UsageError names an unreadable row by its place among all rows."""
    if all(isinstance(row, dict) and row.keys() >= _TASK_LINE_KEYS for row in rows):
        return [_read_task(row) for row in rows]
    if "data" not in parameters_of(type(make_environment(entry))):
        advice = f"rows for it are lines of tasks.jsonl: rollbook plan {entry.env} -o RUN writes them"
        raise UsageError(f"{entry.env} does not read rows from other sources; {advice}")
    with tempfile.TemporaryDirectory(prefix="rollbook-rows-") as folder:
        path = Path(folder) / "row.jsonl"
        path.write_bytes(b"".join(map(encode_line, rows)))
        try:
            tasks = list(make_environment(entry, str(path)).tasks())
        except UsageError as error:
            raise UsageError(_name_row(str(error), str(path), places or range(len(rows)))) from None
    if len(tasks) != len(rows):
        raise UsageError(f"{entry.env} made {len(tasks)} tasks of {len(rows)} rows; a trainer needs one of each")
    return tasks


def _name_row(message: str, path: str, places: Sequence[int]) -> str:
    """Replace references to lines of our temporary file by references to rows."""
    return re.sub(rf"{re.escape(path)}:(\d+)", lambda match: f"row {places[int(match[1]) - 1]}", message)


def _read_task(row: JSON) -> Task:
    try:
        line = msgspec.convert(row, TaskLine)
    except msgspec.ValidationError as error:
        raise UsageError(f"task {row.get('id')!r}: {error}") from None
    return Task.from_line(line)


def read_row(text: str | bytes, where: str) -> dict[str, JSON]:
    """Read a row from a line of a file."""
    try:
        row = decode(text)
    except JSON_ERRORS as error:
        raise UsageError(f"{where}: {error}") from None
    if not isinstance(row, dict):
        raise UsageError(f"{where}: a row is a JSON object, not {str(text)[:40]!r}")
    return row


if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Offsets: TypeAlias = NDArray[numpy.int64]


class IndexedLines:
    """The non-blank lines of several files, one after the other; can be pickled, and read from many threads."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = [os.path.expanduser(path) for path in paths]
        self._offsets = [_find_offsets(path) for path in self.paths]
        self._ends = [0]
        for offsets in self._offsets:
            self._ends.append(self._ends[-1] + len(offsets))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> bytes:
        file, local = self._locate(number)
        with open(self.paths[file], "rb") as opened:
            opened.seek(int(self._offsets[file][local]))
            return opened.readline().strip()

    def describe(self, number: int) -> str:
        """Return the place of a line, for messages about it."""
        file, local = self._locate(number)
        return f"{self.paths[file]} at byte {self._offsets[file][local]}"

    def _locate(self, number: int) -> tuple[int, int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        file = bisect_right(self._ends, number) - 1
        return file, number - self._ends[file]


def _find_offsets(path: str) -> Offsets:
    import array

    import numpy as np

    try:
        with open(path, "rb") as file:
            found = array.array("q", (offset for _, offset, _ in iterate_lines(file)))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    return np.frombuffer(found, np.int64) if found else np.empty(0, np.int64)


MAX_ROWS_SHOWN = 16
"""How many rows a message names; the exception has them all."""

RowName: TypeAlias = int | str
"""A row's place in its batch; in verl's V1 the uid of its prompt."""


class MissingReason(NamedTuple):
    """Why a row did not come back. `kind` is that of its failure; empty if no rollout of it ended."""

    side: FailureSide
    why: str
    kind: str = ""


class RowsMissing(Shortfall):
    """Fewer rows came back than were requested. `rows` are the missing ones, `reasons` what is known of each."""

    def __init__(self, requested: int, missing: Mapping[RowName, MissingReason]) -> None:
        kinds = Counter(reason.kind for reason in missing.values() if reason.kind)
        super().__init__(requested=requested, scored=requested - len(missing), failed=kinds)
        self.rows, self.reasons = list(missing), {row: reason.why for row, reason in missing.items()}
        self.side = find_side(missing.values())
        self.args = (requested, dict(missing))  # it is pickled by its arguments

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.rows[:MAX_ROWS_SHOWN])) + (", ..." if len(self.rows) > MAX_ROWS_SHOWN else "")
        reason = next(iter(self.reasons.values()), "no reason is known")
        return f"{self.scored} of {self.requested} rows came back; missing rows: {shown}; {self.side}: {reason}"


def find_side(reasons: Iterable[MissingReason]) -> FailureSide:
    """Return `infra` if requesting all rows again may help, `data` if at least one of them would fail again."""
    return "data" if any(reason.side == "data" for reason in reasons) else "infra"


def find_group_side(error: Shortfall) -> FailureSide:
    """Return the side of a group that is not complete: of the reasons for its rows, or of the kinds of its failures."""
    if isinstance(error, RowsMissing):
        return error.side
    return "infra" if all(FAILURE_KINDS[kind].side == "infra" for kind in error.failed) else "data"


def find_missing(outcomes: Sequence[Rollout | MissingReason]) -> dict[RowName, MissingReason]:
    """Return the rows without a score, by their place."""
    reasons = {row: get_reason(outcome) for row, outcome in enumerate(outcomes)}
    return {row: reason for row, reason in reasons.items() if reason}


def get_reason(outcome: Rollout | MissingReason) -> MissingReason | None:
    """Return why a row has no score; None if it has one."""
    if isinstance(outcome, MissingReason):
        return outcome
    failure, (task, sample) = outcome.failure, outcome.key
    if failure is None:
        return None
    return MissingReason(failure.side, f"{failure.kind}: {failure.message} (rollout {task}#{sample})", failure.kind)
