"""Run, resume and extend: `run` is plan, work, report; the steps are `plan_request`, `work`, `resume` and `extend`.

One worker runs in this process; several are a WorkerPool of processes, or started elsewhere by a WorkerFactory. The
result is counted from the files of the run; anything less than all scored raises Shortfall.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from rollbook.book import (
    Book,
    Seals,
    WorkerMonitor,
    explain_disk_errors,
    is_closed,
    open_ordered_round,
    read_presences,
    refuse_occupied,
    remove_dead_claim_files,
    remove_unused_run,
)
from rollbook.core import (
    JSON,
    SCHEMA_VERSION,
    Limits,
    ModelSpec,
    Rollout,
    Round,
    Sampling,
    Settings,
    StartOptions,
    ToolFormat,
    check_retry_rules,
)
from rollbook.engine.blends import add_blend_roles, load_run_environments
from rollbook.engine.book_worker import work_on_book
from rollbook.engine.costs import describe_unpriced
from rollbook.engine.displays import make_progress_hooks
from rollbook.engine.hooks import Hooks, HookThread, ObservedDisplay, log_warning
from rollbook.engine.planning import change_settings, check_unchanged, plan, resolve_planned_model, resolve_run_model
from rollbook.engine.progress import Display, Progress, SilentDisplay
from rollbook.engine.request import (
    Request,
    as_list,
    as_text,
    claim_run_folder,
    make_sampling,
    release_run_folder,
    update_settings,
)
from rollbook.engine.tracking import LogTarget, make_observers
from rollbook.engine.worker_pool import StartWorker, WorkerPool
from rollbook.environments import (
    Environment,
    RoleClients,
    RunRoles,
    check_roles,
    check_same_roles,
    load_environment,
    open_roles,
    probe_roles,
    resolve_roles,
)
from rollbook.errors import UsageError
from rollbook.models import ENDPOINT_KINDS, Model, open_model, probe_endpoint
from rollbook.processes import Work, make_awaitable, make_blocking, run_event_loop, run_to_completion
from rollbook.reports import Report, Run, make_report, make_shortfall

T = TypeVar("T")
WorkerFactory: TypeAlias = Callable[[Book, Round], StartWorker]
"""Makes the function that starts the workers of a round, where they are not child processes."""


class RunResult(msgspec.Struct, frozen=True):
    """A finished run: its directory and its report."""

    path: Path
    report: Report

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"RunResult({str(self.path)!r}): {self.report.describe()}"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


def _prepare_run(
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
    allow_shortfall: bool = False,
    wait_s: float = 0.0,
    probe: bool = True,
    on_rollout: Callable[[Rollout], object] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_end: Callable[[Run], object] | None = None,
    log: Sequence[LogTarget] = (),
    progress: bool = True,
    **settings: JSON,
) -> Work[RunResult]:
    """Run a model `samples` times on every task; returns when all are scored, raises Shortfall when some are not.

    `env` is an environment, as on the command line or made here, or a blend: the path of a YAML file of several.
    `agent` may be `program:COMMAND`, an external program that runs every rollout; for tasks in containers also `oracle`
    or `nop`. `allow_network` gives containers the network that their tasks request.
    `sampling` is a Sampling, or a dictionary of parameters for the endpoint; None omits one. `out` is by default a new
    folder in runs/. `settings` are the operational ones of rollbook.core.Settings, such as concurrency=64. An endpoint
    is first asked one short completion, for `wait_s` seconds if its server is still starting; `probe=False` leaves that
    out. `run` blocks, in a notebook too; inside of a coroutine, await `run_async`.

    `on_rollout` is called with every rollout that has ended, `on_progress` with the counts and `on_end` with the run,
    one after another in a thread of their own; whatever they do, the run goes on. `log` are names of trackers (wandb,
    mlflow, tensorboard) or trackers. Progress is shown in a notebook and on a terminal; `progress=False` shows none.
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
    start = StartOptions(wait_s=wait_s, probe=probe)
    hooks = Hooks(on_rollout, on_progress, on_end)
    if out is None:
        request = msgspec.structs.replace(request, out=str(claim_run_folder(env)))

    async def work(display: Display) -> RunResult:
        return await plan_and_work(request, display, start, handle_signals=False, allow_shortfall=allow_shortfall)

    return observe_work(Path(request.out), work, hooks, log, progress=progress)


