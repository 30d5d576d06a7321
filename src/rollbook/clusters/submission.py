"""Submit a run: freeze the plan, write scripts into the run directory, hand them to the scheduler, record the ids.

A run can wait for jobs or for other runs. A job that failed, or that the scheduler does not know, is an error: the run
is never started without it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.book import explain_disk_errors, read_status, write_atomically
from rollbook.clusters.job_files import (
    ClusterJob,
    JobKind,
    PackedFolder,
    SubmissionOrder,
    add_job,
    read_jobs,
    select_submitted,
    submission_folder,
    write_order,
)
from rollbook.clusters.job_scripts import make_scripts
from rollbook.clusters.packing import list_files, pack_folder, write_installer
from rollbook.clusters.profile import ClusterProfile, check_profile, read_profile
from rollbook.clusters.scheduler import COMPLETED, DEFAULT_SCHEDULER, Say, Scheduler, find_scheduler, scheduler_names
from rollbook.clusters.servers.launch import check_server_args
from rollbook.clusters.ssh import make_ssh_run, write_ssh_run
from rollbook.core import JSON, Limits, Sampling, ServerSpec, Settings, ToolFormat
from rollbook.engine import Request, as_list, load_run_environments, plan_request, resolve_run_model, update_settings
from rollbook.errors import SchedulerError, SubmitLimitReached, UsageError


class Submission(msgspec.Struct, frozen=True):
    """The jobs that a cluster accepted for a run."""

    path: Path
    jobs: list[ClusterJob]

    @property
    def workers(self) -> int:
        """How many workers they start."""
        return sum(job.count for job in self.jobs if job.kind in ("workers", "driver"))


def submit(
    env: str,
    model: str | Sequence[str] = (),
    *,
    on: str = DEFAULT_SCHEDULER,
    address: str = "auto",
    cluster: str | Path | ClusterProfile = ClusterProfile(),  # noqa: B008 - frozen
    workers: int | None = None,
    serve: Mapping[str, JSON] | None = None,
    pack: str | Path | None = None,
    install: bool = False,
    sandbox: bool = False,
    sandbox_packages: Sequence[str] = (),
    out: str | Path,
    model_name: str = "",
    samples: int | None = None,
    limit: int | None = None,
    seed: int | None = None,
    data: str | None = None,
    template: str | None = None,
    tasks: list[str] | None = None,
    sample: int | None = None,
    judge: str | Sequence[str] = (),
    judge_name: str = "",
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    limits: Limits = Limits(),  # noqa: B008 - frozen
    tool_format: Literal["auto"] | ToolFormat = "auto",
    agent: str = "",
    allow_network: bool = False,
    continue_tokens: bool = False,
    **settings: JSON,
) -> Submission:
    """Freeze a run's plan and submit it to a cluster; return the ids as soon as the cluster has accepted it.

    `on` is a scheduler such as slurm, or ray: then it is the cluster at `address`, or the one that this process is in
    already. `cluster` is the path of a profile, or a profile; its samples, seed and workers count where no argument
    gives them. `serve` has the fields of ServerSpec, such as {"kind": "vllm", "model_path": "/models/m"}. `sandbox` is
    --with-sandbox, with the packages that code may import.
    """
    if on not in (*scheduler_names(), "ray"):
        raise UsageError(f"on={on!r}: {', '.join(scheduler_names())} or ray; `rollbook.run` works on this machine")
    for name, value in (("workers", workers), ("samples", samples)):
        if value is not None and value < 1:
            raise UsageError(f"{name}={value}: give a number from 1 on")
    scheduler = DEFAULT_SCHEDULER if on == "ray" else on
    if isinstance(cluster, ClusterProfile):
        profile = check_profile(cluster, "cluster", scheduler)
    else:
        profile = read_profile(cluster, scheduler)
    count = workers or profile.workers or 1
    targets = as_list(model)
    request = Request(
        env=env,
        model=targets,
        model_name=model_name,
        samples=samples or profile.samples or 1,
        limit=limit,
        out=str(out),
        seed=seed if seed is not None else profile.seed or 0,
        data=data,
        template=template,
        tasks=tasks,
        sample=sample,
        judge=as_list(judge),
        judge_name=judge_name,
        sampling=sampling,
        limits=limits,
        tool_format=tool_format,
        agent=agent,
        allow_network=allow_network,
        continue_tokens=continue_tokens,
        settings=update_settings(Settings(), {**settings, "workers": count}),
    )
    order = SubmissionOrder(
        profile=profile,
        workers=count,
        serve=_make_server_spec(serve, targets, model_name),
        install=install,
        sandbox=sandbox,
        sandbox_packages=list(sandbox_packages),
        ray=address if on == "ray" else "",
        scheduler=scheduler,
    )
    return submit_request(request, order, Path(pack) if pack else None, lambda _: None)


def _make_server_spec(fields: Mapping[str, JSON] | None, targets: Sequence[str], name: str) -> ServerSpec | None:
    if fields is None:
        return None
    if targets:
        raise UsageError(f"model {targets[0]}: `serve` serves the model itself; give one of them")
    try:
        return msgspec.convert({"name": name or fields.get("model_path"), **fields}, ServerSpec)
    except msgspec.ValidationError as error:
        raise UsageError(f"serve: {error}") from None


def submit_request(request: Request, order: SubmissionOrder, pack: Path | None, say: Say) -> Submission:
    """Freeze the plan and submit it: to Ray, to the scheduler on this machine, or over ssh."""
    if order.ray:
        from rollbook.clusters.ray.runs import submit_to_ray  # which imports this module

        return submit_to_ray(request, order, pack, say)
    if order.profile.ssh:
        return submit_over_ssh(request, order, pack, say)
    check_secrets(order)
    check_order(Path(os.path.abspath(request.out)), order)
    if pack is not None:
        list_files(pack)
    scheduler = find_scheduler(order.scheduler)
    max_array, after = scheduler.read_max_array_size(), find_upstream_jobs(scheduler, order.profile.after)
    run = plan_run(request, order.serve, say)
    if pack is not None:
        order = msgspec.structs.replace(order, pack=pack_folder(pack, run, say))
    return submit_jobs(run, order, max_array, after, say)


def submit_over_ssh(request: Request, order: SubmissionOrder, pack: Path | None, say: Say) -> Submission:
    """Freeze the plan here and have it submitted on another host, which is checked before anything is written here."""
    path = find_run_path(request, order)
    remote = make_ssh_run(path, order)
    check_order(path, remote.order)
    if pack is not None:
        list_files(pack)
    remote.prepare(say)
    run = plan_run(request, order.serve, say)
    if pack is not None:
        packed = msgspec.structs.replace(remote.order, pack=pack_folder(pack, run, say))
        remote = msgspec.structs.replace(remote, order=packed)
    write_ssh_run(run, remote)
    try:
        return Submission(run, remote.submit(run, say))
    except SchedulerError as error:
        raise UsageError(f"{error}; the plan stays: rollbook resume {run}") from None


def find_run_path(request: Request, order: SubmissionOrder) -> Path:
    """Return the run directory's path on the machine of the jobs."""
    here = Path(os.path.abspath(request.out))
    return Path(order.profile.ssh.path) / here.name if order.profile.ssh else here


