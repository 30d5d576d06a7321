"""Submitting a run: the plan is frozen, scripts are written into the run directory, Slurm takes them, ids are kept."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rollbook.book.durable import write_whole, writing
from rollbook.clusters import slurm
from rollbook.clusters.after import upstream
from rollbook.clusters.blame import bad_nodes
from rollbook.clusters.far import far_from, keep_far
from rollbook.clusters.installing import write_installer
from rollbook.clusters.jobs import Job, Kind, add_job, read_jobs, submitted
from rollbook.clusters.order import Order, Pack, Serve, folder_of, write_order
from rollbook.clusters.pack import checked_files, packed
from rollbook.clusters.profile import Profile
from rollbook.clusters.script import report_script, servers_script, workers_script
from rollbook.clusters.servers.kinds import check_args
from rollbook.collect.answering import model_for
from rollbook.collect.judging import check_judges, resolve_judge, with_judge
from rollbook.collect.member import members_of
from rollbook.collect.planning import plan
from rollbook.collect.request import Request
from rollbook.collect.run import plan_request
from rollbook.core.manifest import ModelSpec
from rollbook.errors import UsageError

LIMIT = re.compile(r"SubmitJob|submit limit", re.IGNORECASE)
"""How Slurm says that a user may not have so many jobs."""
DRY_ARRAY = 1001
"""Slurm's own default of MaxArraySize."""

Say = Callable[[str], None]


class Submission(msgspec.Struct, frozen=True):
    """What a cluster took."""

    path: Path
    jobs: list[Job]

    @property
    def workers(self) -> int:
        """How many workers it started."""
        return sum(job.count for job in self.jobs if job.kind in ("workers", "crew"))


def submit(request: Request, order: Order, pack: Path | None, say: Say) -> Submission:
    """Freeze the plan and hand it to Slurm, here or over there."""
    if order.profile.ssh:
        return submit_far(request, order, pack, say)
    check_secrets(order)
    check_order(Path(os.path.abspath(request.out)), order)
    if pack is not None:
        checked_files(pack)
    most, after = slurm.max_array_size(), upstream(order.profile.after)
    run = planned(request, order.serve, say)
    if pack is not None:
        order = msgspec.structs.replace(order, pack=packed(pack, run, say))
    return send(run, order, most, after, say)


def submit_far(request: Request, order: Order, pack: Path | None, say: Say) -> Submission:
    """Freeze the plan here and have it handed in there. What cannot be read over there stops it before it is made."""
    there = place_of(request, order)
    far = far_from(there, order)
    check_order(there, far.order)
    if pack is not None:
        checked_files(pack)
    far.prepare(say)
    run = planned(request, order.serve, say)
    if pack is not None:
        far = msgspec.structs.replace(far, order=msgspec.structs.replace(far.order, pack=packed(pack, run, say)))
    keep_far(run, far)
    try:
        return Submission(run, far.send(run, say))
    except slurm.Refused as error:
        raise UsageError(f"{error}; the plan stays: rollbook resume {run}") from None


def place_of(request: Request, order: Order) -> Path:
    """Where the run directory lies for the jobs."""
    here = Path(os.path.abspath(request.out))
    return Path(order.profile.ssh.path) / here.name if order.profile.ssh else here


def check_secrets(order: Order) -> None:
    """Every secret that jobs are to inherit has to be there to be inherited."""
    absent = [name for name in order.profile.secrets if name not in os.environ]
    if absent:
        raise UsageError(f"secrets: {absent[0]} is not set here, so no job could inherit it: export it first")


def check_order(run: Path, order: Order) -> None:
    """What can be known to be impossible before anything is written."""
    if order.sandbox_packages and not order.sandbox:
        raise UsageError(f"--sandbox-package {order.sandbox_packages[0]}: goes with --with-sandbox")
    check_place(run, order)
    check_devices(order)


def check_devices(order: Order) -> None:
    """The servers of a node need no more GPUs than its job asks for."""
    serve, asked = order.serve, order.profile.gpus
    if serve is None:
        return
    check_args(serve)
    check_spread(serve, order.profile)
    if asked is None or serve.kind == "command":
        return
    needed = serve.replicas * serve.tensor_parallel * serve.data_parallel // serve.nodes
    if needed > asked:
        parts = f"{serve.replicas} replicas x {serve.tensor_parallel} tensor x {serve.data_parallel} data parallel"
        over = f" over {serve.nodes} nodes" if serve.nodes > 1 else ""
        raise UsageError(f"--gpus {asked}: the servers of one node take {needed} ({parts}{over})")


def check_spread(serve: Serve, profile: Profile) -> None:
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


def check_place(run: Path, order: Order) -> None:
    """A run directory whose name can stand in a script, and where there are containers, among their mounts."""
    if not str(run).isprintable():
        raise UsageError(f"--out {str(run)!r}: a script cannot hold this name; choose one of printable characters")
    if "\\" in str(run):
        raise UsageError(
            f"--out {run}: Slurm takes a backslash in the names of logs for a word of its own; choose another"
        )
    if order.profile.container != "none" and {",", ":"} & set(str(run)):
        raise UsageError(f"--out {run}: a folder with a comma or a colon in its name cannot be mounted; choose another")


