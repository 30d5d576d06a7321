"""`python -m rollbook.clusters.ssh_remote VERB RUN`: what `ssh.py` asks for on the other host. Never run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.clusters import slurm
from rollbook.clusters.job_files import ClusterJob, SubmissionOrder
from rollbook.clusters.job_status import ClusterStatus, cancel_run, read_cluster_status
from rollbook.clusters.resubmission import extend_submitted_run, resubmit, was_submitted
from rollbook.clusters.ssh import Say, SshRequest
from rollbook.clusters.submission import check_secrets, find_upstream_jobs, submit_jobs
from rollbook.core import JSON, encode_line
from rollbook.engine import package_versions
from rollbook.errors import RollbookError, UsageError


def _require_order(request: SshRequest) -> SubmissionOrder:
    if request.order is None:
        raise UsageError("nothing was ordered: this is asked by `rollbook submit` alone")
    return request.order


def handle_prepare(run: Path, request: SshRequest, say: Say) -> None:
    """Stop what cannot go well: another Rollbook, no Slurm, a secret that is not here, a place that is taken."""
    order = _require_order(request)
    own = package_versions()["rollbook"]
    if request.version != own:
        raise UsageError(f"Rollbook is {own} there and {request.version} here: install the same one")
    if run.exists():
        raise UsageError(f"{run} exists there already: choose another --out")
    check_secrets(order)
    slurm.read_max_array_size()
    find_upstream_jobs(order.profile.after)
    run.parent.mkdir(parents=True, exist_ok=True)


def handle_submit(run: Path, request: SshRequest, say: Say) -> list[ClusterJob]:
    """Hand in what has arrived."""
    order = _require_order(request)
    check_secrets(order)
    return submit_jobs(run, order, slurm.read_max_array_size(), find_upstream_jobs(order.profile.after), say).jobs


def handle_known(run: Path, request: SshRequest, say: Say) -> bool:
    """Whether it has arrived and was handed in."""
    return was_submitted(run)


def handle_resume(run: Path, request: SshRequest, say: Say) -> list[ClusterJob] | None:
    """Submit what is missing."""
    sent = resubmit(run, request.given, request.retry, request.profile, say)
    return None if sent is None else sent.jobs


def handle_extend(run: Path, request: SshRequest, say: Say) -> list[ClusterJob]:
    """More samples."""
    return extend_submitted_run(run, request.samples, request.given, say).jobs


def handle_status(run: Path, request: SshRequest, say: Say) -> ClusterStatus:
    """How it stands."""
    return read_cluster_status(run)


def handle_cancel(run: Path, request: SshRequest, say: Say) -> int:
    """End its jobs."""
    return cancel_run(run)


HANDLERS: dict[str, Callable[[Path, SshRequest, Say], JSON]] = {
    "prepare": handle_prepare,
    "send": handle_submit,
    "known": handle_known,
    "resume": handle_resume,
    "extend": handle_extend,
    "look": handle_status,
    "cancel": handle_cancel,
}


def main(words: list[str]) -> int:
    """Answer on the last line of standard output."""
    verb, run = words
    notes: list[str] = []
    try:
        asked = msgspec.json.decode(sys.stdin.buffer.read(), type=SshRequest)
        value = HANDLERS[verb](Path(run), asked, notes.append)
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code
    sys.stdout.buffer.write(b"\n" + encode_line({"notes": notes, "value": value}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