def plan_run(request: Request, serve: ServerSpec | None, say: Say) -> Path:
    """Plan a run; return the absolute path of its directory."""
    return Path(os.path.abspath(plan_request(request, say, serve.name if serve else "")))


def check_secrets(order: SubmissionOrder) -> None:
    """Refuse an order whose secrets are not set here: jobs could not inherit them."""
    absent = [name for name in order.profile.secrets if name not in os.environ]
    if absent:
        raise UsageError(f"secrets: {absent[0]} is not set here, so no job could inherit it: export it first")


def check_order(run: Path, order: SubmissionOrder) -> None:
    """Refuse what is impossible, before anything is written."""
    if order.sandbox_packages and not order.sandbox:
        raise UsageError(f"--sandbox-package {order.sandbox_packages[0]}: goes with --with-sandbox")
    check_run_path(run, order)
    scheduler = find_scheduler(order.scheduler)
    if order.serve and order.serve.nodes > 1 and not scheduler.spans_nodes:
        raise UsageError(f"--nodes-per-server {order.serve.nodes}: not on {scheduler.title}")
    check_devices(order)


def check_devices(order: SubmissionOrder) -> None:
    """Refuse servers that need more GPUs on a node than its job requests."""
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
    """Refuse a multi-node server unless it is one copy of the model, split evenly, and started outside of images."""
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
    """Refuse a run directory whose name cannot be in a script or, with containers, among their mounts."""
    if not str(run).isprintable():
        raise UsageError(f"--out {str(run)!r}: a script cannot hold this name; choose one of printable characters")
    find_scheduler(order.scheduler).check_run_path(run)
    if order.profile.container != "none" and {",", ":"} & set(str(run)):
        raise UsageError(f"--out {run}: a folder with a comma or a colon in its name cannot be mounted; choose another")


def preview_scripts(request: Request, order: SubmissionOrder, run: Path, pack: Path | None) -> dict[str, str]:
    """Return the scripts that `submit` would submit; asks no cluster and writes nothing."""
    if not order.profile.ssh:
        check_secrets(order)
    check_order(run, order)
    if not order.serve:
        resolve_run_model([member.loaded for member in load_run_environments(request)], request, needs_key=False)
    if pack is not None:
        list_files(pack)
        order = msgspec.structs.replace(order, pack=PackedFolder(pack.resolve().name, "", []))
    return make_scripts(run, 1, order, find_scheduler(order.scheduler).default_max_array)


