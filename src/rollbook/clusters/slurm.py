"""Slurm: its commands, its batch scripts, job steps over several nodes, containers.

Every call of sbatch, squeue, sacct, scancel and scontrol is here, with a list of words; what a command refuses is
one line. Nothing is decided in a batch script: its last line hands over to Python. A server on all nodes of its job
is a step of srun that starts a process on each node and ends when one of them does.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join, quote

import msgspec

from rollbook.clusters import scheduler
from rollbook.clusters.job_files import (
    ClusterJob,
    JobKind,
    SubmissionOrder,
    add_job,
    read_bad_nodes,
    read_jobs,
    select_submitted,
    submission_folder,
)
from rollbook.clusters.packing import INSTALLER_NAME
from rollbook.clusters.profile import ClusterProfile, RoleProfile
from rollbook.clusters.scheduler import CurrentTask, JobTask, Say, SchedulerError
from rollbook.core import encode
from rollbook.errors import UsageError
from rollbook.processes import module_argv

COMMAND_TIMEOUT_S = 60.0
SEPARATOR = "|"


def run_command(*words: str) -> str:
    """What a command says."""
    own = _sbatch_environ() if words[0] == "sbatch" else None
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, stdin=subprocess.DEVNULL, env=own
        )
    except FileNotFoundError:
        raise SchedulerError(f"{words[0]}: not found; go to a machine that can submit to Slurm") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{words[0]} did not answer in {COMMAND_TIMEOUT_S:g} s: is Slurm's controller up?"
        ) from None
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit {done.returncode}"
        raise SchedulerError(f"{words[0]}: {said.removeprefix(f'{words[0]}: ').removeprefix('error: ')}")
    return done.stdout


def _sbatch_environ() -> dict[str, str]:
    """Ours, without what would have a word in a script, or tell a job that it is the one that submits it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SBATCH_", "SLURM_"))
    }


def submit_script(script: Path, *options: str) -> str:
    """Hand in a script; gives the job's id."""
    said = run_command("sbatch", "--parsable", *options, str(script)).strip()
    job = said.partition(";")[0]
    if not job.isdigit():
        raise SchedulerError(f"sbatch: {said!r} is no job id")
    return job


