"""A desk with tools, state and a log of its life: each rollout has its own sum, and every open and close is noted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

SYNC = '''
import os, signal, time
from rollbook import Environment, Score, Task, tool


class Desk(Environment):
    def __init__(self, log="", tasks=4):
        self.log, self.count = log, tasks

    def note(self, *words):
        if self.log:
            with open(self.log, "a") as file:
                file.write(" ".join(map(str, words)) + "\\n")

    def tasks(self):
        for i in range(self.count):
            yield Task(id=f"desk-{i}", prompt=f"What is {i} + {i}?", answer=2 * i)

    def open(self, task):
        self.note("open", task.id, os.getpid())
        return {"task": task.id, "total": 0, "calls": 0}

    @tool
    def add(self, state, a: int, b: int = 0) -> int:
        """Add two numbers to the total."""
        state["calls"] += 1
        state["total"] += a + b
        return a + b

    @tool
    def echo(self, text: str) -> str:
        """Say it again."""
        return text

    @tool
    def whose(self, state) -> str:
        """Whose desk this is."""
        return state["task"]

    @tool
    def hang(self) -> str:
        """Never come back."""
        time.sleep(3600)

    @tool
    def die(self) -> str:
        """Take the process along."""
        os.kill(os.getpid(), signal.SIGKILL)

    @tool
    def fail(self, how: str) -> str:
        """Raise something."""
        raise {"value": ValueError, "key": KeyError, "lost": ConnectionError, "exit": SystemExit}[how]("so it is")

    @tool
    def thing(self) -> str:
        """No JSON."""
        return object()

    @tool
    def flood(self) -> str:
        """Ten megabytes."""
        return "x" * 10_000_000

    def outcome(self, state):
        return state

    def close(self, state):
        self.note("close", state["task"], os.getpid())

    def verify(self, task, rollout):
        assert rollout.outcome["task"] == task.id
        return Score(float(rollout.outcome["total"] == task.answer), answer=rollout.text)


class Talking(Desk):
    """Asks again until the answer is right, three times at most."""

    def open(self, task):
        return {**super().open(task), "asked": 0, "answer": task.answer}

    def reply(self, task, rollout, state):
        state["asked"] += 1
        if str(task.answer) == rollout.text or state["asked"] > 3:
            return None
        return f"No. Once more: {task.prompt}"

    def verify(self, task, rollout):
        return rollout.text == str(task.answer)
'''

ASYNC = (
    SYNC.replace("    def open", "    async def open")
    .replace("    @tool\n    def", "    @tool\n    async def")
    .replace("    def reply", "    async def reply")
    .replace("    def outcome", "    async def outcome")
    .replace("    def close", "    async def close")
    .replace("time.sleep", "await asyncio.sleep")
    .replace("super().open", "await super().open")
    .replace("import os,", "import asyncio, os,")
)


def write_desk(folder: Path, source: str = SYNC, name: str = "Desk", **arguments: object) -> str:
    """Write the environment; gives its spec, with a log beside it."""
    path = folder / "desk_env.py"
    path.write_text(source)
    given = {"log": str(folder / "desk.log"), **arguments}
    return f"{path}:{name}?" + "&".join(f"{key}={value}" for key, value in given.items())


def call(name: str, arguments: object = None, number: int = 0) -> dict[str, object]:
    """A tool call as a script has it; text is taken as it is."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": f"c{number}", "function": {"name": name, "arguments": text}}


def write_talk(folder: Path, talks: dict[str, list[object]], **extra: object) -> str:
    """A script: what each task is answered, turn by turn; text, a call, or a list of calls. Gives its target."""
    lines = []
    for task, said in talks.items():
        for one in said:
            calls = [one] if isinstance(one, dict) else one
            says = {"answer": one} if isinstance(one, str) else {"tool_calls": calls}
            lines.append(json.dumps({"task": task, "sample": 0, **says, **extra}))
    path = folder / "talk.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return f"scripted:{path}"


def life(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """How often each task's state was opened and closed."""
    words = [line.split() for line in (folder / "desk.log").read_text().splitlines()]
    return (
        Counter(task for what, task, _ in words if what == "open"),
        Counter(task for what, task, _ in words if what == "close"),
    )
