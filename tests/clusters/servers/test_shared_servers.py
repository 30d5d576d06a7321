"""Servers that all workers share: those that are gone are not waited for, those that come are gone on with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollbook.clusters import node, scheduler
from rollbook.clusters.job_files import ServerSpec
from rollbook.clusters.node import MAX_SERVER_STARTS, NodeWorker
from rollbook.clusters.servers import model_servers
from rollbook.clusters.servers.model_servers import ServerEndpoint, publish_endpoint, read_shared_endpoints
from rollbook.clusters.slurm import Slurm
from rollbook.errors import EndpointDown, SchedulerError

SERVE = ServerSpec(kind="command", name="tiny", shared=1, ready_s=5.0)


def endpoint(nonce: str, job: str = "") -> ServerEndpoint:
    return ServerEndpoint(nonce, "127.0.0.1", 1, "tiny", 1, True, job)


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that Slurm has running."""
    running = ["7"]
    monkeypatch.setattr(
        Slurm, "read_queue", lambda _, ids: [scheduler.JobTask(job, None, "RUNNING") for job in ids if job in running]
    )
    return running


def test_what_a_killed_job_left_behind_is_cleared_away(tmp_path: Path, queue: list[str]) -> None:
    for one in (endpoint("dead", "6"), endpoint("alive", "7"), endpoint("here")):
        publish_endpoint(tmp_path, one)
    assert set(model_servers.read_live_endpoints(tmp_path)) == {"alive", "here"}
    assert set(read_shared_endpoints(tmp_path)) == {"alive", "here"}


def test_where_slurm_cannot_be_asked_nobody_is_taken_for_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Slurm, ids: Sequence[str]) -> list[scheduler.JobTask]:
        raise SchedulerError("no controller")

    monkeypatch.setattr(Slurm, "read_queue", refuse)
    publish_endpoint(tmp_path, endpoint("dead", "6"))
    assert set(model_servers.read_live_endpoints(tmp_path)) == {"dead"}


Stint = Callable[[asyncio.Event], Coroutine[None, None, object]]


def worker(run: Path, monkeypatch: pytest.MonkeyPatch, *stints: Stint) -> tuple[NodeWorker, list[str]]:
    """A worker whose stints are these, one after the other, and what it notes."""
    monkeypatch.setattr(model_servers, "POLL_S", 0.01)
    monkeypatch.setattr(node, "count_written_bytes", lambda _: 0)
    made, notes, left = NodeWorker.__new__(NodeWorker), list[str](), list(stints)
    made._run, made._log, made._at_work = run, SimpleNamespace(note=notes.append), False  # type: ignore[assignment]

    async def stint(urls: Sequence[str], enough: asyncio.Event) -> object:
        return await left.pop(0)(enough)

    made._work_once = stint  # type: ignore[method-assign, assignment]
    return made, notes


async def finished(_: asyncio.Event) -> object:
    return SimpleNamespace(stop_reason="")


@pytest.mark.parametrize("at_work", [False, True])
def test_other_servers_end_a_stint_whether_it_waits_or_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_work: bool
) -> None:
    async def first(enough: asyncio.Event) -> object:
        made._at_work = at_work
        publish_endpoint(tmp_path, endpoint("new"))
        await (enough.wait() if at_work else asyncio.sleep(60))
        return SimpleNamespace(stop_reason="")

    made, notes = worker(tmp_path, monkeypatch, first, finished)
    publish_endpoint(tmp_path, endpoint("old"))
    assert asyncio.run(made._work_with_shared_servers(SERVE)) == ""
    assert notes == ["the servers changed: continuing with the new ones"]


def test_servers_that_do_not_answer_again_and_again_end_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(_: asyncio.Event) -> object:
        raise EndpointDown("nobody answers")

    made, notes = worker(tmp_path, monkeypatch, *[down] * MAX_SERVER_STARTS)
    publish_endpoint(tmp_path, endpoint("old"))
    with pytest.raises(EndpointDown):
        asyncio.run(made._work_with_shared_servers(SERVE))
    assert notes[-1] == f"nobody answers (lost {MAX_SERVER_STARTS} of at most {MAX_SERVER_STARTS} times)"
