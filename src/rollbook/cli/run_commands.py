"""`rollbook run`, `plan`, `work`, `submit`, `resume` and `extend`: start and continue runs, here or on a cluster.

`run` plans, works and reports; with --on slurm --wait it waits for the jobs. `submit` plans here and works on a
cluster. `resume` finishes exactly what is missing, `extend` adds samples of every task, both here or on the cluster
that the run was submitted to; a run on Ray goes on as it was started, here or with a driver on the cluster.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rollbook.cli import options as o
from rollbook.cli.cluster_options import (
    Address,
    Cluster,
    ClusterOptions,
    On,
    check_place,
    choose_cluster,
    collect_cluster_options,
    is_scheduler,
    make_order,
    refuse_cluster_options,
)
from rollbook.cli.options import compose_options
from rollbook.cli.run_display import run_with_display
from rollbook.cli.tables import show_json
from rollbook.core import JSON, Limits, Sampling, Settings, ToolFormat
from rollbook.engine import Display, Request
from rollbook.environments import brings_own_model
from rollbook.errors import UsageError
from rollbook.models import EMBEDDED_SLOTS

if TYPE_CHECKING:
    from rollbook.clusters import ClusterJob, Submission, SubmissionOrder
    from rollbook.engine import RunResult


@compose_options("given", o.collect_settings)
def make_request(
    env: o.EnvironmentOrBlendArg,
    samples: o.Samples = 1,
    limit: o.Limit = None,
    out: o.Out = None,
    model_name: o.ModelName = "",
    judge_name: o.JudgeName = "",
    *,
    given: dict[str, JSON],
    temperature: o.Temperature = o.SAMPLING.temperature,
    top_p: o.TopP = o.SAMPLING.top_p,
    max_tokens: o.MaxTokens = o.SAMPLING.max_tokens,
    sampling: o.ExtraSampling = None,
    seed: o.Seed = 0,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    task: o.TaskId = None,
    sample: o.SampleIndex = None,
    timeout: o.Timeout = o.LIMITS.rollout_s,
    verify_timeout: o.VerifyTimeout = o.LIMITS.verify_s,
    max_turns: o.MaxTurns = o.LIMITS.max_turns,
    max_tokens_total: o.MaxTokensTotal = None,
    agent: o.AgentName = "",
    tool_format: o.ToolFormatName = "auto",
    continue_tokens: o.ContinueTokens = False,
    tool_timeout: o.ToolTimeout = o.LIMITS.tool_s,
    tool_chars: o.ToolChars = o.LIMITS.tool_chars,
    stop_repeats: o.StopRepeats = None,
) -> Request:
    """The request of a command line; a run directory is always named, so that it can be shown whatever happens."""
    o.check_finite(temperature=temperature, top_p=top_p, timeout=timeout)
    o.check_finite(verify_timeout=verify_timeout, tool_timeout=tool_timeout)
    urls = list(given.get("urls", []))
    first: dict[str, JSON] = {} if urls or brings_own_model(env) else {"concurrency": EMBEDDED_SLOTS}
    return Request(
        env=env,
        model=urls,
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=out or str(choose_run_folder(env)),
        seed=seed,
        sampling=Sampling(temperature, top_p, max_tokens, o.parse_sampling(sampling)),
        limits=Limits(
            verify_s=verify_timeout,
            tool_s=tool_timeout,
            rollout_s=timeout,
            max_turns=max_turns,
            max_tokens_total=max_tokens_total,
            tool_chars=tool_chars,
            stop_repeats=stop_repeats,
        ),
        agent=agent,
        tool_format=cast(ToolFormat, tool_format),
        continue_tokens=continue_tokens,
        settings=Settings(**first | given),
        data=data,
        template=prompt_template,
        judge=list(given.get("judge_urls", [])),
        judge_name=judge_name,
        tasks=task,
        sample=sample,
    )


def choose_run_folder(env: str) -> Path:
    """A run directory that does not exist yet: runs/ENVIRONMENT-TIME."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", env.partition("?")[0]).strip("-.") or "run"
    stem = Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 100))]
    return next((folder for folder in candidates if not folder.exists()), stem)


