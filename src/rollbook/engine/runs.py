"""Run, resume and extend: `run` is plan, work, report; the steps are `plan_request`, `work`, `resume` and `extend`.

One worker runs in this process; several are a WorkerPool of processes, or started elsewhere by a WorkerFactory. The
result is counted from the files of the run; anything less than all scored raises Shortfall.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from rollbook.book import Book, Seals, explain_disk_errors, is_closed, read_presences, refuse_occupied
from rollbook.core import (
    JSON,
    SCHEMA_VERSION,
    Limits,
    ModelSpec,
    Round,
    Sampling,
    Settings,
    StartOptions,
    ToolFormat,
    check_retry_rules,
)
from rollbook.engine.blends import load_run_environments
from rollbook.engine.book_worker import work_on_book
from rollbook.engine.planning import change_settings, check_unchanged, plan, resolve_planned_model, resolve_run_model
from rollbook.engine.progress import Display, SilentDisplay
from rollbook.engine.request import Request, as_list, choose_run_folder, make_sampling, update_settings
from rollbook.engine.worker_pool import StartWorker, WorkerPool
from rollbook.environments import (
    Environment,
    JudgeClient,
    check_judges,
    check_same_judge,
    load_environment,
    open_judge,
    resolve_judge,
)
from rollbook.errors import UsageError
from rollbook.models import ENDPOINT_KINDS, Model, open_model, probe_endpoint
from rollbook.processes import Work, make_awaitable, make_blocking, run_event_loop
from rollbook.reports import Report, make_report, make_shortfall

T = TypeVar("T")
WorkerFactory: TypeAlias = Callable[[Book, Round], StartWorker]
"""Makes the function that starts the workers of a round, where they are not child processes."""


class RunResult(msgspec.Struct, frozen=True):
    """A finished run: its directory and its report."""

    path: Path
    report: Report


def _prepare_run(
    env: str | Environment | type[Environment],
    model: str | list[str] = (),  # type: ignore[assignment]
    *,
    model_name: str = "",
    samples: int = 1,
    limit: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    data: str | None = None,
    template: str | None = None,
    tasks: list[str] | None = None,
    sample: int | None = None,
    judge: str | list[str] = (),  # type: ignore[assignment]
    judge_name: str = "",
    temperature: float | None = None,
    top_p: float | None = None,
    max_tokens: int | None = None,
    sampling: Sampling | Mapping[str, JSON] = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    tool_format: Literal["auto"] | ToolFormat = "auto",
    agent: str = "",
    continue_tokens: bool = False,
    allow_shortfall: bool = False,
    wait_s: float = 0.0,
    probe: bool = True,
    **settings: JSON,
) -> Work[RunResult]:
    """Run a model `samples` times on every task; returns when all are scored, raises Shortfall when some are not.

    `env` is an environment, as on the command line or made here, or a blend: the path of a YAML file of several.
    `agent` may be `program:COMMAND`, an outside program that plays every rollout.
    `sampling` is a Sampling, or a dictionary of parameters for the endpoint; None omits one. `out` is by default a new
    folder in runs/. `settings` are the operational ones of rollbook.core.Settings, such as concurrency=64. An endpoint
    is first asked one short completion, for `wait_s` seconds if its server is still starting; `probe=False` leaves that
    out. `run` blocks, in a notebook too; inside of a coroutine, await `run_async`.
    """
    request = Request(
        env=env,
        model=as_list(model),
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=str(choose_run_folder(_name(env)) if out is None else out),
        seed=seed,
        data=data,
        template=template,
        tasks=tasks,
        sample=sample,
        judge=as_list(judge),
        judge_name=judge_name,
        sampling=make_sampling(sampling, temperature=temperature, top_p=top_p, max_tokens=max_tokens),
        limits=limits,
        settings=update_settings(Settings(), settings),
        tool_format=tool_format,
        agent=agent,
        continue_tokens=continue_tokens,
    )
    start = StartOptions(wait_s=wait_s, probe=probe)
    return lambda: _plan_and_work(
        request, SilentDisplay(), start, handle_signals=False, allow_shortfall=allow_shortfall
    )


def _name(env: str | Environment | type[Environment]) -> str:
    if isinstance(env, str):
        return env
    return env.__name__ if isinstance(env, type) else type(env).__name__


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
        lambda: _plan_and_work(request, display, start, handle_signals=True, worker_factory=worker_factory)
    )


def run_round(book: Book, display: Display, worker_factory: WorkerFactory) -> RunResult:
    """Run a book's current round with workers that are started elsewhere."""
    return run_event_loop(
        lambda: _work_and_report(
            book, book.rounds()[-1], None, None, display, handle_signals=True, worker_factory=worker_factory
        )
    )


