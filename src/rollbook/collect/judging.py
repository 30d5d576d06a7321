"""The judge of a run: who it is, where it is, and that it is there before anything else happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from rollbook.core.manifest import ModelSpec, Settings
from rollbook.environments.court import Court, blamed
from rollbook.environments.registry import Loaded
from rollbook.errors import UsageError
from rollbook.models.target import resolve_model


def resolve_judge(targets: list[str], name: str) -> tuple[ModelSpec | None, list[str]]:
    """Who judges (which is part of a run's meaning), and where (which is not); None without a target."""
    if not targets:
        if name:
            raise UsageError(f"--judge-name {name}: give --judge URL as well")
        return None, []
    return blamed(lambda: resolve_model(targets, name))


def check_judge(loaded: Loaded, judged: bool) -> None:
    """Refuse a judge that nobody would ask, and an environment that would have to do without one."""
    check_judges([loaded], judged)


def check_judges(several: Sequence[Loaded], judged: bool) -> None:
    """The same for all environments of a run: of a blend, at least one has to ask."""
    names = ", ".join(loaded.cls.__name__ for loaded in several)
    if judged and not any(loaded.spec.appeals for loaded in several):
        has = "it has" if len(several) == 1 else "they have"
        raise UsageError(f"--judge: {names} asks no judge; {has} no async def appeal(task, rollout, score, judge)")
    for loaded in several:
        if loaded.cls.needs_judge and not judged:
            raise UsageError(f"{loaded.cls.__name__} cannot score without a judge: give --judge URL")


@asynccontextmanager
async def sitting(spec: ModelSpec | None, settings: Settings) -> AsyncIterator[Court | None]:
    """The court of a run, open for as long as the context is; None for a run without a judge."""
    if spec is None:
        yield None
        return
    if not settings.judge_urls:
        raise UsageError(f"this run is judged by {spec.name}: say where it is with --judge URL")
    court = Court(spec, settings)
    try:
        await court.open()
        yield court
    finally:
        await court.close()


def same_judge(planned: ModelSpec | None, settings: Settings, where: object) -> None:
    """A run goes on with the judge that it was planned with; another one would be another run."""
    if planned is None:
        if settings.judge_urls:
            raise UsageError(f"{where} was planned without a judge: start a new run for one")
        return
    if not settings.judge_urls:
        return
    now, _ = resolve_judge(settings.judge_urls, planned.name)
    if now != planned:
        raise UsageError(f"{where} was planned with the judge {planned.kind} {planned.name}: start a new run")


def with_judge(settings: Settings, urls: Iterable[str]) -> Settings:
    """Settings that say where the judge is."""
    return msgspec.structs.replace(settings, judge_urls=list(urls))
