"""Submit a run: freeze the plan, write scripts into the run directory, hand them to the scheduler, record the ids.

A run can wait for jobs or for other runs. One that failed, or that the scheduler does not know, is an error and
never a start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rollbook.book import explain_disk_errors, read_status, write_atomically
from rollbook.clusters import scheduler, slurm
from rollbook.clusters.job_files import (
    ClusterJob,
    PackedFolder,
    ServerSpec,
    SubmissionOrder,
    read_jobs,
    select_submitted,
    submission_folder,
    write_order,
)
from rollbook.clusters.packing import list_files, pack_folder, write_installer
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.scheduler import Say
from rollbook.clusters.servers.launch import check_server_args
from rollbook.clusters.slurm import ScriptSubmitter, make_scripts
from rollbook.clusters.ssh import make_ssh_run, write_ssh_run
from rollbook.core import ModelSpec
from rollbook.engine import Request, load_run_environments, plan, plan_request, resolve_run_model
from rollbook.environments import check_judges, resolve_judge, with_judge_urls
from rollbook.errors import UsageError


class Submission(msgspec.Struct, frozen=True):
    """What a cluster took."""

    path: Path
    jobs: list[ClusterJob]

    @property
    def workers(self) -> int:
        """How many workers it started."""
        return sum(job.count for job in self.jobs if job.kind in ("workers", "crew"))


def submit_request(request: Request, order: SubmissionOrder, pack: Path | None, say: Say) -> Submission:
    """Freeze the plan and hand it to Slurm, here or over there."""
    if order.profile.ssh:
        return submit_over_ssh(request, order, pack, say)
    check_secrets(order)
    check_order(Path(os.path.abspath(request.out)), order)
    if pack is not None:
        list_files(pack)
    most, after = slurm.read_max_array_size(), find_upstream_jobs(order.profile.after)
    run = plan_run(request, order.serve, say)
    if pack is not None:
        order = msgspec.structs.replace(order, pack=pack_folder(pack, run, say))
    return submit_jobs(run, order, most, after, say)


def submit_over_ssh(request: Request, order: SubmissionOrder, pack: Path | None, say: Say) -> Submission:
    """Freeze the plan here and have it handed in there. What cannot be read over there stops it before it is made."""
    there = find_run_path(request, order)
    far = make_ssh_run(there, order)
    check_order(there, far.order)
    if pack is not None:
        list_files(pack)
    far.prepare(say)
    run = plan_run(request, order.serve, say)
    if pack is not None:
        far = msgspec.structs.replace(far, order=msgspec.structs.replace(far.order, pack=pack_folder(pack, run, say)))
    write_ssh_run(run, far)
    try:
        return Submission(run, far.submit(run, say))
    except scheduler.SchedulerError as error:
        raise UsageError(f"{error}; the plan stays: rollbook resume {run}") from None


def find_run_path(request: Request, order: SubmissionOrder) -> Path:
    """Where the run directory lies for the jobs."""
    here = Path(os.path.abspath(request.out))
    return Path(order.profile.ssh.path) / here.name if order.profile.ssh else here


def check_secrets(order: SubmissionOrder) -> None:
    """Every secret that jobs are to inherit has to be there to be inherited."""
    absent = [name for name in order.profile.secrets if name not in os.environ]
    if absent:
        raise UsageError(f"secrets: {absent[0]} is not set here, so no job could inherit it: export it first")


def check_order(run: Path, order: SubmissionOrder) -> None:
    """What can be known to be impossible before anything is written."""
    if order.sandbox_packages and not order.sandbox:
        raise UsageError(f"--sandbox-package {order.sandbox_packages[0]}: goes with --with-sandbox")
    check_run_path(run, order)
    check_devices(order)


def check_devices(order: SubmissionOrder) -> None:
    """The servers of a node need no more GPUs than its job asks for."""
    serve, asked = order.serve, order.profile.gpus
    if serve is None:
        return
    check_server_args(serve)
    check_multi_node(serve, order.profile)
    if asked is None or serve.kind == "command":
        return
    needed = serve.replicas * serve.tensor_parallel * serve.data_parallel // serve.nodes
    if needed > asked:
        parts = f"{serve.replicas} replicas x {serve.tensor_parallel} tensor x {serve.data_parallel} data parallel"
        over = f" over {serve.nodes} nodes" if serve.nodes > 1 else ""
        raise UsageError(f"--gpus {asked}: the servers of one node take {needed} ({parts}{over})")


def check_multi_node(serve: ServerSpec, profile: ClusterProfile) -> None:
    """One server on several nodes is one copy of the model, split evenly, and is started from outside of images."""
    if serve.nodes == 1:
        return
    spans = f"--nodes-per-server {serve.nodes}"
    if serve.replicas > 1:
        raise UsageError(f"{spans}: --replicas {serve.replicas} are servers on one node; ask for more jobs instead")
    if serve.data_parallel > 1:
        raise UsageError(f"{spans}: --data-parallel is for one node; ask for more jobs instead")
    if serve.kind != "command" and serve.tensor_parallel % serve.nodes:
        raise UsageError(f"{spans}: --tensor-parallel {serve.tensor_parallel} cannot be split evenly over them")
    if profile.image_of("worker"):
        raise UsageError(f"{spans}: a worker in an image cannot start the others; give the image to `server:` alone")


def check_run_path(run: Path, order: SubmissionOrder) -> None:
    """A run directory whose name can stand in a script, and where there are containers, among their mounts."""
    if not str(run).isprintable():
        raise UsageError(f"--out {str(run)!r}: a script cannot hold this name; choose one of printable characters")
    if "\\" in str(run):
        raise UsageError(
            f"--out {run}: Slurm takes a backslash in the names of logs for a word of its own; choose another"
        )
    if order.profile.container != "none" and {",", ":"} & set(str(run)):
        raise UsageError(f"--out {run}: a folder with a comma or a colon in its name cannot be mounted; choose another")


def plan_run(request: Request, serve: ServerSpec | None, say: Say) -> Path:
    """The run directory; where the model is served by the jobs themselves, nobody knows yet at which address."""
    if serve is None:
        return Path(os.path.abspath(plan_request(request, say)))
    members = load_run_environments(request)
    judge, judge_urls = resolve_judge(request.judge, request.judge_name)
    if judge and not judge.name:
        raise UsageError("plan asks no judge, so it cannot learn its name: give --judge-name")
    check_judges([member.loaded for member in members], judge is not None)
    settings = with_judge_urls(request.settings, judge_urls)
    book = plan(request, members, ModelSpec(serve.name, "chat"), settings, judge, say)
    return Path(os.path.abspath(book.path))


def preview_scripts(request: Request, order: SubmissionOrder, run: Path, pack: Path | None) -> dict[str, str]:
    """The scripts that `submit` would hand in; asks no cluster and writes nothing."""
    if not order.profile.ssh:
        check_secrets(order)
    check_order(run, order)
    if not order.serve:
        resolve_run_model(
            [member.loaded for member in load_run_environments(request)], request.model, request.model_name
        )
    if pack is not None:
        list_files(pack)
        order = msgspec.structs.replace(order, pack=PackedFolder(pack.resolve().name, "", []))
    return make_scripts(run, 1, order)


def submit_jobs(
    run: Path,
    order: SubmissionOrder,
    max_array: int,
    after: Sequence[str],
    say: Say,
    workers: int | None = None,
    servers: int | None = None,
) -> Submission:
    """Write the scripts and hand them in: servers, workers, then the report that waits for the workers.

    `workers` and `servers` are for now; what was ordered stays ordered.
    """
    number = write_order(run, order)
    now = order if workers is None else msgspec.structs.replace(order, workers=workers)
    for name, text in make_scripts(run, number, now, max_array).items():
        with explain_disk_errors(run):
            write_atomically(submission_folder(run, number) / name, text.encode())
    if order.install:
        write_installer(run, submission_folder(run, number), order.pack)
    (run / "logs").mkdir(exist_ok=True)
    counter = ScriptSubmitter(run, number, after, say)
    try:
        if order.serve and order.serve.shared:
            counter.submit_arrays("servers", order.serve.shared if servers is None else servers, max_array)
        if now.workers:
            counter.submit_report(counter.submit_arrays("workers", now.workers, max_array))
    except UsageError:
        if not counter.jobs and number > 1:
            (
                submission_folder(run, number) / "order.json"
            ).unlink()  # what was never taken is not what was ordered last
        raise
    return Submission(run, counter.jobs)


JOB_ID = re.compile(r"\d+(_\d+)?")


def find_upstream_jobs(after: Sequence[str]) -> list[str]:
    """The ids of the jobs that have to end well first; those that did already need no waiting for."""
    return [
        job
        for name in after
        for job in (_find_upstream_job(name) if JOB_ID.fullmatch(name) else _find_upstream_run(name))
    ]


def _find_upstream_job(name: str) -> list[str]:
    tasks = slurm.read_queue([name]) or slurm.read_accounting([name])
    if not tasks:
        raise UsageError(f"after: {name}: Slurm knows no such job, and would not wait for it")
    lost = [task.state for task in tasks if not task.live and task.state != "COMPLETED"]
    if lost:
        raise UsageError(f"after: {name}: that job is {lost[0]}; see to it first")
    return [name] if any(task.live for task in tasks) else []


def _find_upstream_run(name: str) -> list[str]:
    status = read_status(name)
    if status.scored == status.requested:
        return []
    reports = [job.job for job in select_submitted(read_jobs(Path(name)), "report")][-1:]
    if any(task.live for task in slurm.read_queue(reports)):
        return reports
    raise UsageError(f"after: {name}: {status.pending} of its rollouts are pending and none of its jobs waits or runs")
