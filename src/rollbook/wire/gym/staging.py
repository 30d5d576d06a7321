"""An environment on a stage of its own, for as long as it is served."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollbook.collect.judging import check_judge, resolve_judge, sitting, with_judge
from rollbook.collect.member import name_of
from rollbook.collect.work import stages
from rollbook.core.manifest import Limits, Settings
from rollbook.environments.registry import Loaded
from rollbook.environments.snapshot import snapshot
from rollbook.environments.stage import Stage


@asynccontextmanager
async def staged(loaded: Loaded, limits: Limits, settings: Settings, judge_name: str = "") -> AsyncIterator[Stage]:
    """The stage that a run would have: the source pinned, sync methods in processes, the judge opened first."""
    spec, urls = resolve_judge(settings.judge_urls, judge_name)
    check_judge(loaded, spec is not None)
    name = name_of(loaded)
    with tempfile.TemporaryDirectory(prefix="rollbook-") as path:
        folder = Path(path)
        pinned = snapshot(loaded, folder / "source")
        async with (
            sitting(spec, with_judge(settings, urls)) as court,
            stages(
                {name: pinned},
                limits,
                run=folder,
                hosts=settings.hosts,
                instances={name: loaded.instance},
                court=court,
            ) as on,
        ):
            yield on[name]
