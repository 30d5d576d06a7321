"""`python -m rollbook.clusters.ssh_remote VERB RUN`: what `ssh` runs on the other host. Never run by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollbook.clusters.job_files import ClusterJob, SubmissionOrder
from rollbook.clusters.job_process import run_entry_point
from rollbook.clusters.job_status import cancel_run, read_cluster_status
from rollbook.clusters.resubmission import extend_submitted_run, resubmit, was_submitted
from rollbook.clusters.scheduler import Say, find_scheduler
from rollbook.clusters.ssh import SshRequest
from rollbook.clusters.submission import check_secrets, find_upstream_jobs, submit_jobs
from rollbook.core import JSON, encode_line
from rollbook.engine import package_versions
from rollbook.errors import UsageError


def _require_order(request: SshRequest) -> SubmissionOrder:
    if request.order is None:
        raise UsageError("no request came: only `rollbook submit` runs this")
    return request.order


def handle_prepare(run: Path, request: SshRequest, say: Say) -> None:
    """Refuse another version of Rollbook, no scheduler, a secret that is not set, a run directory that exists."""
    order = _require_order(request)
    own = package_versions()["rollbook"]
    if request.version != own:
        raise UsageError(f"Rollbook is {own} there and {request.version} here: install the same version")
    if run.exists():
        raise UsageError(f"{run} exists there already: choose another --out")
    check_secrets(order)
    scheduler = find_scheduler(order.scheduler)
    scheduler.read_max_array_size()
    find_upstream_jobs(scheduler, order.profile.after)
    run.parent.mkdir(parents=True, exist_ok=True)


def handle_submit(run: Path, request: SshRequest, say: Say) -> list[ClusterJob]:
    """Submit a run directory that was copied here."""
    order = _require_order(request)
    check_secrets(order)
    scheduler = find_scheduler(order.scheduler)
    after = find_upstream_jobs(scheduler, order.profile.after)
    return submit_jobs(run, order, scheduler.read_max_array_size(), after, say).jobs


def handle_resume(run: Path, request: SshRequest, say: Say) -> list[ClusterJob] | None:
    """Submit what is missing."""
    submission = resubmit(run, request.given, request.retry, request.profile, say, request.scheduler)
    return None if submission is None else submission.jobs


def handle_extend(run: Path, request: SshRequest, say: Say) -> list[ClusterJob]:
    """Add samples, and submit workers for them."""
    return extend_submitted_run(run, request.samples, request.given, say, request.scheduler).jobs


HANDLERS: dict[str, Callable[[Path, SshRequest, Say], JSON]] = {
    "prepare": handle_prepare,
    "send": handle_submit,
    "known": lambda run, request, say: was_submitted(run),
    "resume": handle_resume,
    "extend": handle_extend,
    "look": lambda run, request, say: read_cluster_status(run),
    "cancel": lambda run, request, say: cancel_run(run),
}


def main(words: list[str]) -> int:
    """Handle a request; the answer is the last line of standard output."""
    verb, run = words
    notes: list[str] = []
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=SshRequest)
    value = HANDLERS[verb](Path(run), request, notes.append)
    sys.stdout.buffer.write(b"\n" + encode_line({"notes": notes, "value": value}))
    return 0


if __name__ == "__main__":
    run_entry_point(main)