async def _plan_and_work(
    request: Request,
    display: Display,
    start: StartOptions,
    *,
    handle_signals: bool,
    allow_shortfall: bool = False,
    worker_factory: WorkerFactory | None = None,
) -> RunResult:
    refuse_occupied(Path(request.out))
    members = load_run_environments(request)
    spec, settings = resolve_run_model([member.loaded for member in members], request)
    judge, settings = resolve_judge(request.judge, request.judge_name, settings)
    check_judges([member.loaded for member in members], judge is not None)
    spec, settings = await probe_models(spec, judge, settings, request.sampling, start, display.note)
    alone = settings.workers == 1 and worker_factory is None
    async with (
        open_judge(judge, settings) as judge_client,
        open_run_model(spec, settings, display, alone, start.probe) as model,
    ):
        judge = judge_client.spec if judge_client else None
        book = plan(request, members, model.spec if model else spec, settings, judge, display.note)
        return await _work_and_report(
            book, book.rounds()[0], model, judge_client, display, handle_signals, allow_shortfall, worker_factory
        )


def take_learned_names(book: Book, settings: Settings) -> Settings:
    """Return the settings of a next round with the names that the workers of the last one learned."""
    rounds = len(book.rounds())
    for presence in read_presences(book.path).values():
        if presence.round == rounds and presence.wire_names:
            return msgspec.structs.replace(settings, wire_names=presence.wire_names)
    return settings


