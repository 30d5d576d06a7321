"""`rollbook check`, `score` and `reverify`: verifiers without a model; `verify`: whether a run directory is undamaged.

`check` reports whether an environment is sound, `score` scores one answer, `reverify` scores stored rollouts again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import msgspec
import typer

from rollbook.cli import options as o
from rollbook.cli.options import compose_options
from rollbook.cli.report_tables import Cell, show_json, show_numbers, show_table, strip_control_characters
from rollbook.cli.run_display import make_display
from rollbook.core import JSON, Limits, Settings
from rollbook.errors import RolloutFailed, Unsound, UsageError

if TYPE_CHECKING:
    from rollbook.checks import Soundness
    from rollbook.core import Rollout
    from rollbook.engine import ReverifyOnly, ReverifyResult


CheckedTasks = Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Check only the first N tasks.")]


@compose_options(limits=o.VERIFY_LIMITS, judge=o.JUDGE_SETTINGS)
def check_command(
    env: o.EnvironmentArg,
    limit: CheckedTasks = 200,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    allow_network: o.AllowNetwork = False,
    *,
    limits: Limits,
    judge_name: o.JudgeName = "",
    judge: dict[str, JSON],
    json: o.Json = False,
) -> None:
    from rollbook.checks import check_environment
    from rollbook.engine import load_environment
    from rollbook.processes import run_event_loop

    loaded = load_environment(env, data, prompt_template, allow_network)
    settings = Settings(**judge)
    result = run_event_loop(lambda: check_environment(loaded, limit, limits, settings, judge_name))
    show_soundness(result, json)
    if not result.sound:
        raise Unsound(f"{result.environment} is unsound: {'; '.join(finding.check for finding in result.faults)}")


def show_soundness(result: Soundness, as_json: bool) -> None:
    """Print every finding of a check."""
    if as_json:
        show_json(result.json())
        return
    rows: list[list[Cell]] = [[f.check, f.verdict, f.tasks or None, f.found, f.example] for f in result.findings]
    show_table([f"{result.environment}, {result.tasks} tasks", "verdict", "tasks", "found", "example"], rows)


OneTask = Annotated[str, typer.Argument(metavar="TASK", help="The id of a task.", show_default=False)]
AnswerFile = Annotated[
    str, typer.Option("--file", metavar="FILE", help="The file with the answer; - reads standard input.")
]


@compose_options(limits=o.VERIFY_LIMITS, judge=o.JUDGE_SETTINGS)
def score_command(
    env: o.EnvironmentArg,
    task: OneTask,
    file: AnswerFile = "-",
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    *,
    limits: Limits,
    judge_name: o.JudgeName = "",
    judge: dict[str, JSON],
    json: o.Json = False,
) -> None:
    from rollbook.engine import load_environment, run_answer
    from rollbook.processes import run_event_loop

    text = read_answer(file)
    settings = Settings(**judge)
    loaded = load_environment(env, data, prompt_template)
    rollout = run_event_loop(lambda: run_answer(loaded, task, text, limits, settings, judge_name))
    show_score(rollout, json)
    if rollout.failure:
        raise RolloutFailed(rollout.failure.kind, rollout.failure.where, rollout.failure.message)


def read_answer(file: str) -> str:
    """Read the text of a file or of standard input, byte for byte."""
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return raw.decode()
    except OSError as error:
        raise UsageError(f"--file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--file {file}: not UTF-8 (byte {error.start + 1})") from None


def show_score(rollout: Rollout, as_json: bool) -> None:
    """Print a score with its parts; a failure only as JSON, because the error line names it."""
    if as_json:
        show_json(describe_score(rollout))
    elif rollout.score:
        score = rollout.score
        rows: list[list[Cell]] = [["reward", f"{score.reward:g}"], ["answer", score.answer]]
        rows += [[f"part {name}", f"{value:g}"] for name, value in score.parts.items()]
        rows += [[f"info {name}", str(value)] for name, value in score.info.items()]
        rows += [["seconds", f"{rollout.timing.verify_s:.3f}"]]
        show_table(["score", rollout.task.id], rows)


def describe_score(rollout: Rollout) -> dict[str, JSON]:
    """Return a scored or failed rollout with the names of a journal line."""
    common: dict[str, JSON] = {"task": rollout.task.id, "verify_s": rollout.timing.verify_s, "ended": rollout.ended}
    if rollout.score is None:
        return {**common, "status": "failed", "failure": rollout.failure}
    score = rollout.score
    return {
        **common,
        "status": "scored",
        "reward": score.reward,
        "parts": score.parts,
        "answer": score.answer,
        "info": score.info,
    }


DAMAGED_EXIT = 3


def verify_command(run: o.Run, json: o.Json = False) -> None:
    from rollbook.book import verify_run

    found = verify_run(run)
    if json:
        show_json(msgspec.to_builtins(found))
    else:
        torn = f", {found.torn} with a torn end, which is not damage" if found.torn else ""
        damage = f"{len(found.damage)} damaged" if found.damage else "no damage"
        summary = f"{found.path}: {found.files} files, {found.lines} journal lines: {damage}{torn}"
        print("\n".join(map(strip_control_characters, [*map(str, found.damage), summary])))
    if found.damage:
        raise typer.Exit(DAMAGED_EXIT)


MAX_CHANGES_SHOWN = 10
VerifierEnvironment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="[NAME=]ENVIRONMENT",
        help="Score with the verifier of this environment instead; may be repeated.",
    ),
]
WhichRollouts = Annotated[str, typer.Option("--only", metavar="failed|scored|all", help="The rollouts to score again.")]
NewRun = Annotated[
    str | None,
    typer.Option(
        "-o", "--out", metavar="DIR", help="The new run directory. [default: RUN-reverified]", callback=o.check_path
    ),
]


@compose_options(judge=o.JUDGE_SETTINGS)
def reverify_command(
    run: o.Run,
    env: VerifierEnvironment = None,
    only: WhichRollouts = "all",
    out: NewRun = None,
    judge_name: o.JudgeName = "",
    *,
    judge: dict[str, JSON],
    json: o.Json = False,
) -> None:
    from rollbook.engine import reverify
    from rollbook.processes import run_event_loop
    from rollbook.reports import make_shortfall

    display = make_display()
    try:
        settings = Settings(retry=[], **judge)
        result = run_event_loop(
            lambda: reverify(run, out, env or [], cast("ReverifyOnly", only), display, settings, judge_name)
        )
    finally:
        display.stop()
    show_reverified(result, json)
    if result.report.scored < result.report.requested:
        raise make_shortfall(result.report)


def show_reverified(result: ReverifyResult, as_json: bool) -> None:
    """Print the new numbers, then what changed."""
    if as_json:
        show_json(result.json())
        return
    show_numbers(result.report, False)
    since = " by this command, the others by an earlier one" if result.went_on else ""
    print(f"{result.verified} rollouts verified again{since}, {result.changed} rewards changed")
    if result.changes:
        rows: list[list[Cell]] = [[c.task, c.sample, c.before, c.after] for c in result.changes[:MAX_CHANGES_SHOWN]]
        show_table(["changed", "sample", "before", "after"], rows)
        if result.changed > MAX_CHANGES_SHOWN:
            print(f"all of them: {result.path}/changes.jsonl")
