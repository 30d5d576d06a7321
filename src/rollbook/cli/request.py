"""What `run` and `plan` ask for: their options gathered into one Request."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rollbook.cli.options import extra_sampling, finite
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, Settings

if TYPE_CHECKING:
    from rollbook.collect.request import Request


def request_of(
    env: str,
    *,
    given: dict[str, JSON],
    model_name: str,
    samples: int,
    limit: int | None,
    out: str | None,
    seed: int,
    temperature: float,
    top_p: float,
    max_tokens: int,
    sampling: list[str] | None,
    max_turns: int,
    timeout: float,
    verify_timeout: float,
    data: str | None,
    task: list[str] | None,
    sample: int | None,
) -> Request:
    """The request of a command line; a run directory is always named, so that it can be shown whatever happens."""
    from rollbook.collect.request import Request

    finite(temperature=temperature, top_p=top_p, timeout=timeout, verify_timeout=verify_timeout)
    return Request(
        env=env,
        model=list(given.get("urls", [])),
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=out or str(new_folder(env)),
        seed=seed,
        sampling=Sampling(temperature, top_p, max_tokens, extra_sampling(sampling)),
        limits=Limits(verify_s=verify_timeout, rollout_s=timeout, max_turns=max_turns),
        settings=Settings(**given),
        data=data,
        tasks=task,
        sample=sample,
    )


def new_folder(env: str) -> Path:
    """A run directory that does not exist yet: runs/ENVIRONMENT-TIME."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", env.partition("?")[0]).strip("-.") or "run"
    stem = Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 100))]
    return next((folder for folder in candidates if not folder.exists()), stem)
