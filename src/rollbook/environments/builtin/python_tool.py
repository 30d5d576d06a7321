"""Problems solved with a Python session: the model calls a stateful tool, then gives its answer.

The model gets the result of a call as bounded text that says what was left out or lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import ClassVar

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.answers.comparison import canonicalize, is_same_answer
from rollbook.environments.answers.extraction import extract_math_answer
from rollbook.environments.builtin.gsm8k import read_problems
from rollbook.environments.builtin.math import read_expected_answer
from rollbook.environments.data_rows import DataRow, PromptTemplate
from rollbook.environments.sandboxed import Sandboxed
from rollbook.environments.tools import tool
from rollbook.errors import UsageError
from rollbook.sandbox import Limits, ProgramError, Result, Session, check_names

PART_CHARS = 4000
"""How many characters of the output, of the value and of the error are shown, half from each end."""

_ENDS = {
    "memory": "Stopped: it needed more than {memory_mb} MB of memory.",
    "output": "Stopped: it printed without end.",
    "crash": "The Python process crashed.",
    "killed": "The Python process was killed.",
}


def render_result(result: Result, limits: Limits) -> str:
    """Return the result of a call as text for the model: its parts in the order in which they happened."""
    parts = [
        "Earlier variables were lost; this call began afresh." if result.restarted else "",
        truncate_middle(result.stdout.rstrip()),
        f"Printed to stderr:\n{truncate_middle(result.stderr.rstrip())}" if result.stderr.strip() else "",
        "More was printed than is kept." if result.truncated else "",
        f"Value: {truncate_middle(result.value)}" if result.value is not None else "",
        _describe_end(result, limits),
        _describe_state(result),
    ]
    return "\n".join(filter(None, parts)) or "Done; nothing was printed."


def _describe_end(result: Result, limits: Limits) -> str:
    if result.status == "ok":
        return ""
    if result.status == "timeout":
        return f"Stopped: it took longer than {limits.seconds:g} s of CPU time, or {limits.wall_s:g} s by the clock."
    if result.status == "error":
        return _describe_error(result.error)
    return _ENDS.get(result.status, f"Stopped: {result.status}.").format(memory_mb=limits.memory_mb)


def _describe_error(error: ProgramError | None) -> str:
    if error is None:
        return "It ended with an exit code."
    return truncate_middle(error.traceback.rstrip() or f"{error.type}: {error.message}")


def _describe_state(result: Result) -> str:
    if result.state == "rolled back":
        return "Variables are as they were before this call."
    return "All variables are lost; the next call begins afresh." if result.state == "lost" else ""


def truncate_middle(text: str, chars: int = PART_CHARS) -> str:
    """Return both ends of a text that is too long, and how much is missing between them.

    >>> truncate_middle("0123456789", 4)
    '01\\n[6 characters left out]\\n89'
    """
    if len(text) <= chars:
        return text
    half = chars // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


INSTRUCTION = (
    "You can run Python with the tool `python`. Its variables stay from call to call; print what you want to see. "
    "When you know the answer, give it in \\boxed{}."
)

WALL_FACTOR = 3
"""The wall time limit of a call as a multiple of its CPU time limit."""


class PythonToolState:
    """The state of one rollout: its session, and how often it was used."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.calls = self.errors = 0


class PythonTool(Sandboxed):
    """Rows with a problem and an answer from `data` (else GSM8K), solved with a stateful `python` tool.

    A row's `files` (name: text) are put in the session's folder. A call that reaches a limit is undone, and its result
    says so; `snapshot=false` is cheaper, but then all variables are lost. `packages` can be imported, if installed.
    """

    kind = "rows"
    description = "math and data problems, solved with a Python session as a tool (--data rows, else GSM8K)"
    row_fields: ClassVar = {
        "problem": "the problem; also called question, prompt or messages",
        "answer": "the right answer; also called expected_answer",
        "files": "optional: texts by file name, put into the folder of the session",
    }
    example_row: ClassVar = {
        "problem": "What is the sum of the numbers in numbers.txt?",
        "answer": "6",
        "files": {"numbers.txt": "1 2 3"},
    }

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
        self.limits = Limits(seconds=seconds, memory_mb=memory_mb, wall_seconds=WALL_FACTOR * seconds)
        self.states_at_once = sessions
        self.sessions = sessions + 1  # one more for the trial in start()

    def tasks(self) -> Iterator[Task]:
        """Yield the problems in the order of their file."""
        return read_problems(self._data, self._template, _make_task)

    async def start(self) -> None:
        """Open the sandbox and try a session: where none can be opened, no rollout should start."""
        await super().start()
        async with self.box.session(snapshot=self._snapshot):
            return

    async def open(self, task: Task) -> PythonToolState:
        """Open a session for this rollout, with the row's files."""
        files = {name: text.encode() for name, text in (task.fields.get("files") or {}).items()}
        session = self.box.session(snapshot=self._snapshot, files=files)
        await session.__aenter__()
        return PythonToolState(session)

    @tool
    async def python(self, state: PythonToolState, code: str) -> str:
        """Run Python code. Variables, functions and imports stay for later calls. Returns what is printed, and the
        value of a last line that is an expression.

        Args:
            code: The code to run.
        """
        result = await state.session.run(code)
        state.calls += 1
        state.errors += result.status != "ok"
        return render_result(result, self.limits)

    async def outcome(self, state: PythonToolState) -> JSON:
        """Return how often the tool was called, and how many calls failed."""
        return {"calls": state.calls, "errors": state.errors}

    async def close(self, state: PythonToolState) -> None:
        """End the session."""
        await state.session.__aexit__(None, None, None)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 for the right answer, however it is written, else 0."""
        answer = extract_math_answer(rollout.text)
        right = answer is not None and is_same_answer(answer, task.answer)
        return Score(float(right), answer=answer and canonicalize(answer))

    def solution(self, task: Task) -> list[str]:
        """Return a turn with one call that prints the answer, then the answer."""
        call = {"name": "python", "arguments": {"code": f"print({task.answer!r})"}}
        return [json.dumps({"calls": [call]}), f"\\boxed{{{task.answer}}}"]


def _make_task(row: DataRow, template: PromptTemplate | None) -> Task:
    task = row.task(INSTRUCTION, template)
    task.answer = read_expected_answer(row)
    _check_files(task.fields.get("files") or {}, row.where)
    return task


def _check_files(files: JSON, where: str) -> None:
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise UsageError(f"{where}: files must be an object of names and texts")
    try:
        check_names(files)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
