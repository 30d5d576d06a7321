"""`rollbook run`, `plan`, `work`, `submit`, `resume` and `extend`: start and continue runs, here or on a cluster.

`run` plans, works and reports; with --on slurm --wait-jobs it waits for the jobs. `submit` plans here and works on a
cluster. `resume` finishes exactly what is missing, `extend` adds samples of every task; both work here or on the
cluster that the run was submitted to. A run on Ray continues as it was started, here or with a driver on the cluster.
"""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
import typer

from rollbook.agents import REFERENCE_AGENTS
from rollbook.cli import options as o
from rollbook.cli.config_files import LISTED_MODELS, Config, SaveConfig, save_config, was_given
from rollbook.cli.options import OptionSet, compose_options, list_options, read_given
from rollbook.cli.report_tables import show_json
from rollbook.cli.run_display import run_with_display
from rollbook.core import (
    GROUPS,
    JSON,
    ClusterOptions,
    Limits,
    RunOptions,
    Sampling,
    ServerKind,
    ServerSpec,
    Settings,
    StartOptions,
    list_parameters,
)
from rollbook.engine import Display, Request, claim_run_folder
from rollbook.environments import brings_own_model
from rollbook.errors import UsageError
from rollbook.models import EMBEDDED_SLOTS

if TYPE_CHECKING:
    from rollbook.clusters import ClusterJob, ClusterProfile, Submission, SubmissionOrder
    from rollbook.engine import RunResult


EnvironmentOrBlendArg = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        autocompletion=o.complete_environment,
        help="A name (see rollbook envs), path/to/file.py:Class, package.module:Class, http://HOST:PORT, "
        "or a blend of several environments, blend.yaml.",
        show_default=False,
    ),
]
StartedRun = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run directory. Options that are not given stay as they were at its last start.",
        show_default=False,
    ),
]
StartedRuns = Annotated[
    Path,
    typer.Argument(
        metavar="RUN|FOLDER",
        help="A run directory, or a folder that run --each has made. Options that are not given stay as they were at "
        "its last start.",
        show_default=False,
    ),
]
NewSamples = Annotated[
    int,
    typer.Option("-k", "--samples", metavar="N", min=1, help="How many times each task is run, earlier ones included."),
]
Retry = Annotated[
    list[str] | None,
    typer.Option("--retry", metavar="KIND", help="The failures to try again: a kind, infra, data, all or none."),
]


def make_request(values: dict[str, Any]) -> Request:
    """Make the request of a command line; it always names a run directory, so that it can be shown whatever happens."""
    env = values["env"]
    settings = read_given(Settings, values)
    urls = list(settings.get("urls", []))
    asks_none = values.get("agent") in REFERENCE_AGENTS
    own = urls or settings.get("base_urls") or asks_none or brings_own_model(env)
    first: dict[str, JSON] = {} if own else {"concurrency": EMBEDDED_SLOTS}
    request = Request(
        env=env,
        model=urls,
        judge=list(settings.get("judge_urls", [])),
        sampling=Sampling(**read_given(Sampling, values)),
        limits=Limits(**read_given(Limits, values)),
        settings=Settings(**first | settings),
        **{"out": "", **read_given(RunOptions, values)},
    )
    return request if request.out else msgspec.structs.replace(request, out=str(claim_run_folder(env)))


def read_place(values: dict[str, Any]) -> dict[str, Any]:
    """Read the options about a cluster that were given, by their names in ClusterOptions."""
    given = read_given(ClusterOptions, values)
    check_place(given)
    return given


REQUEST = OptionSet(
    [
        inspect.Parameter("env", inspect.Parameter.KEYWORD_ONLY, annotation=EnvironmentOrBlendArg),
        *list_options(
            RunOptions,
            after={
                "model_name": "model",
                "api_key_env": "model_name",
                "judge_name": "judge",
                "connect_timeout": "call_timeout",
                "verify_timeout": "timeout",
                "agent": "max_tokens_total",
                "tool_format": "agent",
                "continue_tokens": "tool_format",
                "tool_timeout": "continue_tokens",
            },
        ),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config),
    ],
    make_request,
)
CLUSTER = OptionSet(
    [*list_options(ClusterOptions), *list_options(ServerSpec, after={"server_command": "model_path"})],
    lambda values: ClusterOptions(**read_place(values), serve=read_given(ServerSpec, values) or None),
)


