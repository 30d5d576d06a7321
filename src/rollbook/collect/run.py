"""`run` is: plan, work, report. The same steps one by one are `plan_request`, `work`, `resume` and `extend`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import msgspec

from rollbook.book.book import Book, refuse_occupied
from rollbook.book.claims import nothing_left
from rollbook.book.durable import writing
from rollbook.collect.answering import model_for, planned_model
from rollbook.collect.crew import Crew, Start
from rollbook.collect.judging import check_judges, resolve_judge, same_judge, sitting, with_judge
from rollbook.collect.loop import here_or_there, on_fast_loop
from rollbook.collect.member import members_of
from rollbook.collect.planning import check_unchanged, plan
from rollbook.collect.progress import Display, Silent
from rollbook.collect.report import Report, report
from rollbook.collect.request import Request
from rollbook.collect.shortfall import shortfall
from rollbook.collect.work import work_on
from rollbook.core.failure import check_retry
from rollbook.core.json import JSON
from rollbook.core.line import SCHEMA
from rollbook.core.manifest import Limits, ModelSpec, Round, Sampling, Settings, ToolFormat
from rollbook.environments.court import Court
from rollbook.environments.environment import Environment
from rollbook.errors import UsageError
from rollbook.models.model import Model
from rollbook.models.target import open_model

T = TypeVar("T")
Muster: TypeAlias = Callable[[Book, Round], Start]
"""Says how the workers of a round are started, where they are not processes of ours."""


class Result(msgspec.Struct, frozen=True):
    """A run that came to its end: where it lies and what it says."""

    path: Path
    report: Report


def run(
    env: str | Environment,
    model: str | list[str] = (),  # type: ignore[assignment]
    *,
    model_name: str = "",
    samples: int = 1,
    limit: int | None = None,
    out: str | Path,
    seed: int = 0,
    data: str | None = None,
    template: str | None = None,
    judge: str | list[str] = (),  # type: ignore[assignment]
    judge_name: str = "",
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    tool_format: Literal["auto"] | ToolFormat = "auto",
    agent: str = "",
    continue_tokens: bool = False,
    allow_shortfall: bool = False,
    **settings: JSON,
) -> Result | Awaitable[Result]:
    """Run a model `samples` times on every task; returns when all are scored, raises Shortfall when some are not.

    `env` is an environment, as on the command line or made here, or a blend: the path of a YAML file of several.
    `agent` may be `program:COMMAND`, an outside program that plays every rollout.
    A plain call works and returns the result; inside a running event loop, await what it returns. `settings` are the
    operational ones of core.manifest.Settings, such as concurrency=64.
    """
    targets = [model] if isinstance(model, str) else list(model)
    request = Request(
        env=env,
        model=targets,
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=str(out),
        seed=seed,
        data=data,
        template=template,
        judge=[judge] if isinstance(judge, str) else list(judge),
        judge_name=judge_name,
        sampling=sampling,
        limits=limits,
        settings=settings_of(Settings(), settings),
        tool_format=tool_format,
        agent=agent,
        continue_tokens=continue_tokens,
    )
    return here_or_there(lambda: _run(request, Silent(), signals=False, allow_shortfall=allow_shortfall))


def settings_of(base: Settings, changes: dict[str, JSON]) -> Settings:
    """Settings with changes; an unknown one is refused with the known ones."""
    unknown = set(changes) - set(Settings.__struct_fields__)
    if unknown:
        known = ", ".join(Settings.__struct_fields__)
        raise UsageError(f"no setting is called {sorted(unknown)[0]}; there are {known}")
    try:
        return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(base, **changes)), Settings)
    except msgspec.ValidationError as error:
        raise UsageError(f"settings: {error}") from None


def run_request(request: Request, display: Display, muster: Muster | None = None) -> Result:
    """The command line's run: signals drain it."""
    return on_fast_loop(lambda: _run(request, display, signals=True, muster=muster))


def work_off(book: Book, display: Display, muster: Muster) -> Result:
    """Work off a book's present round with workers that are started elsewhere."""
    return on_fast_loop(lambda: _work(book, book.rounds()[-1], None, None, display, signals=True, muster=muster))


async def _run(
    request: Request,
    display: Display,
    *,
    signals: bool,
    allow_shortfall: bool = False,
    muster: Muster | None = None,
) -> Result:
    refuse_occupied(Path(request.out))
    members = members_of(request)
    spec, urls = model_for([member.loaded for member in members], request.model, request.model_name)
    judge, judge_urls = resolve_judge(request.judge, request.judge_name)
    settings = with_judge(msgspec.structs.replace(request.settings, urls=urls), judge_urls)
    check_judges([member.loaded for member in members], judge is not None)
    alone = settings.workers == 1 and muster is None
    async with sitting(judge, settings) as court, opened(spec, settings, display, alone) as model:
        judge = court.spec if court else None
        book = plan(request, members, model.spec if model else spec, settings, judge, display.note)
        return await _work(book, book.rounds()[0], model, court, display, signals, allow_shortfall, muster)


