"""What can be known of Ray without one: refusals, the actor's own work, and how its end is read."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from rollbook.book import Book
from rollbook.clusters.job_files import (
    ClusterJob,
    JobKind,
    SubmissionOrder,
    add_job,
    read_jobs,
    was_sent_to_ray,
    write_order,
)
from rollbook.clusters.job_scripts import make_array_script
from rollbook.clusters.job_status import find_logs
from rollbook.clusters.profile import ClusterProfile, check_profile
from rollbook.clusters.ray.actors import (
    WORKER_MODULE,
    ActorTask,
    ProcessActor,
    count_worker_cpus,
    describe_resources,
    make_actor_task,
    make_start_failure,
)
from rollbook.clusters.ray.runs import RayResume, is_detached, make_resume_order
from rollbook.errors import UsageError
from support.book_assertions import assert_complete
from support.commands import Commands
from support.forked_command import SOURCE

FAKE = '__version__ = "{}"\ndef is_initialized(): return False\n'


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A Ray that has nothing but a version."""
    package = tmp_path / "fake" / "ray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE.format("2.60.0"))
    return package / "__init__.py"


def path_of(fake: Path) -> str:
    return os.pathsep.join((str(SOURCE), str(fake.parents[1])))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("raise ImportError('none')", "Ray is not installed here: pip install 'rollbook[ray]'"),
        (FAKE.format("2.9.3"), "Ray 2.9.3 is too old, 2.41 is needed: pip install 'rollbook[ray]'"),
    ],
)
def test_a_ray_that_does_not_do_is_one_line(
    text: str, why: str, fake: Path, commands: Commands, sums: list[str], tmp_path: Path
) -> None:
    fake.write_text(text)
    done = commands.run("run", *sums, "--on", "ray", "-o", "run", PYTHONPATH=path_of(fake))
    assert done.code == 2
    assert done.complaint == f"rollbook: --on ray: {why}"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port"])
def test_an_address_that_is_none_is_refused(address: str, fake: Path, commands: Commands, sums: list[str]) -> None:
    words = ["run", *sums, "--on", "ray", "--address", address, "-o", "run"]
    done = commands.run(*words, PYTHONPATH=path_of(fake))
    assert f"--address {address}: give host:port of a cluster that this machine is part of" in done.complaint


SERVED = ["--serve", "command", "--server-command", "a {port}", "--model-name", "m"]


