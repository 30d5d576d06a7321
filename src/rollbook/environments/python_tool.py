"""Problems solved with a Python session: the model calls a tool that keeps its variables, then gives its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from rollbook.core.json import JSON
from rollbook.core.rollout import Rollout
from rollbook.core.score import Score
from rollbook.core.task import Task
from rollbook.environments.answers import canonical
from rollbook.environments.conclusion import concluded, same
from rollbook.environments.environment import tool
from rollbook.environments.gsm8k import problems
from rollbook.environments.math import expected
from rollbook.environments.rows import Row
from rollbook.environments.sandboxed import Sandboxed
from rollbook.environments.shown import shown
from rollbook.environments.template import Template
from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Session
from rollbook.sandbox.given import check_names

INSTRUCTION = (
    "You can run Python with the tool `python`. Its variables stay from call to call; print what you want to see. "
    "When you know the answer, give it in \\boxed{}."
)

WALL = 3
"""The clock's limit of a call, in units of its CPU time."""


class Bench:
    """What one rollout has: its session, and how often it was used."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.calls = self.errors = 0


class PythonTool(Sandboxed):
    """Rows with a problem and an answer from `data` (else GSM8K), solved with a stateful `python` tool.

    A row's `files` (name: text) lie in the session's folder. A call that runs into a limit is undone, and the model is
    told; `snapshot=false` is cheaper, and loses all variables then. `packages` may be imported, if installed.
    """

    description = "math and data problems, solved with a Python session as a tool (--data rows, else GSM8K)"

    def __init__(
        self,
        data: str | None = None,
        template: str | None = None,
        seconds: float = 5.0,
        memory_mb: int = 512,
        snapshot: bool = True,
        packages: Sequence[str] = (),
        sessions: int = 128,
    ) -> None:
        if sessions < 1:
            raise UsageError(f"sessions={sessions}: give a number from 1 on")
        self._data, self._template, self._snapshot = data, template, snapshot
        self.packages = [packages] if isinstance(packages, str) else list(packages)
        self.limits = Limits(seconds=seconds, memory_mb=memory_mb, wall_seconds=WALL * seconds)
        self.states_at_once = sessions
        self.sessions = sessions + 1  # one more, to try it out

    def tasks(self) -> Iterator[Task]:
        """The problems in the order of their file."""
        return problems(self._data, self._template, _task)

    async def start(self) -> None:
        """Open the sandbox, and try a session: where there can be none, nobody should begin."""
        await super().start()
        async with self.box.session(snapshot=self._snapshot):
            return

    async def open(self, task: Task) -> Bench:
        """A session of its own, with the row's files."""
        files = {name: text.encode() for name, text in (task.fields.get("files") or {}).items()}
        session = self.box.session(snapshot=self._snapshot, files=files)
        await session.__aenter__()
        return Bench(session)

    @tool
    async def python(self, state: Bench, code: str) -> str:
        """Run Python code. Variables, functions and imports stay for later calls. Returns what is printed, and the
        value of a last line that is an expression.

        Args:
            code: The code to run.
        """
        result = await state.session.run(code)
        state.calls += 1
        state.errors += result.status != "ok"
        return shown(result, self.limits)

    async def outcome(self, state: Bench) -> JSON:
        """How often the tool was used, and how often that ended badly."""
        return {"calls": state.calls, "errors": state.errors}

    async def close(self, state: Bench) -> None:
        """End the session."""
        await state.session.__aexit__(None, None, None)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """1 for the right answer however it is written, else 0."""
        answer = concluded(rollout.text)
        right = answer is not None and same(answer, task.answer)
        return Score(float(right), answer=answer and canonical(answer))

    def solution(self, task: Task) -> list[str]:
        """One call that gives the answer back, then the answer."""
        call = {"name": "python", "arguments": {"code": f"print({task.answer!r})"}}
        return [json.dumps({"calls": [call]}), f"\\boxed{{{task.answer}}}"]


def _task(row: Row, template: Template | None) -> Task:
    task = row.task(INSTRUCTION, template)
    task.answer = expected(row)
    _check_files(task.fields.get("files") or {}, row.where)
    return task


def _check_files(files: JSON, where: str) -> None:
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise UsageError(f"{where}: files must be an object of names and texts")
    try:
        check_names(files)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