Wait = Annotated[bool, typer.Option("--wait", help="With --on slurm: wait for the jobs, and end as they do.")]


@compose_options("orders", collect_cluster_options)
@compose_options("request", make_request)
def run_command(
    request: Request, orders: ClusterOptions, typed: typer.Context, wait: Wait = False, json: o.Json = False
) -> None:
    from rollbook.engine import run_request

    if is_scheduler(orders.on):
        if not wait:
            way = "add --wait to wait for the jobs, or submit them with rollbook submit"
            raise UsageError(f"run --on {orders.on}: {way}")
        run_with_display(request.out, lambda display: _submit_and_wait(request, orders, typed, display), json)
        return
    if wait:
        raise UsageError("--wait: goes with --on slurm; all other work is waited for anyway")
    if orders.on == "ray":
        run_with_display(request.out, lambda display: _run_on_ray(request, orders, typed, display), json)
        return
    refuse_cluster_options(orders)
    run_with_display(request.out, lambda display: run_request(request, display), json)


def _run_on_ray(request: Request, orders: ClusterOptions, typed: typer.Context, display: Display) -> RunResult:
    """Run with workers that are actors."""
    from rollbook.clusters.ray import run_on_ray

    asked, order = make_order(orders, request, typed)
    return run_on_ray(asked, order, orders.pack, display)


def _submit_and_wait(request: Request, orders: ClusterOptions, typed: typer.Context, display: Display) -> RunResult:
    """Submit, wait, and say what came of it."""
    from rollbook.clusters import submit_request, wait_for_jobs

    asked, order = make_order(orders, request, typed)
    sent = submit_request(asked, order, orders.pack, display.note)
    ids = ", ".join(f"{job.kind} {job.job}" for job in sent.jobs)
    display.note(f"{ids}; they go on without this terminal: rollbook status {sent.path}")
    return wait_for_jobs(sent.path, display)


@compose_options("request", make_request)
def plan_command(request: Request) -> None:
    from rollbook.engine import plan_request

    run = plan_request(request, lambda line: print(line, file=sys.stderr))
    print(run)
    print(f"next: rollbook work {run}", file=sys.stderr)


@compose_options("given", o.collect_settings)
def work_command(run: o.StartedRun, given: dict[str, JSON], json: o.Json = False) -> None:
    from rollbook.engine import work

    run_with_display(run, lambda display: work(run, given, display), json)


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the scripts; write and submit nothing.")]


@compose_options("orders", collect_cluster_options)
@compose_options("request", make_request)
def submit_command(
    request: Request, orders: ClusterOptions, typed: typer.Context, dry_run: DryRun = False, json: o.Json = False
) -> None:
    from rollbook.clusters import submit_request

    if orders.on == "local":
        raise UsageError("--on local: there is nobody to submit to; rollbook run --workers N works on this machine")
    request, order = make_order(orders, request, typed)
    if order.ray:
        _submit_to_ray(request, order, orders.pack, dry_run, json)
        return
    if dry_run:
        show_scripts(request, order, orders.pack, json)
        return
    show_submission(submit_request(request, order, orders.pack, print_note), json)


def _submit_to_ray(request: Request, order: SubmissionOrder, pack: Path | None, dry_run: bool, json: bool) -> None:
    """Leave a run to a foreman on a Ray cluster."""
    from rollbook.clusters.ray import submit_to_ray

    if dry_run:
        raise UsageError("--dry-run: shows the scripts for Slurm; Ray is given none")
    show_submission(submit_to_ray(request, order, pack, print_note), json)


def print_note(line: str) -> None:
    """What is to be known besides."""
    print(line, file=sys.stderr)


