"""IFEval: 541 prompts with instructions that rules can decide (Zhou et al., 2023), scored strictly and loosely."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from rollbook.core import JSON, Rollout, Score, Task
from rollbook.environments.answers.extraction import strip_thinking
from rollbook.environments.builtin.instruction_rules import RULES, follows, follows_loosely
from rollbook.environments.data_rows import DataRow, PromptTemplate, choose_template, rows
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError

_SHIPPED_DATA = Path(__file__).with_name("data") / "ifeval.jsonl.gz"


class IFEval(Environment):
    """Prompts such as "write a summary of more than 300 words, without commas", with one to three instructions each.

    The reward is strict and for the whole prompt. Parts have the loose verdict, in which introductions, closing lines
    and asterisks do not count, and how many instructions were followed strictly and loosely.
    """

    description = "541 prompts with 834 instructions that rules can check, strict and loose (Zhou et al., 2023)"
    kind = "benchmark"
    judges_form = True
    prompt_template = "{prompt}"
    row_fields: ClassVar = {
        "prompt": "the request, with its instructions",
        "instruction_id_list": f"the kinds of its instructions, of {len(RULES)}",
        "kwargs": "the arguments of each",
        "key": "its number in IFEval",
    }

    def __init__(self, template: str | None = None) -> None:
        self._template = template

    def tasks(self) -> Iterator[Task]:
        """Yield the prompts in the order of their file, under their own numbers: ifeval-1000 and so on."""
        if find_spec("langdetect") is None:
            raise UsageError("ifeval needs a package to detect languages; pip install 'rollbook[ifeval]'")
        template = choose_template(self._template, self.prompt_template)
        for row in rows(_SHIPPED_DATA):
            yield _make_task(row, template)

    def verify(self, task: Task, rollout: Rollout) -> Score:
        """Score 1 if every instruction is followed strictly, else 0; parts report the loose verdict too."""
        text = read_response(rollout.text)
        instructions = [(each["kind"], each["arguments"]) for each in task.instructions]
        strict = [follows(text, kind, arguments) for kind, arguments in instructions]
        # What is followed strictly is followed loosely: the answer itself is one of the loose texts.
        loose = [done or follows_loosely(text, *each) for done, each in zip(strict, instructions, strict=True)]
        parts = {
            "strict": float(all(strict)),
            "loose": float(all(loose)),
            "instructions": len(instructions),
            "followed_strictly": sum(strict),
            "followed_loosely": sum(loose),
        }
        missed = [kind for (kind, _), done in zip(instructions, strict, strict=True) if not done]
        return Score(parts["strict"], parts, info={"missed": missed} if missed else {})


def _make_task(row: DataRow, template: PromptTemplate) -> Task:
    values = row.values
    instructions: list[JSON] = [
        {"kind": kind, "arguments": {name: value for name, value in arguments.items() if value is not None}}
        for kind, arguments in zip(values["instruction_id_list"], values["kwargs"], strict=True)
    ]
    return Task(f"ifeval-{values['key']}", template.fill(values, row.where), instructions=instructions)


def read_response(text: str) -> str:
    """Return the answer without thoughts, and without the empty lines between them and it.

    >>> read_response("<think>Hm</think>\\n\\nPARIS\\n")
    'PARIS\\n'
    """
    answer = strip_thinking(text)
    return answer.lstrip("\n") if len(answer) < len(text) else text
