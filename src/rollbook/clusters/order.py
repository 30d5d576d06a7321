"""An order: all that a submission says beyond the run itself, kept in RUN/jobs/NNNN/order.json for the nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from rollbook.book.durable import write_new, writing
from rollbook.clusters.profile import Profile
from rollbook.core.json import pretty
from rollbook.errors import UsageError

ServerKind = Literal["vllm", "sglang", "command"]


class Serve(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model servers of a run. `shared` is how many jobs of their own they have; 0: each worker brings its own.

    `replicas` servers run on each node that serves, the node's GPUs split between them. Or one server runs on several
    `nodes`: a job has so many, the server's first process is on the first of them, and the others join it there.
    """

    kind: ServerKind
    name: str
    model_path: str = ""
    tensor_parallel: int = 1
    data_parallel: int = 1
    replicas: int = 1
    nodes: int = 1
    shared: int = 0
    args: list[str] = []
    command: list[str] = []
    ready_s: float = 3600.0


class Pack(msgspec.Struct, frozen=True):
    """A project folder that travels with the run: its name in RUN/jobs/pack, and the sha256 of what is in it."""

    name: str
    digest: str
    uncommitted: list[str] = []


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What was ordered: how jobs are asked for, how many workers, with which servers and which project folder."""

    profile: Profile
    workers: int
    serve: Serve | None = None
    pack: Pack | None = None
    ray: str = ""
    """The address of the Ray cluster that workers run on; empty where they are jobs of Slurm's."""
    sandbox: bool = False
    """Whether a sandbox server runs beside each worker, outside of its image."""
    sandbox_packages: list[str] = []
    install: bool = False
    """Whether jobs install Rollbook, and what the project folder requires, before they begin."""


def folder_of(run: Path, number: int) -> Path:
    """Where a submission lies."""
    return run / "jobs" / f"{number:04}"


def write_order(run: Path, order: Order) -> int:
    """Keep an order under the next number, which it gives."""
    (run / "jobs").mkdir(exist_ok=True)
    number = last_order(run) + 1
    with writing(run):
        while True:
            folder_of(run, number).mkdir(exist_ok=True)
            if write_new(folder_of(run, number) / "order.json", pretty(order)):
                return number
            number += 1


def last_order(run: Path) -> int:
    """The number of the latest submission; 0 without any."""
    numbers = [int(path.parent.name) for path in (run / "jobs").glob("[0-9]*/order.json")]
    return max(numbers, default=0)


def on_ray(run: Path) -> bool:
    """Whether the latest submission went to Ray."""
    number = last_order(run)
    return bool(number and read_order(run, number).ray)


def read_order(run: Path, number: int) -> Order:
    """A submission's order."""
    path = folder_of(run, number) / "order.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Order)
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: restore it from a copy of the run") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: {error}") from None
