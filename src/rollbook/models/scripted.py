"""The scripted model: replays answers from a JSONL file, for tests and load. It is never taken for a real model."""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Unpack

import msgspec

from rollbook.core import JSON_ERRORS, Message, ModelSpec, Sampling, Settings, ToolCall, Turn, iterate_lines
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.model import Completion, Model, ModelCall
from rollbook.models.server_errors import WHERE, check_logprobs


class ScriptLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a script: what to answer, and when.

    With `task` (and `sample`) it is for that task's rollouts, with `prompt` for conversations whose last user message
    is that text, else for any. The closest match wins. Lines that match equally are used in rotation: by the seed, and
    one further with each turn of the conversation.
    """

    answer: str | None = None
    task: str | None = None
    sample: int | None = None
    prompt: str | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning: str | None = None
    finish_reason: str = "stop"
    delay_s: float = 0.0
    prompt_ids: list[int] | None = None
    ids: list[int] | None = None
    logprobs: list[float] | None = None

    def __post_init__(self) -> None:
        if self.answer is None and not self.tool_calls:
            raise ValueError("neither `answer` nor `tool_calls`")
        if self.sample is not None and self.task is None:
            raise ValueError("`sample` without `task`")
        if self.task is not None and self.prompt is not None:
            raise ValueError("both `task` and `prompt`")
        if len({self.ids is None, self.logprobs is None, self.prompt_ids is None}) > 1:
            raise ValueError("`prompt_ids`, `ids` and `logprobs` go together")

    @property
    def key(self) -> tuple[str, str]:
        """The key under which the line is found."""
        if self.task is not None:
            return ("task", self.task) if self.sample is None else ("rollout", f"{self.task}#{self.sample}")
        return ("any", "") if self.prompt is None else ("prompt", self.prompt)


class ScriptedModel(Model):
    """Answers from the file that the settings' URL names as scripted:FILE."""

    def __init__(self, spec: ModelSpec, settings: Settings) -> None:
        self.spec = spec
        self.version: str | None = None
        self._path = parse_script_path(settings.urls)
        self._call_s = settings.call_s
        self._lines: dict[tuple[str, str], list[ScriptLine]] = {}

    async def open(self) -> None:
        """Read the file; UsageError if it is not the one that the run was planned with."""
        if self.spec.digest and hash_script(self._path) != self.spec.digest:
            raise UsageError(f"{self._path}: the script has changed since the run was planned; start a new run")
        self._lines = read_script(self._path)

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Answer once, from the script."""
        started, version = perf_counter(), self.version
        line = self._find_line(messages, call["seed"], call["rollout"])
        if line.delay_s:
            await asyncio.sleep(min(line.delay_s, self._call_s))
        if line.delay_s > self._call_s:
            raise RolloutFailed("model_timeout", WHERE, f"no answer in {self._call_s:g} s")
        message = Message("assistant", line.answer, line.reasoning, line.tool_calls)
        return Completion(message, _make_turn(line, perf_counter() - started, version))

    def _find_line(self, messages: Sequence[Message], seed: int, rollout: str) -> ScriptLine:
        prompt = next((m.text for m in reversed(messages) if m.role == "user"), "")
        turn = sum(m.role == "assistant" for m in messages)
        task = rollout.rpartition("#")[0]
        for key in (("rollout", rollout), ("task", task), ("prompt", prompt), ("any", "")):
            if lines := self._lines.get(key):
                return lines[(turn if key[0] == "rollout" else seed + turn) % len(lines)]
        raise RolloutFailed("model_rejected", WHERE, f"{self._path.name} has no answer for {rollout}")


def parse_script_path(targets: Sequence[str]) -> Path:
    """Return the file of scripted:FILE."""
    return Path(targets[0].removeprefix("scripted:")).expanduser().absolute()


def hash_script(path: Path) -> str:
    """Return the sha256 of a script; UsageError if it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"-m scripted:{path}: {error.strerror}; give a JSONL file of answers") from None


def read_script(path: Path) -> dict[tuple[str, str], list[ScriptLine]]:
    """Return all lines by their key; UsageError with file and line for a malformed one."""
    found: dict[tuple[str, str], list[ScriptLine]] = defaultdict(list)
    try:
        with open(path, "rb") as file:
            for number, _, row in iterate_lines(file):
                line = _read_line(row, f"{path}:{number}")
                found[line.key].append(line)
    except OSError as error:
        raise UsageError(f"-m scripted:{path}: {error.strerror}; give a JSONL file of answers") from None
    if not found:
        raise UsageError(f"{path}: the script has no answers; write lines like {{'answer': '42'}}".replace("'", '"'))
    return dict(found)


def _read_line(row: bytes, where: str) -> ScriptLine:
    try:
        return msgspec.json.decode(row, type=ScriptLine)
    except JSON_ERRORS as error:
        raise UsageError(f"{where}: not a line of a script: {error}") from None


def _make_turn(line: ScriptLine, seconds: float, version: str | None) -> Turn:
    if line.ids is None or line.logprobs is None or line.prompt_ids is None:
        return Turn(finish_reason=line.finish_reason, seconds=seconds, model_version=version)
    logprobs = check_logprobs(line.prompt_ids, line.ids, line.logprobs)
    counts = len(line.prompt_ids), len(line.ids)
    return Turn(line.prompt_ids, line.ids, logprobs, *counts, line.finish_reason, seconds, version)