async def probe_models(
    spec: ModelSpec,
    judge: ModelSpec | None,
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
    if judge is not None and settings.judge_urls:
        names = await JudgeClient(judge, settings).probe(start.wait_s, say)
        settings = msgspec.structs.replace(settings, judge_wire_names=names)
    return spec, settings


def probe_run(book: Book, settings: Settings, start: StartOptions, say: Callable[[str], None]) -> Settings:
    """Ask the endpoints of a run one short completion each, before a round is opened; return the settings for it."""
    spec, judge, sampling = check_run_model(book, settings), book.manifest.judge, book.manifest.sampling
    return run_event_loop(lambda: probe_models(spec, judge, settings, sampling, start, say))[1]


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
    judge: JudgeClient | None,
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
                await work_on_book(book, round_, model, display, judge=judge, handle_signals=handle_signals)
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
    members = load_run_environments(request)
    loaded = [member.loaded for member in members]
    spec, settings = ModelSpec(served_model, "chat"), msgspec.structs.replace(request.settings, urls=[])
    if not served_model:
        spec, settings = resolve_run_model(loaded, request, needs_key=False)
    if not spec.name:
        raise UsageError("plan asks no model, so it cannot learn its name: give --model-name")
    judge, settings = resolve_judge(request.judge, request.judge_name, settings, needs_key=False)
    if judge and not judge.name:
        raise UsageError("plan asks no judge, so it cannot learn its name: give --judge-name")
    check_judges(loaded, judge is not None)
    return plan(request, members, spec, settings, judge, say).path


def work(run: str | Path, changes: dict[str, JSON], display: Display) -> RunResult:
    """Join a run's current round as one more worker."""
    book = Book(run)
    rounds = book.rounds()
    base = rounds[-1] if rounds else book.open_round(Settings())
    settings = change_settings(book.manifest, base.settings, {"workers": 1, **changes})
    for note in check_unchanged(book):
        display.note(note)
    return _continue_round(book, msgspec.structs.replace(base, settings=settings), display)


def resume(
    run: str | Path,
    changes: dict[str, JSON],
    retry: list[str] | None,
    display: Display,
    start: StartOptions = StartOptions(),  # noqa: B008 - frozen
) -> RunResult:
    """Open a new round with fresh budgets: finish what is missing, and try again what `retry` names."""
    book = Book(run)
    upcoming = prepare_round(book, changes, retry, display.note)
    if upcoming.open_chunks:
        settings = probe_run(book, upcoming.settings, start, display.note)
        upcoming = msgspec.structs.replace(upcoming, settings=settings)
    return _start_round(book, upcoming, display, start)


def extend(
    run: str | Path,
    samples: int,
    changes: dict[str, JSON],
    display: Display,
    start: StartOptions = StartOptions(),  # noqa: B008 - frozen
) -> RunResult:
    """Add samples to every task that has fewer than `samples`, and work on them."""
    book = Book(run)
    settings = probe_run(book, change_settings(book.manifest, book.last_settings(), changes), start, display.note)
    extend_samples(book, samples, changes)
    learned = {"wire_names": settings.wire_names, "judge_wire_names": settings.judge_wire_names}
    return _start_round(book, prepare_round(book, changes | learned, ["none"], display.note), display, start)


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
    settings = change_settings(book.manifest, last, {**changes, "retry": check_retry_rules(retry or ["infra"])})
    check_run_model(book, settings, served=served)
    for note in check_unchanged(book):
        say(note)
    return NextRound(settings, count_open_chunks(book, settings))


def extend_samples(
    book: Book, samples: int, changes: dict[str, JSON], workers: int | None = None, *, served: bool = False
) -> None:
    """Add samples to every task that has fewer than `samples`, in chunks for so many workers; refuse if none has."""
    known = _count_samples(book)
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


def _count_samples(book: Book) -> int:
    """How many samples of every task there are; in a blend, of those that have the fewest."""
    most: dict[str, int] = {}
    for part in book.plan.parts:
        env = book.tasks.read(part.tasks[0]).env
        most[env] = max(most.get(env, 0), part.samples[1])
    return min(most.values(), default=0)


def _start_round(book: Book, upcoming: NextRound, display: Display, start: StartOptions) -> RunResult:
    if not upcoming.open_chunks:
        if upcoming.settings.price != book.last_settings().price:
            book.open_round(upcoming.settings)  # the report takes the price of the last round
        display.note("nothing is left to do")
        with explain_disk_errors(book.path):
            return _make_result(book, make_report(book.path))
    return _continue_round(book, book.open_round(upcoming.settings), display, start.probe)


def _continue_round(book: Book, round_: Round, display: Display, answered: bool = False) -> RunResult:
    spec = check_run_model(book, round_.settings)

    async def go() -> RunResult:
        async with (
            open_judge(book.manifest.judge, round_.settings) as judge_client,
            open_run_model(spec, round_.settings, display, answered=answered) as model,
        ):
            return await _work_and_report(book, round_, model, judge_client, display, handle_signals=True)

    return run_event_loop(go)


def check_run_model(book: Book, settings: Settings, *, served: bool = False) -> ModelSpec:
    """Return the run's own model; refuse another one, which would be another run, and another judge.

    With `served`, jobs will serve the model: where the settings name no address yet, the model is the planned one.
    """
    if book.manifest.parent:
        way = f"go on with rollbook reverify RUN -o {book.path}"
        raise UsageError(f"{book.path} scores another run again, without a model: {way}")
    planned = book.manifest.model
    spec = planned if served and not settings.urls else resolve_planned_model(planned, settings.urls)
    if spec != planned:
        then, now = f"{planned.kind} {planned.name}", f"{spec.kind} {spec.name}"
        detail = "; its file was edited since" if then == now else f", not with {now}"
        raise UsageError(f"{book.path} was planned with the model {then}{detail}: start a new run for another model")
    check_same_judge(book.manifest.judge, settings, book.path)
    return spec