def check_place(given: dict[str, Any]) -> None:
    """Refuse an unknown place, and options that go with another one."""
    on = given.get("on")
    if on is not None and on not in (places := list_places()):
        raise UsageError(f"--on {on}: workers run on one of {', '.join(places)}")
    for name, value in given.items():
        field = list_parameters(ClusterOptions)[name]
        if field.details.goes_with not in ("", f"--on {on}"):
            raise UsageError(f"{field.flag} {value}: goes with {field.details.goes_with}")


def list_places() -> list[str]:
    """Return everything that `--on` takes: this machine, the schedulers, Ray."""
    from rollbook.clusters import scheduler_names

    return ["local", *scheduler_names(), "ray"]


def is_scheduler(place: str | None) -> bool:
    """Return whether a place that `--on` takes is a batch system."""
    return place not in (None, "local", "ray")


def refuse_cluster_options(options: ClusterOptions) -> None:
    """Refuse options about a cluster, apart from --on, where the workers run on this machine."""
    fields = list_parameters(ClusterOptions)
    given = [field.flag for name, field in fields.items() if getattr(options, name) != field.default and name != "on"]
    for flag in [*given, *_list_server_flags(options)]:
        raise UsageError(f"{flag}: goes with --on slurm or --on ray; local workers use no cluster")


def make_profile(options: ClusterOptions) -> ClusterProfile:
    """Return the profile with the changes of the command line."""
    from rollbook.clusters import ClusterProfile, check_profile, read_profile

    scheduler = choose_scheduler(options.on)
    profile = read_profile(options.cluster, scheduler) if options.cluster else ClusterProfile()
    changes: dict[str, object] = {"after": [*profile.after, *options.after]}
    if options.gpus is not None:
        changes["gpus"] = options.gpus
    source = str(options.cluster or "the command line")
    return check_profile(msgspec.structs.replace(profile, **changes), source, scheduler)


def choose_scheduler(on: str | None) -> str:
    """Return the scheduler that `--on` names; the default where it names none."""
    from rollbook.clusters import DEFAULT_SCHEDULER

    return on if on is not None and is_scheduler(on) else DEFAULT_SCHEDULER


def make_order(options: ClusterOptions, request: Request, context: typer.Context) -> tuple[Request, SubmissionOrder]:
    """Return a request and its order; what was not typed comes from the profile."""
    from rollbook.clusters import SubmissionOrder

    profile, serve = make_profile(options), make_server_spec(options, request)
    changes: dict[str, object] = {}
    for name in ("samples", "seed"):
        value = getattr(profile, name)
        if value is not None and not was_given(context, name):
            changes[name] = value
    workers = request.settings.workers if was_given(context, "workers") else profile.workers or 1
    settings = msgspec.structs.replace(request.settings, workers=workers)
    if serve and not was_given(context, "concurrency"):
        settings = msgspec.structs.replace(settings, concurrency=Settings().concurrency)
    changed = msgspec.structs.replace(request, settings=settings, **changes)
    order = SubmissionOrder(
        profile=profile,
        workers=workers,
        serve=serve,
        ray=options.address if options.on == "ray" else "",
        sandbox=options.sandbox,
        sandbox_packages=options.sandbox_packages,
        install=options.install,
        scheduler=choose_scheduler(options.on),
    )
    return changed, order


def _list_server_flags(options: ClusterOptions, *kinds: str) -> list[str]:
    """List the given options about model servers, or those of them that go with other kinds of server."""
    fields = list_parameters(ServerSpec)
    given = [fields[name] for name in options.serve or {}]
    return [field.flag for field in given if not kinds or field.details.goes_with not in ("", *kinds)]