def submit_jobs(
    run: Path,
    order: SubmissionOrder,
    max_array: int,
    after: Sequence[str],
    say: Say,
    workers: int | None = None,
    servers: int | None = None,
) -> Submission:
    """Write the scripts and submit them: servers, workers, then the report that waits for the workers.

    `workers` and `servers` are how many to start now; the order is recorded unchanged.
    """
    number = write_order(run, order)
    now = order if workers is None else msgspec.structs.replace(order, workers=workers)
    for name, text in make_scripts(run, number, now, max_array).items():
        with explain_disk_errors(run):
            write_atomically(submission_folder(run, number) / name, text.encode())
    if order.install:
        write_installer(run, submission_folder(run, number), order.pack)
    (run / "logs").mkdir(exist_ok=True)
    submitter = ScriptSubmitter(run, number, find_scheduler(order.scheduler), after, say)
    try:
        if order.serve and order.serve.shared:
            submitter.submit_arrays("servers", order.serve.shared if servers is None else servers, max_array)
        if now.workers:
            submitter.submit_report(submitter.submit_arrays("workers", now.workers, max_array))
    except UsageError:
        if not submitter.jobs and number > 1:
            # An order that the cluster never accepted is not the last one.
            (submission_folder(run, number) / "order.json").unlink()
        raise
    return Submission(run, submitter.jobs)


class ScriptSubmitter:
    """Submits scripts one after the other; every id is on disk before the next script is submitted."""

    def __init__(self, run: Path, number: int, scheduler: Scheduler, after: Sequence[str], say: Say) -> None:
        self._run, self._number, self._scheduler = run, number, scheduler
        self._after, self._say = after, say
        self.jobs: list[ClusterJob] = []

    def submit_arrays(self, kind: JobKind, count: int, max_array: int) -> list[ClusterJob]:
        """Submit as many arrays as it takes; fewer tasks where the cluster accepts no more."""
        accepted: list[ClusterJob] = []
        left = count
        while left:
            job = self._submit_array(kind, min(left, max_array))
            if job is None:
                self._say(f"{count - left} of {count} {kind} were submitted: the cluster's submit limit allows no more")
                break
            accepted.append(job)
            left -= job.count
        return accepted

    def _submit_array(self, kind: JobKind, count: int) -> ClusterJob | None:
        while True:
            try:
                return self._submit(kind, count, array=count, after_success=self._after)
            except SubmitLimitReached as error:
                if count == 1 and kind not in {job.kind for job in self.jobs}:
                    raise self._make_error(error) from None
            except SchedulerError as error:
                raise self._make_error(error) from None
            if count == 1:
                return None
            count //= 2

    def submit_report(self, workers: Sequence[ClusterJob]) -> None:
        """Submit the report to run after the workers, however they end."""
        try:
            self._submit("report", 1, after_end=[job.job for job in workers])
        except SubmitLimitReached:
            self._say(f"no report job, by the cluster's submit limit: afterwards, rollbook report {self._run}")
        except SchedulerError as error:
            raise self._make_error(error) from None

    def _make_error(self, error: SchedulerError) -> UsageError:
        jobs = ", ".join(job.job for job in self.jobs) or "no job"
        way = f"rollbook resume {self._run} --on {self._scheduler.name}"
        return UsageError(f"{error}; {jobs} was submitted, the plan stays: {way}")

    def _submit(
        self,
        kind: JobKind,
        count: int,
        *,
        array: int = 0,
        after_success: Sequence[str] = (),
        after_end: Sequence[str] = (),
    ) -> ClusterJob:
        path = submission_folder(self._run, self._number) / f"{kind}.sh"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        known = select_submitted(read_jobs(self._run), kind)
        first = max((job.first + job.count for job in known), default=0)
        job_id = self._scheduler.submit(path, count=array, after_success=after_success, after_end=after_end)
        job = ClusterJob(kind, job_id, self._number, count, first, digest, scheduler=self._scheduler.name)
        self.jobs.append(add_job(self._run, job))
        return self.jobs[-1]


def find_upstream_jobs(scheduler: Scheduler, after: Sequence[str]) -> list[str]:
    """Return the ids of the jobs that have to end well first, without those that did already."""
    return [
        job
        for name in after
        for job in (
            _find_upstream_job(scheduler, name) if scheduler.is_job_id(name) else _find_upstream_run(scheduler, name)
        )
    ]


def _find_upstream_job(scheduler: Scheduler, name: str) -> list[str]:
    tasks = scheduler.read_queue([name]) or scheduler.read_accounting([name])
    if not tasks:
        raise UsageError(f"after: {name}: {scheduler.title} does not know this job and would not wait for it")
    failed = [task.state for task in tasks if not task.live and task.state != COMPLETED]
    if failed:
        raise UsageError(f"after: {name}: that job is {failed[0]}; fix it first")
    return [name] if any(task.live for task in tasks) else []


def _find_upstream_run(scheduler: Scheduler, name: str) -> list[str]:
    status = read_status(name)
    if status.scored == status.requested:
        return []
    reports = select_submitted(read_jobs(Path(name)), "report")[-1:]
    if reports and reports[0].scheduler != scheduler.name:
        raise UsageError(
            f"after: {name}: its jobs are on {reports[0].scheduler}, which {scheduler.title} cannot wait for"
        )
    ids = [job.job for job in reports]
    if any(task.live for task in scheduler.read_queue(ids)):
        return ids
    raise UsageError(f"after: {name}: {status.pending} of its rollouts are pending and none of its jobs waits or runs")
