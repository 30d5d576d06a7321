"""The scripts of a submission: shell that sets up the environment of a job and hands over to Python.

Nothing is decided in a script. The scheduler writes the directives at its top; all else is the same everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import Literal

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
    bad_nodes = read_bad_nodes(run)
    made = {"workers.sh": make_array_script(run, number, "worker", order, count, bad_nodes)}
    if order.serve and order.serve.shared:
        made["servers.sh"] = make_array_script(run, number, "server", order, order.serve.shared, bad_nodes)
    return made | {"report.sh": make_report_script(run, number, order)}


def make_array_script(
    run: Path,
    number: int,
    role: Literal["worker", "server"],
    order: SubmissionOrder,
    count: int,
    bad_nodes: Sequence[str] = (),
) -> str:
    """Return the script of an array of workers, or of jobs that serve the model to all workers."""
    serves, shared = role == "server", bool(order.serve and order.serve.shared)
    job = BatchJob(
        profile=order.profile,
        run=run,
        role=role,
        # Workers need the GPUs where they bring the model along, or where no server is started.
        devices=serves or not shared,
        count=count,
        # Several where a server that spans them is the job's own.
        nodes=order.serve.nodes if order.serve and serves == shared else 1,
        bad_nodes=bad_nodes,
    )
    if serves:
        order = msgspec.structs.replace(order, sandbox=False)  # no code of the model's is run here
    body = _script_body(run, number, order, "worker", NODE_MODULE, role, str(run), str(number))
    return _join_script(f"{'model servers' if serves else 'workers'} of {run}", order, job, body)


def make_report_script(run: Path, number: int, order: SubmissionOrder) -> str:
    """Return the script of the job after all workers, however they ended: the book shows whether all is complete."""
    job = BatchJob(profile=order.profile, run=run, role="report", devices=False)
    order = msgspec.structs.replace(order, sandbox=False)
    body = _script_body(run, number, order, "report", "rollbook", "report", str(run))
    return _join_script(f"report of {run}", order, job, body)


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