def make_server_spec(options: ClusterOptions, request: Request) -> ServerSpec | None:
    """Return the servers that were ordered; None where the model is served already."""
    kind = _read_server_kind(options)
    if kind is None or options.serve is None:
        return None
    if named := [*request.model, *request.settings.base_urls]:
        raise UsageError(f"-m {named[0]}: --serve {kind} serves the model itself; give one of them")
    fields = {"name": request.model_name or options.serve.get("model_path"), **options.serve}
    if not fields["name"]:
        raise UsageError("--serve command: give the name of the model with --model-name")
    if "command" in fields:
        fields["command"] = _split_command(fields["command"], fields.get("nodes", 1))
    return ServerSpec(**fields)


def _read_server_kind(options: ClusterOptions) -> ServerKind | None:
    if not options.serve:
        return None
    wanted = options.serve.get("kind")
    if wanted is None:
        raise UsageError(f"{_list_server_flags(options)[0]}: goes with --serve, which starts the model server")
    for kind in get_args(ServerKind):
        if kind == wanted:
            _refuse_mixed_options(options, kind)
            return kind  # type: ignore[no-any-return]
    raise UsageError(f"--serve {wanted}: known are {', '.join(get_args(ServerKind))}")


def _refuse_mixed_options(options: ClusterOptions, kind: ServerKind) -> None:
    given = options.serve or {}
    if kind == "command":
        stray = _list_server_flags(options, "command")
        if stray:
            raise UsageError(f"{stray[0]}: --serve command runs --server-command as it is; put it in there")
        if not given.get("command"):
            raise UsageError("--serve command: give the command with --server-command")
        return
    if given.get("command"):
        raise UsageError(f"--server-command: --serve {kind} makes the command itself; add arguments with --server-arg")
    if not given.get("model_path"):
        raise UsageError(f"--serve {kind}: give the weights with --model-path")


def _split_command(text: str, nodes: int) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--server-command {text}: {error}") from None
    if not any("{port}" in word for word in words):
        raise UsageError(f"--server-command {text}: write {{port}} where the server takes its port")
    if nodes > 1 and not any("{rank}" in word for word in words):
        raise UsageError(f"--server-command {text}: on several nodes, write {{rank}} where it takes its rank")
    return words


WaitJobs = Annotated[
    bool,
    typer.Option(
        "--wait-jobs",
        help="Wait for the jobs, with --on slurm, and exit with their exit code.",
        rich_help_panel=o.CLUSTER,
    ),
]


Each = Annotated[
    bool,
    typer.Option(
        "--each",
        help="Run every -m on its own, as another model and not as a replica, then show a leaderboard.",
        rich_help_panel=GROUPS["model"],
    ),
]


@compose_options(request=REQUEST, cluster=CLUSTER, start=o.START)
def run_command(
    request: Request,
    cluster: ClusterOptions,
    context: typer.Context,
    start: StartOptions,
    each: Each = False,
    wait_jobs: WaitJobs = False,
    json: o.Json = False,
    save: SaveConfig = None,
) -> None:
    from rollbook.engine import run_request

    if save is not None:
        if LISTED_MODELS in context.meta:
            raise UsageError("--save-config: writes no `models`; copy the file of --config")
        save_config(context, save)
    if each or LISTED_MODELS in context.meta:
        from rollbook.cli.model_runs import run_each_model

        if cluster.on not in (None, "local"):
            raise UsageError(f"--on {cluster.on}: --each runs one model after another on this machine; submit each")
        refuse_cluster_options(cluster)
        run_each_model(context, request.out, make_request, start, json)
        return
    if is_scheduler(cluster.on):
        _check_waiting(cluster.on, start, wait_jobs)
    elif wait_jobs:
        raise UsageError("--wait-jobs: goes with --on slurm; other runs always wait")
    elif cluster.on != "ray":
        refuse_cluster_options(cluster)
        run_with_display(request.out, lambda display: run_request(request, display, start=start), json, start.log)
        return
    run_with_display(
        request.out, lambda display: _run_on_cluster(request, cluster, context, display, start), json, start.log
    )