def observe_work(
    run: Path,
    work: Callable[[Display], Coroutine[Any, Any, RunResult]],
    hooks: Hooks,
    log: Sequence[LogTarget],
    *,
    progress: bool,
) -> Work[RunResult]:
    """Return the work of a call from Python, followed by the user's hooks, by trackers and by a display of progress."""
    shown = [each for each in (hooks, make_progress_hooks() if progress else Hooks()) if each]
    threads = [HookThread(run, each, log_warning) for each in shown]
    try:
        display = ObservedDisplay(SilentDisplay(), [*threads, *make_observers(log, run, log_warning)])
    except UsageError:
        release_run_folder(run)
        raise

    async def observed() -> RunResult:
        try:
            return await work(display)
        finally:
            await run_to_completion(display.stop)  # in a thread: the caller's loop may have other work
            release_run_folder(run)

    return observed


run = make_blocking(_prepare_run, "run")
run_async = make_awaitable(_prepare_run, "run_async")


def run_request(
    request: Request,
    display: Display,
    worker_factory: WorkerFactory | None = None,
    start: StartOptions = StartOptions(),  # noqa: B008 - frozen
) -> RunResult:
    """Run a request of the command line: signals drain it."""
    return run_event_loop(
        lambda: plan_and_work(request, display, start, handle_signals=True, worker_factory=worker_factory)
    )


def run_round(book: Book, display: Display, worker_factory: WorkerFactory) -> RunResult:
    """Run a book's current round with workers that are started elsewhere."""
    return run_event_loop(
        lambda: _work_and_report(
            book, book.rounds()[-1], None, None, display, handle_signals=True, worker_factory=worker_factory
        )
    )


async def plan_and_work(
    request: Request,
    display: Display,
    start: StartOptions,
    *,
    handle_signals: bool,
    allow_shortfall: bool = False,
    worker_factory: WorkerFactory | None = None,
) -> RunResult:
    """Write the run directory of a request, work on it and make its report."""
    refuse_occupied(Path(request.out))
    request = add_blend_roles(request)
    members = load_run_environments(request)
    spec, settings = resolve_run_model([member.loaded for member in members], request)
    meaning, settings = resolve_roles(request.judge, request.judge_name, settings)
    check_roles([member.loaded for member in members], meaning)
    if note := describe_unpriced(meaning, settings):
        display.note(note)
    spec, settings = await probe_models(spec, meaning, settings, request.sampling, start, display.note)
    alone = settings.workers == 1 and worker_factory is None
    async with (
        open_roles(meaning, settings) as roles,
        open_run_model(spec, settings, display, alone, start.probe) as model,
    ):
        book = plan(request, members, model.spec if model else spec, settings, roles.meaning, display.note)
        try:
            return await _work_and_report(
                book, book.rounds()[0], model, roles, display, handle_signals, allow_shortfall, worker_factory
            )
        except UsageError as error:
            if str(book.path / "logs") not in str(error):  # else the line says what to read in it
                await asyncio.to_thread(remove_unused_run, book.path)
            raise


def take_learned_names(book: Book, settings: Settings) -> Settings:
    """Return the settings of a next round with the names that the workers of the last one learned."""
    rounds = len(book.rounds())
    for presence in read_presences(book.path).values():
        if presence.round == rounds and presence.wire_names:
            return msgspec.structs.replace(settings, wire_names=presence.wire_names)
    return settings


