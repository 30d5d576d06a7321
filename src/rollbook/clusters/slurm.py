"""Slurm: its commands, the directives of its batch scripts, job steps over several nodes, pyxis.

Every call of sbatch, squeue, sacct, scancel, scontrol and srun is here, as a list of words; what a command refuses is
an error of one line.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import BatchJob, CurrentTask, JobTask, Scheduler, StepRank
from rollbook.errors import SchedulerError, SubmitLimitReached, UsageError

COMMAND_TIMEOUT_S = 60.0
SEPARATOR = "|"
JOB_ID = re.compile(r"\d+(_\d+)?")
TIME_FORMAT = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d|\d+:\d\d:\d\d:\d\d")
SUBMIT_LIMIT = re.compile(r"SubmitJob|submit limit", re.IGNORECASE)
"""How Slurm reports that a user has too many jobs."""
EXCLUDE_OPTION = "--exclude="
RESERVED_OPTIONS = [
    "array",
    "dependency",
    "output",
    "error",
    "job-name",
    "open-mode",
    "requeue",
    "no-requeue",
    "signal",
    "parsable",
    "wrap",
    "nodes",
    "ntasks",
    "account",
    "partition",
    "qos",
    "time",
    "gpus-per-node",
    "gres",
    "exclusive",
    "kill-on-invalid-dep",
    "export",
]
"""What the scripts say themselves, or have a key of their own in the profile."""
ALLOWED_PREFIXES = ("gpus",)
"""Options in their own right; any other prefix of one of ours is taken by sbatch for ours."""


class Slurm(Scheduler):
    """Slurm, by the commands that are on the path. The methods are described in the protocol."""

    name = "slurm"
    title = "Slurm"
    default_max_array = 1001  # Slurm's own default of MaxArraySize
    containers = ("apptainer", "pyxis")
    spans_nodes = True

    def check_time(self, text: str) -> None:
        if not TIME_FORMAT.fullmatch(text):
            raise UsageError(f"time: {text!r} is not a Slurm time, such as 240, 4:00:00 or 1-12:00:00")

    def check_profile(self, profile: ClusterProfile) -> None:
        """Refuse options that the scripts set themselves, and directives among the set-up lines."""
        for option in [*profile.options, *profile.cpu_options]:
            _check_option(option)
            if profile.cpus and option.startswith("--cpus-per-task"):
                raise UsageError(f"cpus and {option} both set which CPUs a job gets: give one of them")
        for line in profile.setup:
            if "#SBATCH" in line:
                raise UsageError(f"setup: {line!r}: options of sbatch belong in `options:`")

    def check_run_path(self, run: Path) -> None:
        if "\\" in str(run):
            raise UsageError(f"--out {run}: Slurm treats a backslash in log names as special; choose another")

    def read_max_array_size(self) -> int:
        for line in run_command("scontrol", "show", "config").splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "MaxArraySize":
                return max(int(value), 1)
        raise SchedulerError("scontrol show config: returns no MaxArraySize")

    def make_directives(self, job: BatchJob) -> list[str]:
        options = _resource_options(job)
        if job.count:
            options += [f"--array=0-{job.count - 1}", "--requeue", f"--signal=B:USR1@{job.profile.grace_s}"]
            nodes = _excluded_nodes(job.profile, job.bad_nodes)
            options += [f"{EXCLUDE_OPTION}{','.join(nodes)}"] if nodes else []
        return [f"#SBATCH {_quote_directive(option)}" for option in options]

    def log_name(self, job: str, task: int | None) -> str:
        return f"slurm-{job}.log" if task is None else f"slurm-{job}_{task}.log"

    def submit(
        self, script: Path, *, count: int = 0, after_success: Sequence[str] = (), after_end: Sequence[str] = ()
    ) -> str:
        options = [f"--array=0-{count - 1}"] if count else []
        if after_success:
            options += [f"--dependency=afterok:{':'.join(after_success)}", "--kill-on-invalid-dep=yes"]
        if after_end:
            options.append(f"--dependency=afterany:{':'.join(after_end)}")
        try:
            answer = run_command("sbatch", "--parsable", *options, str(script)).strip()
        except SchedulerError as error:
            raise (SubmitLimitReached(str(error)) if SUBMIT_LIMIT.search(str(error)) else error) from None
        job = answer.partition(";")[0]
        if not job.isdigit():
            raise SchedulerError(f"sbatch: {answer!r} is not a job id")
        return job

    def is_job_id(self, text: str) -> bool:
        return bool(JOB_ID.fullmatch(text))

    def read_queue(self, ids: Sequence[str]) -> list[JobTask]:
        """Return all tasks of these jobs that the controller still knows, including those that ended lately."""
        if not ids:
            return []
        form = SEPARATOR.join(("%F", "%K", "%T", "%r", "%N"))
        try:
            answer = run_command(
                "squeue", "--noheader", "--array", "--states=all", f"--jobs={','.join(ids)}", f"--format={form}"
            )
        except SchedulerError as error:
            if "Invalid job id" in str(error):
                return []  # it ended so long ago that the controller has forgotten it
            raise
        return [_parse_queue_line(line) for line in answer.splitlines()]

    def read_accounting(self, ids: Sequence[str]) -> list[JobTask]:
        """Return the same from the accounting, which many clusters do not have: then nothing."""
        if not ids:
            return []
        try:
            answer = run_command(
                "sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={','.join(ids)}", "-oJobID,State"
            )
        except SchedulerError:
            return []
        return [_parse_accounting_line(line) for line in answer.splitlines()]

    def cancel(self, ids: Sequence[str]) -> None:
        if ids:
            run_command("scancel", *ids)

    def requeue(self, task: CurrentTask) -> None:
        run_command("scontrol", "requeue", task.name)

    def exclude_nodes(self, job: str, profile: ClusterProfile, bad_nodes: Sequence[str]) -> None:
        nodes = ",".join(_excluded_nodes(profile, bad_nodes))
        run_command("scontrol", "update", f"JobId={job}", f"ExcNodeList={nodes}")

    def read_current_task(self, environ: Mapping[str, str]) -> CurrentTask:
        """Return the task that Slurm's variables describe. A bare job id as its name could mean the whole array."""
        array = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID", "")
        task = environ.get("SLURM_ARRAY_TASK_ID", "")
        return CurrentTask(
            f"{array}_{task}" if task else array,
            array,
            environ.get("SLURMD_NODENAME", ""),
            int(environ.get("SLURM_RESTART_COUNT") or 0),
        )

    def check_job(self, environ: Mapping[str, str]) -> None:
        if "SLURM_HET_SIZE" in environ:
            raise UsageError("this is a heterogeneous job; workers are an array of jobs on one kind of node")

    def make_container_argv(
        self, image: str, mounts: Sequence[str], workdir: str | None, variables: Sequence[str]
    ) -> list[str]:
        """Return the start of a command in an image of pyxis: a step of its own."""
        words = ["srun", "--overlap", "--ntasks=1", "--no-container-mount-home", f"--container-image={image}"]
        words.append(f"--container-mounts={','.join(mounts)}")
        words += [f"--container-workdir={workdir}"] if workdir else []
        words += [f"--container-env={','.join(variables)}"] if variables else []
        return words

    def make_step_argv(self, nodes: int, command: Sequence[str]) -> list[str]:
        step = ["srun", "--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", "--cpu-bind=none", "--kill-on-bad-exit=1"]
        return [*step, *command]

    def pin_to_node(self, before: Sequence[str], placeholder: str) -> list[str]:
        """Return the words of a container; where they are a step of their own, each rank's is on its own node."""
        if before[:1] != ["srun"]:
            return list(before)
        return ["srun", "--nodes=1", f"--nodelist={placeholder}", "--cpu-bind=none", *before[1:]]

    def read_rank(self, environ: Mapping[str, str]) -> StepRank:
        return StepRank(int(environ["SLURM_PROCID"]), environ["SLURMD_NODENAME"])

    def is_own_message(self, line: str) -> bool:
        """Return whether srun or slurmstepd wrote a line: such a line does not give the reason of an end."""
        return line.startswith(("srun: ", "slurmstepd"))