@asynccontextmanager
async def opened(
    spec: ModelSpec, settings: Settings, display: Display, alone: bool | None = None
) -> AsyncIterator[Model | None]:
    """A model, open for as long as the context is; None where a crew's workers open their own."""
    if not (settings.workers == 1 if alone is None else alone) and spec.name:
        yield None
        return
    model = open_model(spec, settings, say=display.note)
    try:
        await model.open()
        yield model
    finally:
        await model.close()


async def _work(
    book: Book,
    round_: Round,
    model: Model | None,
    court: Court | None,
    display: Display,
    signals: bool,
    allow_shortfall: bool = False,
    muster: Muster | None = None,
) -> Result:
    """Work alone or with a crew, then count what the files say."""
    with writing(book.path):
        if muster or model is None or round_.settings.workers > 1:
            start = muster(book, round_) if muster else None
            cause = await Crew(book, round_, display, start).work(signals=signals)
        else:
            cause = (await work_on(book, round_, model, display, court=court, signals=signals)).verdict
        made = await asyncio.to_thread(report, book.path)
    return _finish(book, made, cause, allow_shortfall)


def _finish(book: Book, made: Report, cause: str = "", allow_shortfall: bool = False) -> Result:
    """All scored is a result; anything less is an exception, unless it was allowed."""
    if made.scored < made.requested and not allow_shortfall:
        raise shortfall(made, cause)
    return Result(book.path, made)


def plan_request(request: Request, say: Callable[[str], None] = lambda _: None) -> Path:
    """Write the run directory and the settings of its first round; asks no model."""
    members = members_of(request)
    spec, urls = model_for([member.loaded for member in members], request.model, request.model_name)
    if not spec.name:
        raise UsageError("plan asks no model, so it cannot learn its name: give --model-name")
    judge, judge_urls = resolve_judge(request.judge, request.judge_name)
    if judge and not judge.name:
        raise UsageError("plan asks no judge, so it cannot learn its name: give --judge-name")
    check_judges([member.loaded for member in members], judge is not None)
    first = with_judge(msgspec.structs.replace(request.settings, urls=urls), judge_urls)
    return plan(request, members, spec, first, judge, say).path


def work(run: str | Path, given: dict[str, JSON], display: Display) -> Result:
    """Join a run's present round as one more worker."""
    book = Book(run)
    rounds = book.rounds()
    base = rounds[-1] if rounds else book.open_round(Settings())
    settings = settings_of(base.settings, {"workers": 1, **given})
    for note in check_unchanged(book):
        display.note(note)
    return _go_on(book, msgspec.structs.replace(base, settings=settings), display)


def resume(run: str | Path, given: dict[str, JSON], retry: list[str] | None, display: Display) -> Result:
    """Open a new round with fresh budgets: finish what is missing, and try again what `retry` names."""
    return _new_round(Book(run), {**given, "retry": check_retry(retry or ["infra"])}, display)


def extend(run: str | Path, samples: int, given: dict[str, JSON], display: Display) -> Result:
    """Add samples to every task that has fewer than `samples`, and work them off."""
    book = Book(run)
    held = _held(book)
    settings = settings_of(_last(book), given)
    _check_model(book, settings)
    with writing(book.path):
        added = book.extend(samples, settings.workers)
    if not added:
        raise UsageError(f"{run} has {held} samples of every task already: give more than that with -k")
    return _new_round(book, {"retry": [], **given}, display)


def _held(book: Book) -> int:
    """How many samples of every task there are; in a blend, of those that have the fewest."""
    most: dict[str, int] = {}
    for part in book.plan.parts:
        env = book.tasks.task(part.tasks[0]).env
        most[env] = max(most.get(env, 0), part.samples[1])
    return min(most.values(), default=0)


def _last(book: Book) -> Settings:
    rounds = book.rounds()
    return rounds[-1].settings if rounds else Settings()


def _new_round(book: Book, changes: dict[str, JSON], display: Display) -> Result:
    settings = settings_of(_last(book), changes)
    _check_model(book, settings)
    for note in check_unchanged(book):
        display.note(note)
    rounds = book.rounds()
    if nothing_left(book, [*rounds, Round(SCHEMA, len(rounds) + 1, 0.0, settings)]):
        display.note("nothing is left to do")
        with writing(book.path):
            return _finish(book, report(book.path))
    return _go_on(book, book.open_round(settings), display)


def _go_on(book: Book, round_: Round, display: Display) -> Result:
    spec = _check_model(book, round_.settings)

    async def go() -> Result:
        async with (
            sitting(book.manifest.judge, round_.settings) as court,
            opened(spec, round_.settings, display) as model,
        ):
            return await _work(book, round_, model, court, display, signals=True)

    return on_fast_loop(go)


def _check_model(book: Book, settings: Settings) -> ModelSpec:
    """The run's own model; another one would be another run."""
    if book.manifest.parent:
        way = f"go on with rollbook reverify RUN -o {book.path}"
        raise UsageError(f"{book.path} scores another run again, without a model: {way}")
    planned = book.manifest.model
    spec = planned_model(planned, settings.urls)
    if spec != planned:
        then, now = f"{planned.kind} {planned.name}", f"{spec.kind} {spec.name}"
        detail = "; its file was edited since" if then == now else f", not with {now}"
        raise UsageError(f"{book.path} was planned with the model {then}{detail}: start a new run for another model")
    same_judge(book.manifest.judge, settings, book.path)
    return spec