def show_scripts(request: Request, order: SubmissionOrder, pack: Path | None, as_json: bool) -> None:
    """The scripts as they would be handed in, by their paths."""
    from rollbook.clusters import find_run_path, preview_scripts

    run = find_run_path(request, order)
    scripts = {f"{run}/jobs/0001/{name}": text for name, text in preview_scripts(request, order, run, pack).items()}
    if as_json:
        show_json({"scripts": scripts})
    else:
        print("\n".join(f"# ---- {path}\n{text}" for path, text in scripts.items()))
    print_note("nothing was written or submitted")


def show_submission(submission: Submission, as_json: bool) -> None:
    """The ids, and what to do next."""
    if as_json:
        show_json(submission)
        return
    print(submission.path)
    for job in submission.jobs:
        print(f"{job.kind} {job.job}{describe_size(job)}")
    if submission.jobs:
        print_note(f"next: rollbook status {quote(str(submission.path))}")


def describe_size(job: ClusterJob) -> str:
    """How many there are of a job, in words."""
    if job.kind == "report":
        return ""
    return f" (workers: {job.count})" if job.kind == "crew" else f" (array of {job.count})"


@compose_options("given", o.collect_settings)
def resume_command(
    run: o.StartedRun,
    given: dict[str, JSON],
    retry: o.Retry = None,
    on: On = None,
    address: Address = None,
    cluster: Cluster = None,
    json: o.Json = False,
) -> None:
    from rollbook.engine import resume

    check_place(on, address)
    there, given = choose_cluster(run, on, given)
    if there == "ray":
        resume_on_ray(run, given, json, retry=retry, cluster=cluster, address=address)
        return
    if there:
        resume_on_scheduler(run, given, retry, cluster, there, json)
        return
    if cluster is not None:
        raise UsageError(f"--cluster {cluster}: goes with --on slurm or --on ray")
    run_with_display(run, lambda display: resume(run, given, retry, display), json)


def resume_on_scheduler(
    run: Path, settings: dict[str, JSON], retry: list[str] | None, cluster: Path | None, scheduler: str, json: bool
) -> None:
    """Submit what is missing; where nothing is, say what there is."""
    from rollbook.clusters import read_profile, resubmit
    from rollbook.engine import resume

    profile = read_profile(cluster, scheduler) if cluster else None
    sent = resubmit(run, settings, retry, profile, print_note, scheduler)
    if sent is not None:
        show_submission(sent, json)
        return
    print("nothing is left to do", file=sys.stderr)
    run_with_display(run, lambda display: resume(run, {}, retry, display), json)


@compose_options("given", o.collect_settings)
def extend_command(
    run: o.StartedRun,
    samples: o.NewSamples,
    given: dict[str, JSON],
    on: On = None,
    address: Address = None,
    json: o.Json = False,
) -> None:
    from rollbook.engine import extend

    check_place(on, address)
    there, given = choose_cluster(run, on, given)
    if there == "ray":
        resume_on_ray(run, given, json, retry=["none"], address=address, samples=samples)
        return
    if there:
        from rollbook.clusters import extend_submitted_run

        show_submission(extend_submitted_run(run, samples, given, print_note, there), json)
        return
    run_with_display(run, lambda display: extend(run, samples, given, display), json)


def resume_on_ray(
    run: Path,
    settings: dict[str, JSON],
    json: bool,
    *,
    retry: list[str] | None,
    cluster: Path | None = None,
    address: str | None = None,
    samples: int | None = None,
) -> None:
    """Work off what is missing, or leave it to a foreman; where nothing is, say what there is."""
    from rollbook.clusters import read_profile
    from rollbook.clusters.ray import RayResume, is_detached, resume_detached, resume_here
    from rollbook.engine import resume

    profile = read_profile(cluster) if cluster else None
    again = RayResume(given=settings, retry=retry, profile=profile, address=address, samples=samples)

    def work(display: Display) -> RunResult:
        return resume_here(run, again, display) or resume(run, {}, retry, display)

    if not is_detached(run):
        run_with_display(run, work, json)
        return
    sent = resume_detached(run, again, print_note)
    if sent is not None:
        show_submission(sent, json)
        return
    print("nothing is left to do", file=sys.stderr)
    run_with_display(run, lambda display: resume(run, {}, retry, display), json)
