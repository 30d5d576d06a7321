"""The commands of the command line as Python functions, with the same parameters and defaults.

Each blocks until its work is done, in a notebook too. What is wrong raises a UsageError of one line. `run`, `check`,
`score`, `submit` and `load` are in the packages that do their work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from rollbook.clusters import choose_cluster
from rollbook.core import JSON, Limits, Rollout, Sampling, Settings, StartOptions, ToolFormat
from rollbook.engine import (
    Display,
    Hooks,
    LogTarget,
    Progress,
    Request,
    ReverifyOnly,
    ReverifyResult,
    RunResult,
    SilentDisplay,
    as_list,
    as_text,
    claim_run_folder,
    extend_run,
    join_run,
    make_sampling,
    observe_work,
    plan_request,
    release_run_folder,
    resume_run,
    update_settings,
)
from rollbook.engine import reverify as reverify_run
from rollbook.environments import Environment
from rollbook.errors import UsageError
from rollbook.processes import run_blocking
from rollbook.reports import (
    ExportCounts,
    ProfileFile,
    Report,
    Run,
    RunComparison,
    RunData,
    build_report,
    check_measures,
    compare_runs,
    export_rollouts,
    make_shortfall,
    upload_rollouts,
    write_curated,
    write_profile,
)
from rollbook.stats import PASS_THRESHOLD, CurateOptions, Expression

RunPath: TypeAlias = str | PathLike[str]
"""A run directory: its path, or what `run` and `load` return."""


def plan(
    env: str | Environment | type[Environment],
    model: str | Sequence[str] = (),
    *,
    model_name: str = "",
    samples: int = 1,
    limit: int | None = None,
    out: str | PathLike[str] | None = None,
    seed: int = 0,
    data: str | PathLike[str] | None = None,
    template: str | PathLike[str] | None = None,
    tasks: list[str] | None = None,
    sample: int | None = None,
    judge: str | Sequence[str] = (),
    judge_name: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    sampling: Sampling | Mapping[str, JSON] = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    tool_format: Literal["auto"] | ToolFormat = "auto",
    agent: str = "",
    allow_network: bool = False,
    continue_tokens: bool = False,
    **settings: JSON,
) -> Path:
    """Write a run directory and return its path; no model is asked. `work` does the work, here or elsewhere.

    The parameters are those of `run`. Because no endpoint is asked, `model_name` has to be given where the model's
    target does not name it.
    """
    request = Request(
        env=env,
        model=as_list(model),
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=as_text(out, "out") or "",
        seed=seed,
        data=as_text(data, "data"),
        template=as_text(template, "template"),
        tasks=tasks,
        sample=sample,
        judge=as_list(judge, "judge"),
        judge_name=judge_name,
        sampling=make_sampling(sampling, temperature=temperature, top_p=top_p, max_tokens=max_tokens),
        limits=limits,
        settings=update_settings(Settings(), settings),
        tool_format=tool_format,
        agent=agent,
        allow_network=allow_network,
        continue_tokens=continue_tokens,
    )
    folder = claim_run_folder(env) if out is None else Path(out)
    try:
        return plan_request(msgspec.structs.replace(request, out=str(folder)))
    finally:
        release_run_folder(folder)


def work(
    run: RunPath,
    *,
    allow_shortfall: bool = False,
    on_rollout: Callable[[Rollout], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_end: Callable[[Run], object] | None = None,
    log: Sequence[LogTarget] = (),
    progress: bool = True,
    **settings: JSON,
) -> RunResult:
    """Join a run that is planned or in progress as one more worker; returns when the run is finished.

    Hooks, `log` and `progress` are those of `run`.
    """

    async def join(display: Display) -> RunResult:
        return await join_run(Path(run), settings, display, allow_shortfall=allow_shortfall)

    hooks = Hooks(on_rollout, on_progress, on_end)
    return run_blocking(observe_work(Path(run), join, hooks, log, progress=progress))


def resume(
    run: RunPath,
    *,
    retry: list[str] | None = None,
    on: Literal["local"] | None = None,
    wait_s: float = 0.0,
    probe: bool = True,
    allow_shortfall: bool = False,
    on_rollout: Callable[[Rollout], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_end: Callable[[Run], object] | None = None,
    log: Sequence[LogTarget] = (),
    progress: bool = True,
    **settings: JSON,
) -> RunResult:
    """Finish exactly what is missing, and try failures again: those of the infrastructure, or what `retry` names.

    `settings` that are not given stay as they were at the last start. A run that was submitted to a cluster is resumed
    on this machine with `on="local"`. Hooks, `log` and `progress` are those of `run`.
    """
    changes, start = _choose_settings(run, on, settings, "resume"), StartOptions(wait_s=wait_s, probe=probe)

    async def finish(display: Display) -> RunResult:
        return await resume_run(Path(run), changes, retry, display, start, allow_shortfall=allow_shortfall)

    hooks = Hooks(on_rollout, on_progress, on_end)
    return run_blocking(observe_work(Path(run), finish, hooks, log, progress=progress))


def extend(
    run: RunPath,
    samples: int,
    *,
    on: Literal["local"] | None = None,
    wait_s: float = 0.0,
    probe: bool = True,
    allow_shortfall: bool = False,
    on_rollout: Callable[[Rollout], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_end: Callable[[Run], object] | None = None,
    log: Sequence[LogTarget] = (),
    progress: bool = True,
    **settings: JSON,
) -> RunResult:
    """Run every task until it has `samples` rollouts, earlier ones included; otherwise as `resume`."""
    changes, start = _choose_settings(run, on, settings, "extend"), StartOptions(wait_s=wait_s, probe=probe)

    async def add_samples(display: Display) -> RunResult:
        return await extend_run(Path(run), samples, changes, display, start, allow_shortfall=allow_shortfall)

    hooks = Hooks(on_rollout, on_progress, on_end)
    return run_blocking(observe_work(Path(run), add_samples, hooks, log, progress=progress))


def _choose_settings(run: RunPath, on: str | None, settings: dict[str, JSON], command: str) -> dict[str, JSON]:
    """Return the settings for this machine; refuse a run whose workers are jobs, which the command line submits."""
    place, changes = choose_cluster(Path(run), on, settings)
    if place:
        way = f'`rollbook {command} {Path(run)}` continues there, on="local" on this machine'
        raise UsageError(f"{Path(run)} was submitted to {place}: {way}")
    return changes


def report(run: RunPath, *more: RunPath, at: Sequence[int] | None = None, threshold: float = PASS_THRESHOLD) -> Report:
    """Return the numbers of a run, finished or not; `more` are other directories of the same run.

    `at` are the K of pass@K, by default powers of two; a rollout passes with a reward of at least `threshold`.
    """
    ks, least = check_measures(at, threshold)
    return build_report(RunData([Path(each) for each in (run, *more)]), ks, least)


def compare(
    a: RunPath,
    b: RunPath,
    *,
    common: bool = False,
    at: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    seed: int = 0,
) -> RunComparison:
    """Compare two runs of the same tasks; with `common`, of the tasks that both have."""
    ks, least = check_measures(at, threshold)
    return compare_runs(Path(a), Path(b), common=common, ks=ks, threshold=least, seed=seed)


def profile(
    run: RunPath,
    *more: RunPath,
    out: str | Path | None = None,
    at: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    prefix: str = "",
) -> ProfileFile:
    """Write the tasks of a run with their numbers to a .jsonl, .csv or .parquet file, by default RUN/profile.jsonl."""
    return write_profile([Path(each) for each in (run, *more)], out, at, threshold, prefix)


class CuratedFile(msgspec.Struct, frozen=True):
    """What `curate` selected: of `rows` tasks `matched` were kept by the filter, and `written` are in the file."""

    path: Path
    rows: int
    matched: int
    written: int


def curate(
    source: RunPath,
    out: str | Path,
    *,
    keep: str | None = None,
    sort: str | None = None,
    desc: bool = False,
    bucket: str | None = None,
    per_bucket: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    at: Sequence[int] | None = None,
    threshold: float = PASS_THRESHOLD,
    prefix: str = "",
) -> CuratedFile:
    """Select tasks of a profile, or of a run, into a .jsonl file for `data=`; nothing is written where none is left."""
    options = CurateOptions.parse(keep, sort, bucket, descending=desc, per_bucket=per_bucket, limit=limit, seed=seed)
    made = write_curated(Path(source), out, options, at, threshold, prefix)
    return CuratedFile(Path(out), made.rows, made.matched, len(made.lines))


class ExportResult(msgspec.Struct, frozen=True):
    """What `export` wrote: the file, folder or dataset, and how many rollouts were written and left out."""

    place: str
    counts: ExportCounts


def export(
    run: RunPath,
    out: str | Path | None = None,
    *,
    format: str = "jsonl",
    keep: str | None = None,
    to: str | None = None,
    license: str | None = None,
) -> ExportResult:
    """Write the rollouts of a run to a file, or to a dataset on the Hugging Face Hub.

    `format` is jsonl, parquet, csv, sft or gym. `keep` selects rollouts, such as "reward >= 1". `to` is hf://ORG/NAME;
    `license` is written on the dataset card.
    """
    if (out is None) == (to is None):
        raise UsageError("export writes to one place: give -o FILE or --to hf://ORG/NAME")
    if license is not None and to is None:
        raise UsageError(f"--license {license}: goes with --to, which writes a dataset card")
    wanted = None if keep is None else Expression(keep)
    if to is not None:
        if format not in ("jsonl", "parquet"):  # the default is for files
            raise UsageError(f"--format {format}: --to uploads Parquet files; leave it out")
        uploaded = upload_rollouts(Path(run), to, wanted, license or "unknown")
        return ExportResult(uploaded.url, uploaded.counts)
    place = Path(str(out))
    if format == "gym":
        from rollbook.gym.client import export_gym

        return ExportResult(str(place), export_gym(Path(run), place, wanted))
    return ExportResult(str(place), export_rollouts(Path(run), format, place, wanted))


def reverify(
    run: RunPath,
    out: str | Path | None = None,
    *,
    env: str | Sequence[str] = (),
    only: ReverifyOnly = "all",
    judge: str | Sequence[str] = (),
    judge_name: str = "",
    allow_shortfall: bool = False,
    **settings: JSON,
) -> ReverifyResult:
    """Score the stored rollouts of a run again into a new run, by default RUN-reverified; no model is asked.

    `env` is an environment whose verifier is used instead, `NAME=ENVIRONMENT` where the run has several.
    """
    own = update_settings(Settings(retry=[]), {**settings, "judge_urls": as_list(judge, "judge")})
    result = run_blocking(
        lambda: reverify_run(Path(run), out, as_list(env, "env"), only, SilentDisplay(), own, judge_name)
    )
    if result.report.scored < result.report.requested and not allow_shortfall:
        raise make_shortfall(result.report)
    return result
