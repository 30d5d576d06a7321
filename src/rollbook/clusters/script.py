"""The text that Slurm is given. Nothing is decided in it: the last line hands over to Python."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote

from rollbook.clusters.containers import contained
from rollbook.clusters.order import Order
from rollbook.clusters.profile import Part, Profile

CONTAINED_PYTHON = "python3"
EXCLUDE = "--exclude="
NODE = "rollbook.clusters.node"


def workers_script(run: Path, number: int, order: Order, count: int, exclude: Sequence[str] = ()) -> str:
    """An array of workers."""
    own = _header(order.profile, run, "worker", "%A_%a", devices=_own_devices(order))
    own += [f"--array=0-{count - 1}", "--requeue", f"--signal=B:USR1@{order.profile.grace_s}"]
    own += _exclude(order.profile, exclude)
    return _script(f"workers of {run}", own, _body(run, order, "worker", NODE, "worker", str(run), str(number)))


def servers_script(run: Path, number: int, order: Order, count: int, exclude: Sequence[str] = ()) -> str:
    """An array of nodes that serve the model to all workers."""
    own = _header(order.profile, run, "server", "%A_%a", devices=True)
    own += [f"--array=0-{count - 1}", "--requeue", f"--signal=B:USR1@{order.profile.grace_s}"]
    own += _exclude(order.profile, exclude)
    return _script(f"model servers of {run}", own, _body(run, order, "worker", NODE, "server", str(run), str(number)))


def report_script(run: Path, order: Order) -> str:
    """The job that comes after all workers, whatever became of them: the book says whether all is there."""
    own = _header(order.profile, run, "report", "%j", devices=False)
    return _script(f"report of {run}", own, _body(run, order, "report", "rollbook", "report", str(run)))


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


def _header(profile: Profile, run: Path, part: str, stem: str, *, devices: bool) -> list[str]:
    log = f"{_unexpanded(run / 'logs')}/slurm-{stem}.log"
    elsewhere = not devices and profile.cpu_partition is not None
    asked = {
        "job-name": f"{profile.name}-{part}"[:100],
        "account": profile.account,
        "partition": profile.cpu_partition if elsewhere else profile.partition,
        "qos": None if elsewhere else profile.qos,
        "time": None if elsewhere else profile.time,
        "nodes": "1",
        "ntasks": "1",
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


def _body(run: Path, order: Order, part_name: str, module: str, *words: str) -> list[str]:
    profile = order.profile
    part: Part = getattr(profile, part_name)
    inside = contained(profile, part_name, run)
    python = profile.python or (CONTAINED_PYTHON if inside else sys.executable)
    lines = ["set -euo pipefail"]
    if order.pack:
        packed = quote(str(run / "jobs" / "pack" / order.pack.name))
        lines.append(f'export PYTHONPATH={packed}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines += [f"export {name}={quote(value)}" for name, value in part.environment.items()]
    # The lines of a profile were written for a shell that lets variables be unset.
    lines += ["set +u", *profile.setup, "set -u"] if profile.setup else []
    lines += [f"cd {quote(part.workdir)}"] if part.workdir and not inside else []
    return [*lines, f"exec {join([*inside, python, '-P', '-m', module, *words])}"]
