"""The scripts of a submission: shell that sets up the environment of a job and hands over to Python.

Nothing is decided in a script. The scheduler writes the directives at its top; all else is the same everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote

import msgspec

from rollbook.clusters.job_files import SubmissionOrder, read_bad_nodes, submission_folder
from rollbook.clusters.packing import INSTALLER_NAME
from rollbook.clusters.profile import ClusterProfile, RoleProfile
from rollbook.clusters.scheduler import BatchJob, find_scheduler

CONTAINER_PYTHON = "python3"
NODE_MODULE = "rollbook.clusters.node"
SIDECAR_MODULE = "rollbook.clusters.sandbox_sidecar"
SANDBOX_VARIABLES = ("ROLLBOOK_SANDBOX", "NEMO_SKILLS_SANDBOX_HOST", "NEMO_SKILLS_SANDBOX_PORT")
"""What is exported of a sandbox next to a worker: our own name, with the token in it, and those of NeMo-Skills."""


def make_scripts(run: Path, number: int, order: SubmissionOrder, max_array: int) -> dict[str, str]:
    """Return the scripts of a submission by their file names."""
    count = max(1, min(order.workers, max_array))
    made = {"workers.sh": make_workers_script(run, number, order, count, read_bad_nodes(run))}
    if order.serve and order.serve.shared:
        made["servers.sh"] = make_servers_script(run, number, order, order.serve.shared, read_bad_nodes(run))
    return made | {"report.sh": make_report_script(run, number, order)}


def make_workers_script(
    run: Path, number: int, order: SubmissionOrder, count: int, bad_nodes: Sequence[str] = ()
) -> str:
    """Return the script of an array of workers."""
    job = BatchJob(
        profile=order.profile,
        run=run,
        role="worker",
        # Workers need the GPUs where they bring the model along, or where nobody serves it at all.
        devices=order.serve is None or not order.serve.shared,
        count=count,
        nodes=_count_nodes(order, shared=False),
        bad_nodes=bad_nodes,
    )
    body = _script_body(run, number, order, "worker", NODE_MODULE, "worker", str(run), str(number))
    return _join_script(f"workers of {run}", order, job, body)


def make_servers_script(
    run: Path, number: int, order: SubmissionOrder, count: int, bad_nodes: Sequence[str] = ()
) -> str:
    """Return the script of an array of jobs that serve the model to all workers."""
    job = BatchJob(
        profile=order.profile,
        run=run,
        role="server",
        devices=True,
        count=count,
        nodes=_count_nodes(order, shared=True),
        bad_nodes=bad_nodes,
    )
    order = msgspec.structs.replace(order, sandbox=False)  # no code of the model's is run here
    body = _script_body(run, number, order, "worker", NODE_MODULE, "server", str(run), str(number))
    return _join_script(f"model servers of {run}", order, job, body)


def make_report_script(run: Path, number: int, order: SubmissionOrder) -> str:
    """Return the script of the job after all workers, however they ended: the book says whether all is there."""
    job = BatchJob(profile=order.profile, run=run, role="report", devices=False)
    order = msgspec.structs.replace(order, sandbox=False)
    body = _script_body(run, number, order, "report", "rollbook", "report", str(run))
    return _join_script(f"report of {run}", order, job, body)


def _count_nodes(order: SubmissionOrder, *, shared: bool) -> int:
    """How many nodes a job has: several where a server that spans them is its own."""
    return order.serve.nodes if order.serve and bool(order.serve.shared) == shared else 1


def _join_script(what: str, order: SubmissionOrder, job: BatchJob, body: Sequence[str]) -> str:
    title = f"# Rollbook: {what.replace(chr(10), ' ')}"
    return "\n".join(["#!/bin/bash", title, *find_scheduler(order.scheduler).make_directives(job), *body, ""])


def _script_body(run: Path, number: int, order: SubmissionOrder, role: str, module: str, *words: str) -> list[str]:
    profile = order.profile
    part: RoleProfile = getattr(profile, role)
    container = make_container_argv(order, role, run, SANDBOX_VARIABLES if order.sandbox else ())
    lines = ["set -euo pipefail"]
    if order.pack:
        packed = quote(str(run / "jobs" / "pack" / order.pack.name))
        lines.append(f'export PYTHONPATH={packed}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines += [f"export {name}={quote(value)}" for name, value in part.environment.items()]
    # The lines of a profile were written for a shell that lets variables be unset.
    lines += ["set +u", *profile.setup, "set -u"] if profile.setup else []
    lines += [f"cd {quote(part.workdir)}"] if part.workdir and not container else []
    python = profile.python or (CONTAINER_PYTHON if container else _submitting_python(profile))
    command = [*container, *_python_argv(run, number, order, python), "-m", module, *words]
    return [*lines, f"exec {join([*_sidecar_argv(run, number, order), *command])}"]


def _submitting_python(profile: ClusterProfile) -> str:
    return profile.ssh.python if profile.ssh else sys.executable


def _python_argv(run: Path, number: int, order: SubmissionOrder, python: str) -> list[str]:
    """Python, by way of the installer where something has to be installed first."""
    return [python, "-P", *([str(submission_folder(run, number) / INSTALLER_NAME)] if order.install else [])]


def _sidecar_argv(run: Path, number: int, order: SubmissionOrder) -> list[str]:
    """The start of a command with a sandbox server next to it: on the node itself, whatever image the worker is in."""
    if not order.sandbox:
        return []
    profile = order.profile
    python = profile.sandbox_python or (None if profile.image_of("worker") else profile.python)
    python = python or _submitting_python(profile)
    return [*_python_argv(run, number, order, python), "-m", SIDECAR_MODULE, str(run), str(number), "--"]


def make_container_argv(order: SubmissionOrder, role: str, run: Path, variables: Sequence[str] = ()) -> list[str]:
    """Return the start of a role's command, empty where it runs in no image; the container gets the `variables`."""
    profile = order.profile
    image = profile.image_of(role)
    if image is None:
        return []
    part: RoleProfile = getattr(profile, role)
    mounts = [*profile.mounts, *part.mounts, f"{run}:{run}"]
    if profile.container == "apptainer":
        return _apptainer_argv(image, mounts, part.workdir, bool(profile.gpus or profile.gres))
    names = [*profile.secrets, *part.environment, *variables]
    return find_scheduler(order.scheduler).make_container_argv(image, mounts, part.workdir, names)


def _apptainer_argv(image: str, mounts: Sequence[str], workdir: str | None, gpus: bool) -> list[str]:
    words = ["apptainer", "exec", *(["--nv"] if gpus else [])]
    for mount in mounts:
        words += ["--bind", mount]
    words += ["--pwd", workdir] if workdir else []
    return [*words, image]