def _check_waiting(place: str | None, start: StartOptions, wait_jobs: bool) -> None:
    """Refuse to submit jobs without waiting for them, and to wait here for the server that jobs ask."""
    if not wait_jobs:
        way = "add --wait-jobs to wait for the jobs, or submit them with rollbook submit"
        raise UsageError(f"run --on {place}: {way}")
    if start.wait_s:
        raise UsageError(f"--wait {start.wait_s:g}: jobs wait for a server by themselves, for --outage seconds")


def _run_on_cluster(
    request: Request, cluster: ClusterOptions, context: typer.Context, display: Display, start: StartOptions
) -> RunResult:
    """Run with workers that are Ray actors, or submit jobs and wait for them."""
    from rollbook.clusters import submit_request, wait_for_jobs
    from rollbook.clusters.ray import run_on_ray

    request, order = make_order(cluster, request, context)
    if cluster.on == "ray":
        return run_on_ray(request, order, cluster.pack, display, start)
    submission = submit_request(request, order, cluster.pack, display.note)
    ids = ", ".join(f"{job.kind} {job.job}" for job in submission.jobs)
    display.note(f"{ids}; they continue without this terminal: rollbook status {submission.path}")
    return wait_for_jobs(submission.path, display)


@compose_options(request=REQUEST)
def plan_command(request: Request) -> None:
    from rollbook.engine import plan_request

    run = plan_request(request, o.print_note)
    print(run)
    o.print_note(f"next: rollbook work {run}")


@compose_options(settings=o.LAST_SETTINGS, start=o.make_struct(StartOptions, "log"))
def work_command(run: StartedRun, settings: dict[str, JSON], start: StartOptions, json: o.Json = False) -> None:
    from rollbook.engine import work

    run_with_display(run, lambda display: work(run, settings, display), json, start.log)


DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the scripts; write and submit nothing.", rich_help_panel=o.CLUSTER)
]


@compose_options(request=REQUEST, cluster=CLUSTER)
def submit_command(
    request: Request, cluster: ClusterOptions, context: typer.Context, dry_run: DryRun = False, json: o.Json = False
) -> None:
    from rollbook.clusters import submit_request

    if cluster.on == "local":
        raise UsageError(
            "--on local: there is no scheduler to submit to; rollbook run --workers N works on this machine"
        )
    request, order = make_order(cluster, request, context)
    if dry_run and order.ray:
        raise UsageError("--dry-run: shows the scripts for Slurm; Ray uses none")
    if dry_run:
        show_scripts(request, order, cluster.pack, json)
        return
    show_submission(submit_request(request, order, cluster.pack, o.print_note), json)


def show_scripts(request: Request, order: SubmissionOrder, pack: Path | None, as_json: bool) -> None:
    """Print the scripts that would be submitted, each after its path."""
    from rollbook.clusters import find_run_path, preview_scripts

    run = find_run_path(request, order)
    scripts = {f"{run}/jobs/0001/{name}": text for name, text in preview_scripts(request, order, run, pack).items()}
    if as_json:
        show_json({"scripts": scripts})
    else:
        print("\n".join(f"# ---- {path}\n{text}" for path, text in scripts.items()))
    o.print_note("nothing was written or submitted")


def show_submission(submission: Submission, as_json: bool) -> None:
    """Print the ids of the jobs, and the next command."""
    if as_json:
        show_json(submission)
        return
    print(submission.path)
    for job in submission.jobs:
        print(f"{job.kind} {job.job}{describe_size(job)}")
    if submission.jobs:
        o.print_note(f"next: rollbook status {quote(str(submission.path))}")


def describe_size(job: ClusterJob) -> str:
    """Return the size of a job in words; empty for a report."""
    if job.kind == "report":
        return ""
    return f" (workers: {job.count})" if job.kind == "driver" else f" (array of {job.count})"