@pytest.mark.parametrize(
    ("words", "profile", "why"),
    [
        (["submit", "--dry-run"], "", "--dry-run: shows the scripts for Slurm"),
        (["run", "--wait-jobs"], "", "--wait-jobs: goes with --on slurm"),
        (["submit", "--after", "7"], "", "after: not on Ray: a profile for Ray may have name, cpus, gpus, secrets"),
        (["run"], "partition: batch\n", "partition: not on Ray: a profile for Ray may have"),
        (
            ["run"],
            "worker: {mounts: ['/a:/b']}\n",
            "mounts: not on Ray: worker: for Ray it may have environment, workdir",
        ),
        (["run", "--install"], "", "install: not on Ray: is for Slurm jobs"),
        (["run", "--with-sandbox"], "", "sandbox: not on Ray: is for Slurm jobs"),
        (["run", *SERVED, "--shared-servers", "2"], "", "--shared-servers: on Ray each worker starts its own server"),
        (["run"], "secrets: [NO_SUCH_VARIABLE]\n", "NO_SUCH_VARIABLE is not set here"),
    ],
)
def test_what_ray_does_not_know_is_refused_in_one_line(
    words: list[str], profile: str, why: str, commands: Commands, sums: list[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(profile or "cpus: 1\n")
    command, *rest = words
    asked = sums[:1] if "--serve" in rest else sums
    done = commands.run(command, *asked, *rest, "--on", "ray", "--cluster", "c.yaml", "-o", "run")
    assert done.code == 2
    assert why in done.complaint
    assert not (tmp_path / "run").exists()


@pytest.fixture
def run(commands: Commands, sums: list[str], tmp_path: Path) -> Path:
    """A run that was planned, with an order for Ray."""
    assert commands.run("plan", *sums, "-o", "run").code == 0
    write_order(
        tmp_path / "run", SubmissionOrder(profile=ClusterProfile(secrets=["MY_TOKEN"]), workers=1, ray="head:6379")
    )
    return tmp_path / "run"


def sent(run: Path) -> ActorTask:
    order = SubmissionOrder(profile=ClusterProfile(secrets=["MY_TOKEN"]), workers=1)
    return make_actor_task(
        run, 1, order, Book(run).rounds()[-1].settings, WORKER_MODULE, run / "logs" / "worker-1-0.log"
    )


def test_an_actor_keeps_a_worker_to_its_end(run: Path) -> None:
    async def keep() -> tuple[str, tuple[int, str]]:
        post = ProcessActor()
        over = asyncio.create_task(post.wait())  # what an actor is asked, it may hear in any order
        await asyncio.sleep(0)
        return post.start(sent(run)), await over

    problem, (code, words) = asyncio.run(keep())
    assert (problem, code) == ("", 0)
    assert words.endswith("nothing is left to do")
    assert_complete(run)


def test_variables_go_along_by_their_names(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    monkeypatch.setenv("OPENAI_API_KEY", "hush-too")
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    assert sent(run).environ == {"MY_TOKEN": "hush", "OPENAI_API_KEY": "hush-too"}


@pytest.mark.parametrize("changes", [{"run": "/nowhere/run"}, {"run_id": "another"}], ids=["absent", "another"])
def test_a_run_directory_that_is_not_there_is_said(run: Path, changes: dict[str, str]) -> None:
    async def keep() -> tuple[str, tuple[int, str]]:
        post = ProcessActor()
        return post.start(msgspec.structs.replace(sent(run), **changes)), await post.wait()

    problem, (code, words) = asyncio.run(keep())
    assert "cannot be seen from the node" in problem
    assert (code, words) == (2, problem)
    assert not Path("/nowhere").exists()


def test_what_ray_says_of_a_broken_node_becomes_one_line() -> None:
    said = "RuntimeError: The actor with name Post failed to import on the worker. This may\n\nNo module"
    assert make_start_failure(said).message == "a node of the Ray cluster cannot import rollbook: install it there too"
    assert make_start_failure("a\nOSError: b\n").message == "Ray could not start a worker: OSError: b"
    assert make_start_failure("").code == 2


def test_cpus_are_said_once_for_both_clusters(tmp_path: Path) -> None:
    order = SubmissionOrder(profile=ClusterProfile(cpus=4, gpus=2), workers=1)
    assert (count_worker_cpus(order), describe_resources(order)) == (4, "4 CPUs and 2 GPUs")
    assert "#SBATCH --cpus-per-task=4" in make_array_script(tmp_path, 1, "worker", order, 1)
    assert count_worker_cpus(SubmissionOrder(profile=ClusterProfile(), workers=1)) == 1
    with pytest.raises(UsageError, match="cpus and --cpus-per-task=8 both set"):
        check_profile(ClusterProfile(cpus=4, options=["--cpus-per-task=8"]), "cluster")


def test_secrets_are_not_shown_with_a_task(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush")
    assert "hush" not in repr(sent(run))


def test_a_run_goes_on_with_what_ray_knows_of_its_last_order(run: Path) -> None:
    profile = ClusterProfile(partition="batch", gpus=2, secrets=["MY_TOKEN"])
    write_order(run, SubmissionOrder(profile=profile, workers=7))
    order = make_resume_order(run, RayResume(given={"workers": 3}))
    assert order == SubmissionOrder(profile=ClusterProfile(gpus=2, secrets=["MY_TOKEN"]), workers=3, ray="auto")
    write_order(run, SubmissionOrder(profile=ClusterProfile(), workers=7, ray="head:6379"))
    assert make_resume_order(run, RayResume()).ray == "head:6379"
    assert make_resume_order(run, RayResume(address="other:1")).ray == "other:1"
    assert not is_detached(run)


def test_a_run_is_known_by_its_last_order(run: Path) -> None:
    assert was_sent_to_ray(run)
    write_order(run, SubmissionOrder(profile=ClusterProfile(), workers=1))
    assert not was_sent_to_ray(run)


@pytest.mark.parametrize("kind", ["driver", "crew"])
def test_the_log_of_a_driver_is_found_under_its_present_and_its_earlier_name(run: Path, kind: JobKind) -> None:
    add_job(run, ClusterJob(kind, "name-1", 1, 4))
    (run / "logs").mkdir()
    (run / "logs" / f"{kind}-1.log").write_text("hello\n")
    assert [job.kind for job in read_jobs(run)] == ["driver"]
    assert [(log.who, log.last_line) for log in find_logs(run)] == [("driver 1", "hello")]


def test_a_cluster_that_cannot_be_asked_does_not_hide_the_book(run: Path, fake: Path, commands: Commands) -> None:
    add_job(run, ClusterJob("driver", "name-1", 1, 4))
    order = msgspec.json.decode((run / "jobs" / "0001" / "order.json").read_bytes())
    (run / "jobs" / "0001" / "order.json").write_bytes(msgspec.json.encode(order | {"ray": "127.0.0.1:1"}))
    shown = commands.run("status", "run", PYTHONPATH=path_of(fake))
    assert shown.code == 0, shown.stderr
    assert "the jobs cannot be seen from here: --address 127.0.0.1:1: no Ray cluster answers there" in shown.stderr