async def probe_models(
    spec: ModelSpec,
    meaning: RunRoles,
    settings: Settings,
    sampling: Sampling,
    start: StartOptions,
    say: Callable[[str], None],
) -> tuple[ModelSpec, Settings]:
    """Ask the endpoints of a run one short completion each.

    Return the model's spec with the name that it serves, and the settings with the names of parameters that the
    endpoints have turned out to take: stored with the round, so that every worker starts with them. Only an endpoint
    is asked: a script, the embedded model and a model elsewhere are not.
    """
    if not start.probe:
        return spec, settings
    if spec.kind in ENDPOINT_KINDS:
        model = await probe_endpoint(spec, settings, sampling, wait_s=start.wait_s, say=say)
        spec, settings = model.spec, msgspec.structs.replace(settings, wire_names=model.wire_names)
    return spec, await probe_roles(meaning, settings, start.wait_s, say)


def probe_run(book: Book, settings: Settings, start: StartOptions, say: Callable[[str], None]) -> Settings:
    """Ask the endpoints of a run one short completion each, before a round is opened; return the settings for it."""
    return run_event_loop(lambda: _probe_book(book, settings, start, say))


async def _probe_book(book: Book, settings: Settings, start: StartOptions, say: Callable[[str], None]) -> Settings:
    spec, meaning, sampling = (
        check_run_model(book, settings),
        RunRoles.from_manifest(book.manifest),
        book.manifest.sampling,
    )
    return (await probe_models(spec, meaning, settings, sampling, start, say))[1]


@asynccontextmanager
async def open_run_model(
    spec: ModelSpec,
    settings: Settings,
    display: Display,
    single_worker: bool | None = None,
    answered: bool = False,
) -> AsyncIterator[Model | None]:
    """Open a model for a context; None where the workers of a pool open their own."""
    if not (settings.workers == 1 if single_worker is None else single_worker) and spec.name:
        yield None
        return
    model = open_model(spec, settings, say=display.note, answered=answered)
    try:
        await model.open()
        yield model
    finally:
        await model.close()


async def _work_and_report(
    book: Book,
    round_: Round,
    model: Model | None,
    roles: RoleClients | None,
    display: Display,
    handle_signals: bool,
    allow_shortfall: bool = False,
    worker_factory: WorkerFactory | None = None,
) -> RunResult:
    """Work alone or with a pool, then make the report from the files."""
    with explain_disk_errors(book.path):
        if worker_factory or model is None or round_.settings.workers > 1:
            start = worker_factory(book, round_) if worker_factory else None
            cause = await WorkerPool(book, round_, display, start).run(handle_signals=handle_signals)
        else:
            cause = (
                await work_on_book(book, round_, model, display, roles=roles, handle_signals=handle_signals)
            ).stop_reason
        made = await asyncio.to_thread(make_report, book.path)
    return _make_result(book, made, cause, allow_shortfall)


def _make_result(book: Book, made: Report, cause: str = "", allow_shortfall: bool = False) -> RunResult:
    """Return the result; raise Shortfall if not all are scored, unless that is allowed."""
    if made.scored < made.requested and not allow_shortfall:
        raise make_shortfall(made, cause)
    return RunResult(book.path, made)


def plan_request(request: Request, say: Callable[[str], None] = lambda _: None, served_model: str = "") -> Path:
    """Write the run directory and the settings of its first round; asks no model.

    `served_model` is the name of a model that the run's own jobs will serve: no address is known yet.
    """
    request = add_blend_roles(request)
    members = load_run_environments(request)
    loaded = [member.loaded for member in members]
    spec, settings = ModelSpec(served_model, "chat"), msgspec.structs.replace(request.settings, urls=[])
    if not served_model:
        spec, settings = resolve_run_model(loaded, request, needs_key=False)
    if not spec.name:
        raise UsageError("plan calls no model, so it cannot learn its name: give --model-name")
    roles, settings = resolve_roles(request.judge, request.judge_name, settings, needs_key=False)
    if roles.judge and not roles.judge.name:
        raise UsageError("plan calls no judge, so it cannot learn its name: give --judge-name")
    if nameless := roles.find_nameless():
        why = f"plan calls no model, so it cannot learn the name of the role {nameless}"
        raise UsageError(f"{why}: give --role {nameless}.name=NAME")
    check_roles(loaded, roles)
    return plan(request, members, spec, settings, roles, say).path