@compose_options(
    settings=o.LAST_SETTINGS,
    given=OptionSet(list_options(ClusterOptions, "on", "address", "cluster", show_defaults=False), read_place),
    start=o.START,
)
def resume_command(
    run: StartedRuns,
    settings: dict[str, JSON],
    retry: Retry = None,
    *,
    given: dict[str, Any],
    start: StartOptions,
    json: o.Json = False,
) -> None:
    from rollbook.clusters import choose_cluster
    from rollbook.engine import resume
    from rollbook.reports import is_model_folder

    if is_model_folder(run):
        from rollbook.cli.model_runs import resume_each_model

        resume_each_model(run, settings, retry, given, start, json)
        return
    place, settings = choose_cluster(run, given.get("on"), settings)
    cluster = given.get("cluster")
    if place == "ray":
        resume_on_ray(run, settings, start, json, retry=retry, cluster=cluster, address=given.get("address"))
        return
    if place:
        refuse_log(start, place)
        resume_on_scheduler(run, settings, retry, cluster, place, json)
        return
    if cluster is not None:
        raise UsageError(f"--cluster {cluster}: goes with --on slurm or --on ray")
    run_with_display(run, lambda display: resume(run, settings, retry, display, start), json, start.log)


def refuse_log(start: StartOptions, place: str) -> None:
    """Refuse trackers where the work continues without this process, which would start and end them."""
    if start.log:
        way = "use it where the command waits for the work: run --wait-jobs, or --on local"
        raise UsageError(f"--log {start.log[0]}: jobs on {place} work without this command; {way}")


def resume_on_scheduler(
    run: Path, settings: dict[str, JSON], retry: list[str] | None, cluster: Path | None, scheduler: str, json: bool
) -> None:
    """Submit what is missing; where nothing is, show the numbers."""
    from rollbook.clusters import read_profile, resubmit

    profile = read_profile(cluster, scheduler) if cluster else None
    _show_resubmission(run, resubmit(run, settings, retry, profile, o.print_note, scheduler), retry, json)


def _show_resubmission(run: Path, submission: Submission | None, retry: list[str] | None, json: bool) -> None:
    from rollbook.engine import resume

    if submission is not None:
        show_submission(submission, json)
        return
    o.print_note("nothing is left to do")
    run_with_display(run, lambda display: resume(run, {}, retry, display), json)


@compose_options(
    settings=o.LAST_SETTINGS,
    given=OptionSet(list_options(ClusterOptions, "on", "address", show_defaults=False), read_place),
    start=o.START,
)
def extend_command(
    run: StartedRuns,
    samples: NewSamples,
    settings: dict[str, JSON],
    given: dict[str, Any],
    start: StartOptions,
    json: o.Json = False,
) -> None:
    from rollbook.clusters import choose_cluster
    from rollbook.engine import extend
    from rollbook.reports import is_model_folder

    if is_model_folder(run):
        from rollbook.cli.model_runs import extend_each_model

        extend_each_model(run, samples, settings, given, start, json)
        return
    place, settings = choose_cluster(run, given.get("on"), settings)
    if place == "ray":
        resume_on_ray(run, settings, start, json, retry=["none"], address=given.get("address"), samples=samples)
        return
    if place:
        from rollbook.clusters import extend_submitted_run

        refuse_log(start, place)
        show_submission(extend_submitted_run(run, samples, settings, o.print_note, place), json)
        return
    run_with_display(run, lambda display: extend(run, samples, settings, display, start), json, start.log)


def resume_on_ray(
    run: Path,
    settings: dict[str, JSON],
    start: StartOptions,
    json: bool,
    *,
    retry: list[str] | None,
    cluster: Path | None = None,
    address: str | None = None,
    samples: int | None = None,
) -> None:
    """Do what is missing here, or submit it to a driver; where nothing is missing, show the numbers."""
    from rollbook.clusters import read_profile
    from rollbook.clusters.ray import RayResume, is_detached, resume_detached, resume_here
    from rollbook.engine import resume

    profile = read_profile(cluster) if cluster else None
    changes = RayResume(given=settings, retry=retry, profile=profile, address=address, samples=samples, start=start)

    def work(display: Display) -> RunResult:
        return resume_here(run, changes, display) or resume(run, {}, retry, display)

    if is_detached(run):
        refuse_log(start, "ray")
        _show_resubmission(run, resume_detached(run, changes, o.print_note), retry, json)
    else:
        run_with_display(run, work, json, start.log)
