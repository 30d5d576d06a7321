"""`rollbook score`: what one given answer is worth, without a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.cli.tables import Cell, show_json, show_table
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Settings
from rollbook.errors import RolloutFailed, UsageError

if TYPE_CHECKING:
    from rollbook.core.rollout import Rollout

OneTask = Annotated[str, typer.Argument(metavar="TASK", help="The id of a task.", show_default=False)]
Answer = Annotated[str, typer.Option("--file", metavar="FILE", help="The answer to score; - reads standard input.")]


@gathered("given", o.judged)
def command(
    env: o.Target,
    task: OneTask,
    file: Answer = "-",
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    verify_timeout: o.VerifyTimeout = o.LIMITS.verify_s,
    judge_name: o.JudgeName = "",
    *,
    given: dict[str, JSON],
    json: o.Json = False,
) -> None:
    from rollbook.collect.loop import on_fast_loop
    from rollbook.collect.member import found
    from rollbook.collect.score import play

    o.finite(verify_timeout=verify_timeout)
    text = read_answer(file)
    limits, settings = Limits(verify_s=verify_timeout), Settings(**given)
    loaded = found(env, data, prompt_template)
    rollout = on_fast_loop(lambda: play(loaded, task, text, limits, settings, judge_name))
    show(rollout, json)
    if rollout.failure:
        raise RolloutFailed(rollout.failure.kind, rollout.failure.where, rollout.failure.message)


def read_answer(file: str) -> str:
    """The text of a file or of standard input, byte for byte."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise UsageError(f"--file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--file {file}: not UTF-8 (byte {error.start + 1})") from None


def show(rollout: Rollout, as_json: bool) -> None:
    """The score with all it is made of; of a failure only JSON says anything here, for the error line tells it."""
    if as_json:
        show_json(described(rollout))
    elif rollout.score:
        score = rollout.score
        rows: list[list[Cell]] = [["reward", f"{score.reward:g}"], ["answer", score.answer]]
        rows += [[f"part {name}", f"{value:g}"] for name, value in score.parts.items()]
        rows += [[f"info {name}", str(value)] for name, value in score.info.items()]
        rows += [["seconds", f"{rollout.timing.verify_s:.3f}"]]
        show_table(["score", rollout.task.id], rows)


def described(rollout: Rollout) -> dict[str, JSON]:
    """A scored or failed rollout by the names that a journal line has."""
    found: dict[str, JSON] = {"task": rollout.task.id, "verify_s": rollout.timing.verify_s, "ended": rollout.ended}
    if rollout.score is None:
        return {**found, "status": "failed", "failure": rollout.failure}
    score = rollout.score
    return {
        **found,
        "status": "scored",
        "reward": score.reward,
        "parts": score.parts,
        "answer": score.answer,
        "info": score.info,
    }