def work(run: str | Path, changes: dict[str, JSON], display: Display) -> RunResult:
    """Join a run's current round as one more worker; signals drain it."""
    return run_event_loop(lambda: join_run(run, changes, display, handle_signals=True))


async def join_run(
    run: str | Path,
    changes: dict[str, JSON],
    display: Display,
    *,
    handle_signals: bool = False,
    allow_shortfall: bool = False,
) -> RunResult:
    """Join a run's current round as one more worker."""
    if changes.get("order"):
        raise UsageError(f"--order {changes['order']}: a worker follows its round; give it to run, extend or resume")
    book = Book(run)
    rounds = book.rounds()
    base = rounds[-1] if rounds else book.open_round(Settings())
    settings = change_settings(book.manifest, base.settings, {"workers": 1, **changes})
    for note in check_unchanged(book):
        display.note(note)
    round_ = msgspec.structs.replace(base, settings=settings)
    return await _continue_round(book, round_, display, False, handle_signals, allow_shortfall)


def resume(
    run: str | Path,
    changes: dict[str, JSON],
    retry: list[str] | None,
    display: Display,
    start: StartOptions = StartOptions(),  # noqa: B008 - frozen
) -> RunResult:
    """Open a new round, as `resume_run` does; signals drain it."""
    return run_event_loop(lambda: resume_run(run, changes, retry, display, start, handle_signals=True))


async def resume_run(
    run: str | Path,
    changes: dict[str, JSON],
    retry: list[str] | None,
    display: Display,
    start: StartOptions,
    *,
    handle_signals: bool = False,
    allow_shortfall: bool = False,
) -> RunResult:
    """Open a new round with fresh budgets: finish what is missing, and try again what `retry` names."""
    book = Book(run)
    upcoming = prepare_round(book, changes, retry, display.note)
    if upcoming.open_chunks:
        settings = await _probe_book(book, upcoming.settings, start, display.note)
        upcoming = msgspec.structs.replace(upcoming, settings=settings)
    return await _start_round(book, upcoming, display, start, handle_signals, allow_shortfall)


def extend(
    run: str | Path,
    samples: int,
    changes: dict[str, JSON],
    display: Display,
    start: StartOptions = StartOptions(),  # noqa: B008 - frozen
) -> RunResult:
    """Add samples, as `extend_run` does; signals drain it."""
    return run_event_loop(lambda: extend_run(run, samples, changes, display, start, handle_signals=True))


async def extend_run(
    run: str | Path,
    samples: int,
    changes: dict[str, JSON],
    display: Display,
    start: StartOptions,
    *,
    handle_signals: bool = False,
    allow_shortfall: bool = False,
) -> RunResult:
    """Add samples to every task that has fewer than `samples`, and work on them."""
    book = Book(run)
    wanted = change_settings(book.manifest, book.last_settings(), changes)
    settings = await _probe_book(book, wanted, start, display.note)
    extend_samples(book, samples, changes)
    upcoming = prepare_round(book, changes, ["none"], display.note)
    learned = {"wire_names": settings.wire_names, "judge_wire_names": settings.judge_wire_names}
    known = msgspec.structs.replace(upcoming.settings, **learned, roles=settings.roles)
    upcoming = msgspec.structs.replace(upcoming, settings=known)
    return await _start_round(book, upcoming, display, start, handle_signals, allow_shortfall)


class NextRound(msgspec.Struct, frozen=True):
    """The settings of a round that could be opened, and how many chunks it would have to work on."""

    settings: Settings
    open_chunks: int


def prepare_round(
    book: Book, changes: dict[str, JSON], retry: list[str] | None, say: Callable[[str], None], *, served: bool = False
) -> NextRound:
    """Check that a run can be resumed with these changes; return the next round, which is not opened yet.

    Every way to resume or extend a run calls this: here, on a batch system and on Ray. `retry` is by default the
    failures of the infrastructure. With `served`, jobs will serve the model, so that it may have no address yet.
    """
    last = take_learned_names(book, book.last_settings())
    changes = {"order": "", **changes}  # by now the run knows its own lengths
    settings = change_settings(book.manifest, last, {**changes, "retry": check_retry_rules(retry or ["infra"])})
    check_run_model(book, settings, served=served)
    for note in check_unchanged(book):
        say(note)
    return NextRound(settings, count_open_chunks(book, settings))


