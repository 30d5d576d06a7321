"""How the workers of a round are started on Ray: an errand for each, and an actor that runs it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollbook.book.book import Book
from rollbook.clusters.order import Order
from rollbook.clusters.ray.cluster import Cluster
from rollbook.clusters.ray.hand import RayHand
from rollbook.clusters.ray.post import Errand
from rollbook.collect.crew import Start
from rollbook.core.manifest import Round, Settings

WORKER = "rollbook.clusters.ray.worker"
FOREMAN = "rollbook.clusters.ray.foreman"
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Where Ray looks for the runtime environment of a program that joins a cluster."""


def mustered(cluster: Cluster, run: Path, number: int, order: Order, round_: Round) -> Start:
    """What starts the worker with a number."""

    def start(seat: int) -> RayHand:
        log = run / "logs" / f"worker-{round_.number}-{seat}.log"
        return RayHand(cluster, order, sent(WORKER, log))

    sent = partial(errand, run, number, order, round_.settings)
    return start


def errand(run: Path, number: int, order: Order, settings: Settings, module: str, log: Path) -> Errand:
    """What an actor is to do, with the variables that it is to have of ours."""
    worker = order.profile.worker
    pack = str(run / "jobs" / "pack" / order.pack.name) if order.pack else ""
    environ = worker.environment | inherited([*order.profile.secrets, settings.api_key_env, settings.judge_key_env])
    return Errand(module, str(run), Book(run).manifest.run, number, str(log), environ, pack, worker.workdir or "")


def inherited(names: Sequence[str]) -> dict[str, str]:
    """Variables of ours by their names. Actors have those of their node, not those of whoever starts them."""
    return {name: os.environ[name] for name in names if name in os.environ}


def surroundings(cluster: Cluster) -> dict[str, str]:
    """What lets a program that an actor starts give its own actors the runtime environment that ours have."""
    known = dict(cluster.ray.get_runtime_context().runtime_env)
    return {JOB_CONFIG: json.dumps({"runtime_env": known})} if known else {}