def planned(request: Request, serve: Serve | None, say: Say) -> Path:
    """The run directory; where the model is served by the jobs themselves, nobody knows yet at which address."""
    if serve is None:
        return Path(os.path.abspath(plan_request(request, say)))
    members = members_of(request)
    judge, judge_urls = resolve_judge(request.judge, request.judge_name)
    if judge and not judge.name:
        raise UsageError("plan asks no judge, so it cannot learn its name: give --judge-name")
    check_judges([member.loaded for member in members], judge is not None)
    settings = with_judge(request.settings, judge_urls)
    book = plan(request, members, ModelSpec(serve.name, "chat"), settings, judge, say)
    return Path(os.path.abspath(book.path))


def scripts(run: Path, number: int, order: Order, most: int = DRY_ARRAY) -> dict[str, str]:
    """The scripts of a submission by their file names."""
    count = max(1, min(order.workers, most))
    made = {"workers.sh": workers_script(run, number, order, count, bad_nodes(run))}
    if order.serve and order.serve.shared:
        made["servers.sh"] = servers_script(run, number, order, order.serve.shared, bad_nodes(run))
    return made | {"report.sh": report_script(run, number, order)}


def rehearsed(request: Request, order: Order, run: Path, pack: Path | None) -> dict[str, str]:
    """The scripts that `submit` would hand in; asks no cluster and writes nothing."""
    if not order.profile.ssh:
        check_secrets(order)
    check_order(run, order)
    if not order.serve:
        model_for([member.loaded for member in members_of(request)], request.model, request.model_name)
    if pack is not None:
        checked_files(pack)
        order = msgspec.structs.replace(order, pack=Pack(pack.resolve().name, "", []))
    return scripts(run, 1, order)


def send(
    run: Path,
    order: Order,
    most: int,
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
    for name, text in scripts(run, number, now, most).items():
        with writing(run):
            write_whole(folder_of(run, number) / name, text.encode())
    if order.install:
        write_installer(run, folder_of(run, number), order.pack)
    (run / "logs").mkdir(exist_ok=True)
    counter = Counter(run, number, after, say)
    try:
        if order.serve and order.serve.shared:
            counter.arrays("servers", order.serve.shared if servers is None else servers, most)
        if now.workers:
            counter.report(counter.arrays("workers", now.workers, most))
    except UsageError:
        if not counter.jobs and number > 1:
            (folder_of(run, number) / "order.json").unlink()  # what was never taken is not what was ordered last
        raise
    return Submission(run, counter.jobs)


class Counter:
    """Where scripts are handed in, one after the other; every id is on the disk before the next is asked for."""

    def __init__(self, run: Path, number: int, after: Sequence[str], say: Say) -> None:
        self._run, self._number, self._say = run, number, say
        self._after = [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"] if after else []
        self.jobs: list[Job] = []

    def arrays(self, kind: Kind, count: int, most: int) -> list[Job]:
        """As many arrays as it takes; fewer tasks where the cluster takes no more."""
        taken: list[Job] = []
        left = count
        while left:
            job = self._array(kind, min(left, most))
            if job is None:
                self._say(f"{count - left} of {count} {kind} were submitted: the cluster's submit limit allows no more")
                break
            taken.append(job)
            left -= job.count
        return taken

    def _array(self, kind: Kind, count: int) -> Job | None:
        while True:
            try:
                return self._hand_in(kind, count, f"--array=0-{count - 1}", *self._after)
            except slurm.Refused as error:
                if not LIMIT.search(str(error)) or (count == 1 and kind not in {job.kind for job in self.jobs}):
                    raise self._unsent(error) from None
            if count == 1:
                return None
            count //= 2

    def report(self, workers: Sequence[Job]) -> None:
        """The report comes after the workers, whatever became of them."""
        try:
            self._hand_in("report", 1, f"--dependency=afterany:{':'.join(job.job for job in workers)}")
        except slurm.Refused as error:
            if not LIMIT.search(str(error)):
                raise self._unsent(error) from None
            self._say(f"no report job, by the cluster's submit limit: afterwards, rollbook report {self._run}")

    def _unsent(self, error: slurm.Refused) -> UsageError:
        stays = ", ".join(job.job for job in self.jobs) or "no job"
        return UsageError(f"{error}; {stays} was submitted, the plan stays: rollbook resume {self._run} --on slurm")

    def _hand_in(self, kind: Kind, count: int, *options: str) -> Job:
        path = folder_of(self._run, self._number) / f"{kind}.sh"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        known = submitted(read_jobs(self._run), kind)
        first = max((job.first + job.count for job in known), default=0)
        job = Job(kind, slurm.submit(path, *options), self._number, count, first, digest)
        self.jobs.append(add_job(self._run, job))
        return self.jobs[-1]
