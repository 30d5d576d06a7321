"""`python -m rollbook.clusters.there VERB RUN`: what `far.py` asks for over there. Never run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.clusters import slurm
from rollbook.clusters.after import upstream
from rollbook.clusters.cancel import cancel_run
from rollbook.clusters.far import Asked, Say
from rollbook.clusters.jobs import Job
from rollbook.clusters.looking import Look, look
from rollbook.clusters.order import Order
from rollbook.clusters.resuming import extend_there, resubmit, was_submitted
from rollbook.clusters.submit import check_secrets, send
from rollbook.collect.planning import versions
from rollbook.core.json import JSON, to_line
from rollbook.errors import RollbookError, UsageError


def _order(asked: Asked) -> Order:
    if asked.order is None:
        raise UsageError("nothing was ordered: this is asked by `rollbook submit` alone")
    return asked.order


def prepare(run: Path, asked: Asked, say: Say) -> None:
    """Stop what cannot go well: another Rollbook, no Slurm, a secret that is not here, a place that is taken."""
    order = _order(asked)
    own = versions()["rollbook"]
    if asked.version != own:
        raise UsageError(f"Rollbook is {own} there and {asked.version} here: install the same one")
    if run.exists():
        raise UsageError(f"{run} exists there already: choose another --out")
    check_secrets(order)
    slurm.max_array_size()
    upstream(order.profile.after)
    run.parent.mkdir(parents=True, exist_ok=True)


def submit(run: Path, asked: Asked, say: Say) -> list[Job]:
    """Hand in what has arrived."""
    order = _order(asked)
    check_secrets(order)
    return send(run, order, slurm.max_array_size(), upstream(order.profile.after), say).jobs


def known(run: Path, asked: Asked, say: Say) -> bool:
    """Whether it has arrived and was handed in."""
    return was_submitted(run)


def resume(run: Path, asked: Asked, say: Say) -> list[Job] | None:
    """Submit what is missing."""
    sent = resubmit(run, asked.given, asked.retry, asked.profile, say)
    return None if sent is None else sent.jobs


def extend(run: Path, asked: Asked, say: Say) -> list[Job]:
    """More samples."""
    return extend_there(run, asked.samples, asked.given, say).jobs


def standing(run: Path, asked: Asked, say: Say) -> Look:
    """How it stands."""
    return look(run)


def cancel(run: Path, asked: Asked, say: Say) -> int:
    """End its jobs."""
    return cancel_run(run)


VERBS: dict[str, Callable[[Path, Asked, Say], JSON]] = {
    "prepare": prepare,
    "send": submit,
    "known": known,
    "resume": resume,
    "extend": extend,
    "look": standing,
    "cancel": cancel,
}


def main(words: list[str]) -> int:
    """Answer on the last line of standard output."""
    verb, run = words
    notes: list[str] = []
    try:
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
        value = VERBS[verb](Path(run), asked, notes.append)
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code
    sys.stdout.buffer.write(b"\n" + to_line({"notes": notes, "value": value}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