def extend_samples(
    book: Book, samples: int, changes: dict[str, JSON], workers: int | None = None, *, served: bool = False
) -> None:
    """Add samples to every task that has fewer than `samples`, in chunks for so many workers; refuse if none has."""
    known = count_samples(book)
    settings = change_settings(book.manifest, book.last_settings(), changes)
    check_run_model(book, settings, served=served)
    # Before anything is written: a run that is refused stays as it is.
    check_unchanged(book)
    for spec in book.manifest.environments.values():
        load_environment(spec, book.path)
    with explain_disk_errors(book.path):
        added = book.extend(samples, workers or settings.workers)
    if not added:
        raise UsageError(f"{book.path} has {known} samples of every task already: give more than that with -k")


def count_open_chunks(book: Book, settings: Settings | None = None) -> int:
    """Return how many chunks a round with these settings would have to work on; without any, the present round."""
    rounds, seals = book.rounds(), Seals(book.path).refresh()
    if settings is not None:
        rounds = [*rounds, Round(SCHEMA_VERSION, len(rounds) + 1, 0.0, settings)]
    return sum(not is_closed(seals.get(number), rounds) for number in range(len(book.chunks)))


def count_samples(book: Book) -> int:
    """Return how many samples of every task there are; in a blend, of those that have the fewest."""
    most: dict[str, int] = {}
    for part in book.plan.parts:
        env = book.tasks.read(part.tasks[0]).env
        most[env] = max(most.get(env, 0), part.samples[1])
    return min(most.values(), default=0)


async def _start_round(
    book: Book,
    upcoming: NextRound,
    display: Display,
    start: StartOptions,
    handle_signals: bool,
    allow_shortfall: bool,
) -> RunResult:
    if not upcoming.open_chunks:
        if upcoming.settings.price != book.last_settings().price:
            book.open_round(upcoming.settings)  # the report takes the price of the last round
        display.note("nothing is left to do")
        with explain_disk_errors(book.path):
            # The worker that sealed the last chunk may have been killed before it removed its own.
            remove_dead_claim_files(book.path, WorkerMonitor(book.path))
            return _make_result(book, make_report(book.path), allow_shortfall=allow_shortfall)
    round_ = open_ordered_round(book, upcoming.settings)
    return await _continue_round(book, round_, display, start.probe, handle_signals, allow_shortfall)


async def _continue_round(
    book: Book, round_: Round, display: Display, answered: bool, handle_signals: bool, allow_shortfall: bool
) -> RunResult:
    spec = check_run_model(book, round_.settings)
    async with (
        open_roles(RunRoles.from_manifest(book.manifest), round_.settings) as roles,
        open_run_model(spec, round_.settings, display, answered=answered) as model,
    ):
        return await _work_and_report(book, round_, model, roles, display, handle_signals, allow_shortfall)


def check_run_model(book: Book, settings: Settings, *, served: bool = False) -> ModelSpec:
    """Return the run's own model; refuse another one, which would be another run, and other roles.

    With `served`, jobs will serve the model: where the settings name no address yet, the model is the planned one.
    """
    if book.manifest.parent:
        way = f"continue with rollbook reverify RUN -o {book.path}"
        raise UsageError(f"{book.path} scores another run again, without a model: {way}")
    planned = book.manifest.model
    spec = planned if served and not settings.urls else resolve_planned_model(planned, settings.urls)
    if spec != planned:
        then, now = f"{planned.kind} {planned.name}", f"{spec.kind} {spec.name}"
        detail = "; its file was edited since" if then == now else f", not with {now}"
        raise UsageError(f"{book.path} was planned with the model {then}{detail}: start a new run for another model")
    check_same_roles(book.manifest, settings, book.path)
    return spec