def read_max_array_size() -> int:
    """How many tasks an array may have."""
    for line in run_command("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            return max(int(value), 1)
    raise SchedulerError("scontrol show config: says no MaxArraySize")


def read_queue(jobs: Sequence[str]) -> list[JobTask]:
    """All tasks of these jobs that the controller still knows, those that ended lately too."""
    if not jobs:
        return []
    form = SEPARATOR.join(("%F", "%K", "%T", "%r", "%N"))
    try:
        said = run_command(
            "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(jobs)}", f"--format={form}"
        )
    except SchedulerError as error:
        if "Invalid job id" in str(error):
            return []  # it ended so long ago that the controller has forgotten it
        raise
    return [_parse_queue_line(line) for line in said.splitlines()]


def _parse_queue_line(line: str) -> JobTask:
    job, index, state, reason, node = line.split(SEPARATOR, 4)
    return JobTask(job, int(index) if index.isdigit() else None, state, reason, node)


def read_accounting(jobs: Sequence[str]) -> list[JobTask]:
    """The same from the accounting, which many clusters do not have: then nothing."""
    if not jobs:
        return []
    try:
        said = run_command(
            "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(jobs)}", "-oJobID,State"
        )
    except SchedulerError:
        return []
    return [_parse_accounting_line(line) for line in said.splitlines()]


def _parse_accounting_line(line: str) -> JobTask:
    name, _, state = line.partition(SEPARATOR)
    job, _, index = name.partition("_")
    return JobTask(job, int(index) if index.isdigit() else None, state.partition(" ")[0])


def cancel_jobs(jobs: Sequence[str]) -> None:
    """End jobs, running or waiting."""
    if jobs:
        run_command("scancel", *jobs)


def requeue_task(task: str) -> None:
    """Put a running job back into the queue. For a task of an array that is ARRAY_TASK: a bare id means all tasks."""
    run_command("scontrol", "requeue", task)


def exclude_nodes(job: str, nodes: Sequence[str]) -> None:
    """See to it that what still waits of a job does not start on these nodes."""
    run_command("scontrol", "update", f"JobId={job}", f"ExcNodeList={','.join(nodes)}")


def read_current_task(environ: Mapping[str, str]) -> CurrentTask:
    """What Slurm says to its jobs."""
    return CurrentTask(
        environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", ""),
        environ.get("SLURM_ARRAY_TASK_ID", ""),
        environ.get("SLURMD_NODENAME", ""),
        int(environ.get("SLURM_RESTART_COUNT") or 0),
    )


SANDBOX_VARIABLES = ("ROLLBOOK_SANDBOX", "NEMO_SKILLS_SANDBOX_HOST", "NEMO_SKILLS_SANDBOX_PORT")
"""What is exported of a sandbox beside a worker: our own name, with the token in it, and those of NeMo-Skills."""


def make_container_argv(profile: ClusterProfile, role: str, run: Path, variables: Sequence[str] = ()) -> list[str]:
    """What stands before the command of a part: nothing where it runs in no image. `variables` are those it needs."""
    image = profile.image_of(role)
    if image is None:
        return []
    part: RoleProfile = getattr(profile, role)
    mounts = [*profile.mounts, *part.mounts, f"{run}:{run}"]
    if profile.container == "pyxis":
        return _pyxis_argv(image, mounts, part.workdir, [*profile.secrets, *part.environment, *variables])
    return _apptainer_argv(image, mounts, part.workdir, bool(profile.gpus or profile.gres))


def _pyxis_argv(image: str, mounts: Sequence[str], workdir: str | None, variables: Sequence[str]) -> list[str]:
    words = ["srun", "--overlap", "--ntasks=1", "--no-container-mount-home", f"--container-image={image}"]
    words.append(f"--container-mounts={','.join(mounts)}")
    words += [f"--container-workdir={workdir}"] if workdir else []
    words += [f"--container-env={','.join(variables)}"] if variables else []
    return words


def _apptainer_argv(image: str, mounts: Sequence[str], workdir: str | None, gpus: bool) -> list[str]:
    words = ["apptainer", "exec", *(["--nv"] if gpus else [])]
    for mount in mounts:
        words += ["--bind", mount]
    words += ["--pwd", workdir] if workdir else []
    return [*words, image]


CONTAINER_PYTHON = "python3"
EXCLUDE_OPTION = "--exclude="
NODE_MODULE = "rollbook.clusters.node"
SIDECAR_MODULE = "rollbook.clusters.sandbox_sidecar"


def make_workers_script(run: Path, number: int, order: SubmissionOrder, count: int, exclude: Sequence[str] = ()) -> str:
    """An array of workers."""
    own = _sbatch_options(
        order.profile,
        run,
        "worker",
        "%A_%a",
        devices=_workers_need_devices(order),
        nodes=_count_nodes(order, shared=False),
    )
    own += [f"--array=0-{count - 1}", "--requeue", f"--signal=B:USR1@{order.profile.grace_s}"]
    own += _exclude_options(order.profile, exclude)
    return _join_script(
        f"workers of {run}",
        own,
        _script_body(run, number, order, "worker", NODE_MODULE, "worker", str(run), str(number)),
    )


def make_servers_script(run: Path, number: int, order: SubmissionOrder, count: int, exclude: Sequence[str] = ()) -> str:
    """An array of jobs that serve the model to all workers."""
    own = _sbatch_options(order.profile, run, "server", "%A_%a", devices=True, nodes=_count_nodes(order, shared=True))
    own += [f"--array=0-{count - 1}", "--requeue", f"--signal=B:USR1@{order.profile.grace_s}"]
    own += _exclude_options(order.profile, exclude)
    order = msgspec.structs.replace(order, sandbox=False)  # no code of the model's is run here
    body = _script_body(run, number, order, "worker", NODE_MODULE, "server", str(run), str(number))
    return _join_script(f"model servers of {run}", own, body)


def make_report_script(run: Path, number: int, order: SubmissionOrder) -> str:
    """The job that comes after all workers, whatever became of them: the book says whether all is there."""
    own = _sbatch_options(order.profile, run, "report", "%j", devices=False)
    order = msgspec.structs.replace(order, sandbox=False)
    return _join_script(
        f"report of {run}", own, _script_body(run, number, order, "report", "rollbook", "report", str(run))
    )


def _count_nodes(order: SubmissionOrder, *, shared: bool) -> int:
    """How many nodes a job has: several where a server that spans them is its own."""
    return order.serve.nodes if order.serve and bool(order.serve.shared) == shared else 1


def list_excluded_nodes(profile: ClusterProfile, bad_nodes: Sequence[str]) -> list[str]:
    """The nodes that no worker is to start on: those that the profile names, and those that did not do."""
    named = [option.partition("=")[2] for option in profile.options if option.startswith(EXCLUDE_OPTION)]
    return [*named, *bad_nodes]


def _exclude_options(profile: ClusterProfile, bad_nodes: Sequence[str]) -> list[str]:
    nodes = list_excluded_nodes(profile, bad_nodes)
    return [f"{EXCLUDE_OPTION}{','.join(nodes)}"] if nodes else []


def _workers_need_devices(order: SubmissionOrder) -> bool:
    """Workers need the GPUs where they bring the model along, or where nobody serves it at all."""
    return order.serve is None or not order.serve.shared


def _sbatch_options(
    profile: ClusterProfile, run: Path, part: str, stem: str, *, devices: bool, nodes: int = 1
) -> list[str]:
    log = f"{_escape_percent(run / 'logs')}/slurm-{stem}.log"
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
    return own + ([] if elsewhere else [each for each in profile.options if not each.startswith(EXCLUDE_OPTION)])


def _escape_percent(path: Path) -> str:
    """A path in which sbatch finds nothing to fill in."""
    return str(path).replace("%", "%%")


def _join_script(what: str, own: Sequence[str], body: Sequence[str]) -> str:
    title = f"# Rollbook: {what.replace(chr(10), ' ')}"
    return "\n".join(["#!/bin/bash", title, *(f"#SBATCH {_quote_directive(each)}" for each in own), *body, ""])


def _quote_directive(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}{equals}{quote(value)}" if equals else name


def _script_body(run: Path, number: int, order: SubmissionOrder, part_name: str, module: str, *words: str) -> list[str]:
    profile = order.profile
    part: RoleProfile = getattr(profile, part_name)
    inside = make_container_argv(profile, part_name, run, SANDBOX_VARIABLES if order.sandbox else ())
    lines = ["set -euo pipefail"]
    if order.pack:
        packed = quote(str(run / "jobs" / "pack" / order.pack.name))
        lines.append(f'export PYTHONPATH={packed}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines += [f"export {name}={quote(value)}" for name, value in part.environment.items()]
    # The lines of a profile were written for a shell that lets variables be unset.
    lines += ["set +u", *profile.setup, "set -u"] if profile.setup else []
    lines += [f"cd {quote(part.workdir)}"] if part.workdir and not inside else []
    python = profile.python or (CONTAINER_PYTHON if inside else _submitting_python(profile))
    command = [*inside, *_python_argv(run, number, order, python), "-m", module, *words]
    return [*lines, f"exec {join([*_sidecar_argv(run, number, order), *command])}"]


def _submitting_python(profile: ClusterProfile) -> str:
    """The Python that submits."""
    return profile.ssh.python if profile.ssh else sys.executable


def _python_argv(run: Path, number: int, order: SubmissionOrder, python: str) -> list[str]:
    """Python, by way of the installer where something is to be installed first."""
    return [python, "-P", *([str(submission_folder(run, number) / INSTALLER_NAME)] if order.install else [])]


def _sidecar_argv(run: Path, number: int, order: SubmissionOrder) -> list[str]:
    """What puts a sandbox server beside the worker: on the node itself, whatever image the worker is in."""
    if not order.sandbox:
        return []
    profile = order.profile
    python = profile.sandbox_python or (None if profile.image_of("worker") else profile.python)
    python = python or _submitting_python(profile)
    return [*_python_argv(run, number, order, python), "-m", SIDECAR_MODULE, str(run), str(number), "--"]


DEFAULT_MAX_ARRAY = 1001
"""Slurm's own default of MaxArraySize."""


def make_scripts(run: Path, number: int, order: SubmissionOrder, max_array: int = DEFAULT_MAX_ARRAY) -> dict[str, str]:
    """The scripts of a submission by their file names."""
    count = max(1, min(order.workers, max_array))
    made = {"workers.sh": make_workers_script(run, number, order, count, read_bad_nodes(run))}
    if order.serve and order.serve.shared:
        made["servers.sh"] = make_servers_script(run, number, order, order.serve.shared, read_bad_nodes(run))
    return made | {"report.sh": make_report_script(run, number, order)}


SUBMIT_LIMIT = re.compile(r"SubmitJob|submit limit", re.IGNORECASE)
"""How Slurm says that a user may not have so many jobs."""


class ScriptSubmitter:
    """Where scripts are handed in, one after the other; every id is on the disk before the next is asked for."""

    def __init__(self, run: Path, number: int, after: Sequence[str], say: Say) -> None:
        self._run, self._number, self._say = run, number, say
        self._after = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] if after else []
        self.jobs: list[ClusterJob] = []

    def submit_arrays(self, kind: JobKind, count: int, max_array: int) -> list[ClusterJob]:
        """As many arrays as it takes; fewer tasks where the cluster takes no more."""
        taken: list[ClusterJob] = []
        left = count
        while left:
            job = self._submit_array(kind, min(left, max_array))
            if job is None:
                self._say(f"{count - left} of {count} {kind} were submitted: the cluster's submit limit allows no more")
                break
            taken.append(job)
            left -= job.count
        return taken

    def _submit_array(self, kind: JobKind, count: int) -> ClusterJob | None:
        while True:
            try:
                return self._submit(kind, count, f"--array=0-{count - 1}", *self._after)
            except scheduler.SchedulerError as error:
                if not SUBMIT_LIMIT.search(str(error)) or (count == 1 and kind not in {job.kind for job in self.jobs}):
                    raise self._make_error(error) from None
            if count == 1:
                return None
            count //= 2

    def submit_report(self, workers: Sequence[ClusterJob]) -> None:
        """The report comes after the workers, whatever became of them."""
        try:
            self._submit("report", 1, f"--dependency=afterany:{':'.join(job.job for job in workers)}")
        except scheduler.SchedulerError as error:
            if not SUBMIT_LIMIT.search(str(error)):
                raise self._make_error(error) from None
            self._say(f"no report job, by the cluster's submit limit: afterwards, rollbook report {self._run}")

    def _make_error(self, error: scheduler.SchedulerError) -> UsageError:
        stays = ", ".join(job.job for job in self.jobs) or "no job"
        return UsageError(f"{error}; {stays} was submitted, the plan stays: rollbook resume {self._run} --on slurm")

    def _submit(self, kind: JobKind, count: int, *options: str) -> ClusterJob:
        path = submission_folder(self._run, self._number) / f"{kind}.sh"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        known = select_submitted(read_jobs(self._run), kind)
        first = max((job.first + job.count for job in known), default=0)
        job = ClusterJob(kind, submit_script(path, *options), self._number, count, first, digest)
        self.jobs.append(add_job(self._run, job))
        return self.jobs[-1]


NODE_PLACEHOLDER = "{node}"


class RankCommands(msgspec.Struct):
    """What each rank runs, and what stands before that on every node: the words of a container."""

    before: list[str]
    ranks: list[list[str]]


def make_step_argv(head: str, before: Sequence[str], ranks: Sequence[list[str]]) -> list[str]:
    """The step that starts every rank, the first of them on the node `head`."""
    count = len(ranks)
    step = ["srun", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--cpu-bind=none", "--kill-on-bad-exit=1"]
    told = encode(RankCommands(pin_to_node(before), list(ranks))).decode()
    return [*step, *module_argv("rollbook.clusters.servers.rank", head, told)]


def pin_to_node(before: Sequence[str]) -> list[str]:
    """The words of a container; where they are a step of their own, each rank's is on its own node."""
    if before[:1] != ["srun"]:
        return list(before)
    return ["srun", "--nodes=1", f"--nodelist={NODE_PLACEHOLDER}", "--cpu-bind=none", *before[1:]]


def find_last_line(tail: str) -> str:
    """What a server said last; that its step was ended too is Slurm's word, and no reason."""
    own = [line.strip() for line in tail.splitlines() if not line.startswith(("srun: ", "slurmstepd"))]
    return next((line for line in reversed(own) if any(map(str.isalnum, line))), "")
