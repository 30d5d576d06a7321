"""The text that Slurm is given. Nothing is decided in it: the last line hands over to Python."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote

import msgspec

from rollbook.clusters.containers import SANDBOX, contained
from rollbook.clusters.installing import INSTALLER
from rollbook.clusters.order import Order, folder_of
from rollbook.clusters.profile import Part, Profile

CONTAINED_PYTHON = "python3"
EXCLUDE = "--exclude="
NODE = "rollbook.clusters.node"
BESIDE = "rollbook.clusters.beside"


def workers_script(run: Path, number: int, order: Order, count: int, exclude: Sequence[str] = ()) -> str:
    """An array of workers."""
    own = _header(order.profile, run, "worker", "%A_%a", devices=_own_devices(order), nodes=_nodes(order, shared=False))
    own += [f"--array=0-{count - 1}", "--requeue", f"--signal=B:USR1@{order.profile.grace_s}"]
    own += _exclude(order.profile, exclude)
    return _script(f"workers of {run}", own, _body(run, number, order, "worker", NODE, "worker", str(run), str(number)))


def servers_script(run: Path, number: int, order: Order, count: int, exclude: Sequence[str] = ()) -> str:
    """An array of jobs that serve the model to all workers."""
    own = _header(order.profile, run, "server", "%A_%a", devices=True, nodes=_nodes(order, shared=True))
    own += [f"--array=0-{count - 1}", "--requeue", f"--signal=B:USR1@{order.profile.grace_s}"]
    own += _exclude(order.profile, exclude)
    order = msgspec.structs.replace(order, sandbox=False)  # no code of the model's is run here
    body = _body(run, number, order, "worker", NODE, "server", str(run), str(number))
    return _script(f"model servers of {run}", own, body)


def report_script(run: Path, number: int, order: Order) -> str:
    """The job that comes after all workers, whatever became of them: the book says whether all is there."""
    own = _header(order.profile, run, "report", "%j", devices=False)
    order = msgspec.structs.replace(order, sandbox=False)
    return _script(f"report of {run}", own, _body(run, number, order, "report", "rollbook", "report", str(run)))


def _nodes(order: Order, *, shared: bool) -> int:
    """How many nodes a job has: several where a server that spans them is its own."""
    return order.serve.nodes if order.serve and bool(order.serve.shared) == shared else 1


def excluded(profile: Profile, bad: Sequence[str]) -> list[str]:
    """The nodes that no worker is to start on: those that the profile names, and those that did not do."""
    named = [option.partition("=")[2] for option in profile.options if option.startswith(EXCLUDE)]
    return [*named, *bad]


def _exclude(profile: Profile, bad: Sequence[str]) -> list[str]:
    nodes = excluded(profile, bad)
    return [f"{EXCLUDE}{','.join(nodes)}"] if nodes else []


def _own_devices(order: Order) -> bool:
    """Workers need the GPUs where they bring the model along, or where nobody serves it at all."""
    return order.serve is None or not order.serve.shared


def _header(profile: Profile, run: Path, part: str, stem: str, *, devices: bool, nodes: int = 1) -> list[str]:
    log = f"{_unexpanded(run / 'logs')}/slurm-{stem}.log"
    elsewhere = not devices and profile.cpu_partition is not None
    asked = {
        "job-name": f"{profile.name}-{part}"[:100],
        "account": profile.account,
        "partition": profile.cpu_partition if elsewhere else profile.partition,
        "qos": None if elsewhere else profile.qos,
        "time": None if elsewhere else profile.time,
        "nodes": str(nodes),
        "ntasks": str(nodes),
        "cpus-per-task": str(profile.cpus) if devices and profile.cpus else None,
        "gpus-per-node": str(profile.gpus) if devices and profile.gpus else None,
        "gres": profile.gres if devices else None,
        "output": log,
        "open-mode": "append",
    }
    own = [f"--{name}={value}" for name, value in asked.items() if value is not None]
    own += ["--exclusive"] if devices and profile.exclusive else []
    return own + ([] if elsewhere else [each for each in profile.options if not each.startswith(EXCLUDE)])


def _unexpanded(path: Path) -> str:
    """A path in which sbatch finds nothing to fill in."""
    return str(path).replace("%", "%%")


def _script(what: str, own: Sequence[str], body: Sequence[str]) -> str:
    title = f"# Rollbook: {what.replace(chr(10), ' ')}"
    return "\n".join(["#!/bin/bash", title, *(f"#SBATCH {_directive(each)}" for each in own), *body, ""])


def _directive(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}{equals}{quote(value)}" if equals else name


def _body(run: Path, number: int, order: Order, part_name: str, module: str, *words: str) -> list[str]:
    profile = order.profile
    part: Part = getattr(profile, part_name)
    inside = contained(profile, part_name, run, SANDBOX if order.sandbox else ())
    lines = ["set -euo pipefail"]
    if order.pack:
        packed = quote(str(run / "jobs" / "pack" / order.pack.name))
        lines.append(f'export PYTHONPATH={packed}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines += [f"export {name}={quote(value)}" for name, value in part.environment.items()]
    # The lines of a profile were written for a shell that lets variables be unset.
    lines += ["set +u", *profile.setup, "set -u"] if profile.setup else []
    lines += [f"cd {quote(part.workdir)}"] if part.workdir and not inside else []
    python = profile.python or (CONTAINED_PYTHON if inside else _own_python(profile))
    command = [*inside, *_python(run, number, order, python), "-m", module, *words]
    return [*lines, f"exec {join([*_beside(run, number, order), *command])}"]


def _own_python(profile: Profile) -> str:
    """The Python that submits."""
    return profile.ssh.python if profile.ssh else sys.executable


def _python(run: Path, number: int, order: Order, python: str) -> list[str]:
    """Python, by way of the installer where something is to be installed first."""
    return [python, "-P", *([str(folder_of(run, number) / INSTALLER)] if order.install else [])]


def _beside(run: Path, number: int, order: Order) -> list[str]:
    """What puts a sandbox server beside the worker: on the node itself, whatever image the worker is in."""
    if not order.sandbox:
        return []
    profile = order.profile
    python = profile.sandbox_python or (None if profile.image_of("worker") else profile.python)
    python = python or _own_python(profile)
    return [*_python(run, number, order, python), "-m", BESIDE, str(run), str(number), "--"]