def run_command(*words: str) -> str:
    """Run a command of Slurm's and return its output."""
    environ = _sbatch_environ() if words[0] == "sbatch" else None
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, stdin=subprocess.DEVNULL, env=environ
        )
    except FileNotFoundError:
        raise SchedulerError(f"{words[0]}: not found; go to a machine that can submit to Slurm") from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(
            f"{words[0]} did not answer in {COMMAND_TIMEOUT_S:g} s: is Slurm's controller up?"
        ) from None
    if done.returncode:
        message = " ".join(done.stderr.split()) or f"exit {done.returncode}"
        raise SchedulerError(f"{words[0]}: {message.removeprefix(f'{words[0]}: ').removeprefix('error: ')}")
    return done.stdout


def _sbatch_environ() -> dict[str, str]:
    """Our environment without variables that override a script's options or describe the job that submits."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SBATCH_", "SLURM_"))
    }


def _parse_queue_line(line: str) -> JobTask:
    job, index, state, reason, node = line.split(SEPARATOR, 4)
    return JobTask(job, int(index) if index.isdigit() else None, state, reason, node)


def _parse_accounting_line(line: str) -> JobTask:
    name, _, state = line.partition(SEPARATOR)
    job, _, index = name.partition("_")
    return JobTask(job, int(index) if index.isdigit() else None, state.partition(" ")[0])


def _check_option(option: str) -> None:
    name = option.removeprefix("--").partition("=")[0]
    if "hetjob" in option or name == "het-group" or option.strip() == ":":
        raise UsageError(f"options: {option}: a heterogeneous job cannot be an array; workers share one kind of node")
    if not option.startswith("--") or not re.fullmatch(r"[a-z][a-z-]*", name):
        raise UsageError(f"options: {option}: write options of sbatch as --name=value")
    if name == "export":
        raise UsageError("options: --export: jobs inherit everything; name what they must have under `secrets:`")
    ours = next((own for own in RESERVED_OPTIONS if own.startswith(name)), None)
    if ours and name not in ALLOWED_PREFIXES:
        raise UsageError(f"options: {option}: --{ours} is set by Rollbook or by a key of its own in the profile")


def _excluded_nodes(profile: ClusterProfile, bad_nodes: Sequence[str]) -> list[str]:
    """The nodes that no worker is to start on: those that the profile names, and those where servers failed."""
    named = [option.partition("=")[2] for option in profile.options if option.startswith(EXCLUDE_OPTION)]
    return [*named, *bad_nodes]


def _resource_options(job: BatchJob) -> list[str]:
    profile, devices = job.profile, job.devices
    elsewhere = not devices and profile.cpu_partition is not None
    values = {
        "job-name": f"{profile.name}-{job.role}"[:100],
        "account": profile.account,
        "partition": profile.cpu_partition if elsewhere else profile.partition,
        "qos": None if elsewhere else profile.qos,
        "time": profile.time,
        "nodes": str(job.nodes),
        "ntasks": str(job.nodes),
        "cpus-per-task": str(profile.cpus) if devices and profile.cpus else None,
        "gpus-per-node": str(profile.gpus) if devices and profile.gpus else None,
        "gres": profile.gres if devices else None,
        # In the path sbatch must find nothing to fill in.
        "output": f"{str(job.run / 'logs').replace('%', '%%')}/slurm-{'%A_%a' if job.count else '%j'}.log",
        "open-mode": "append",
    }
    options = [f"--{name}={value}" for name, value in values.items() if value is not None]
    options += ["--exclusive"] if devices and profile.exclusive else []
    more = profile.cpu_options if elsewhere else profile.options
    return options + [each for each in more if not each.startswith(EXCLUDE_OPTION)]


def _quote_directive(option: str) -> str:
    name, equals, value = option.partition("=")
    return f"{name}{equals}{quote(value)}" if equals else name
