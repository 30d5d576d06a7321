"""Servers as processes: ready by a deadline, published while they live, gone with all they started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import ClassVar

import aiohttp
import pytest

from rollbook.clusters.job_files import ServerSpec, SubmissionOrder
from rollbook.clusters.profile import ClusterProfile, RoleProfile
from rollbook.clusters.servers import model_servers
from rollbook.clusters.servers.model_servers import (
    ModelServer,
    ServerGroup,
    find_readiness_problem,
    read_shared_endpoints,
    serve_models,
)
from rollbook.errors import ChildFailed
from support.alive import alive

TINY = [sys.executable, str(Path(__file__).parents[1] / "tinyserver.py"), "--host={host}", "--port={port}"]


def order(
    *words: str, ready_s: float = 30.0, replicas: int = 1, shared: int = 0, name: str = "tiny"
) -> SubmissionOrder:
    command = [*TINY, "--name=tiny", *words]
    serve = ServerSpec(kind="command", name=name, command=command, ready_s=ready_s, replicas=replicas, shared=shared)
    return SubmissionOrder(
        profile=ClusterProfile(server=RoleProfile(environment={"GREETING": "hello"})), workers=1, serve=serve
    )


def served(run: Path, wanted: SubmissionOrder):
    said: list[str] = []
    assert wanted.serve
    return serve_models(run, wanted, wanted.serve, "", said.append)


def test_servers_answer_while_they_are_needed_and_are_gone_afterwards(tmp_path: Path) -> None:
    async def go() -> tuple[list[int], list[str]]:
        async with served(tmp_path, order("--loading=0.5", replicas=2)) as fleet:
            assert len(set(fleet.urls)) == 2
            async with aiohttp.ClientSession() as session:
                for url in fleet.urls:
                    async with session.get(f"{url}/models") as response:
                        assert (await response.json())["data"] == [{"id": "tiny"}]
            assert len(list((tmp_path / "endpoints").glob("*.json"))) == 2
            assert read_shared_endpoints(tmp_path) == {}
            return [server.child.pid for server in fleet.servers], fleet.urls

    pids, _ = asyncio.run(go())
    assert not any(map(alive, pids))
    assert list((tmp_path / "endpoints").glob("*.json")) == []


def test_servers_for_all_are_published_under_the_name_of_the_host(tmp_path: Path) -> None:
    async def go() -> list[str]:
        async with served(tmp_path, order(shared=1)):
            return [endpoint.host for endpoint in read_shared_endpoints(tmp_path).values()]

    assert asyncio.run(go()) == [os.uname().nodename]


def test_a_death_is_noticed_at_once_with_the_end_of_the_log(tmp_path: Path) -> None:
    async def go() -> ChildFailed:
        async with served(tmp_path, order(replicas=2)) as fleet:
            losing = asyncio.create_task(ServerGroup.wait_for_loss(fleet))
            await asyncio.sleep(0)
            os.kill(fleet.servers[1].child.pid, signal.SIGKILL)
            async with asyncio.timeout(10):
                return await losing

    assert "ended while it was needed (exit -9: devices" in str(asyncio.run(go()))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--no-such-option"], "ended before it was ready (exit 2: "),
        (["--loading=600"], "was not ready within 1 s: "),
    ],
)
def test_what_does_not_get_ready_is_ended_and_never_published(tmp_path: Path, words: list[str], why: str) -> None:
    deadline = 1.0 if "--loading=600" in words else 60.0

    async def go() -> None:
        async with served(tmp_path, order(*words, ready_s=deadline)):
            raise AssertionError("it was taken for ready")

    with pytest.raises(ChildFailed) as caught:
        asyncio.run(go())
    assert why in str(caught.value)
    assert list((tmp_path / "endpoints").glob("*.json")) == []


@pytest.mark.parametrize(
    ("words", "name", "why"),
    [
        ([], "tiny", None),
        (["--loading=600"], "tiny", "/health returns HTTP 503"),
        ([], "other", "it serves tiny, not other"),
        (["--mute"], "tiny", "a completion of one token returns HTTP 404"),
    ],
)
def test_an_open_port_is_not_ready(tmp_path: Path, words: list[str], name: str, why: str | None) -> None:
    async def go() -> str | None:
        server = ModelServer(tmp_path, order(*words), order(*words).serve, None, print)
        try:
            async with aiohttp.ClientSession() as session, asyncio.timeout(60):
                root = f"http://127.0.0.1:{server.port.number}"
                while (
                    "refused" in (said := str(await find_readiness_problem(session, root, name, 30)))
                    or "connect" in said
                ):
                    await asyncio.sleep(0.05)
                return None if said == "None" else said
        finally:
            await server.stop()

    assert asyncio.run(go()) == why


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    serve = ServerSpec(kind="command", name="m", command=["/no/such/server", "{port}"], ready_s=10)

    async def go() -> None:
        async with serve_models(
            tmp_path, SubmissionOrder(profile=ClusterProfile(), workers=1, serve=serve), serve, "", print
        ):
            raise AssertionError

    with pytest.raises(ChildFailed, match="cannot start /no/such/server"):
        asyncio.run(go())


class Pretended:
    """A replica that fails at once, or is ready a moment after it was told to end."""

    said: ClassVar[list[str]] = []

    def __init__(
        self, _run: Path, _order: SubmissionOrder, _serve: ServerSpec, device: str | None, _say: object
    ) -> None:
        self._fails = device == "0"
        self._ending = asyncio.Event()

    async def wait_and_publish(self, key: str) -> None:
        if self._fails:
            raise ChildFailed("it ended before it was ready")
        await self._ending.wait()
        self.said.append("published")

    async def stop(self) -> None:
        self._ending.set()
        await asyncio.sleep(0.02)
        self.said.append("ended")


def test_a_server_that_is_ended_for_another_is_not_published_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_servers, "ModelServer", Pretended)
    monkeypatch.setattr(model_servers, "assign_devices", lambda *_: ["0", "1"])

    async def go() -> None:
        async with served(tmp_path, order()):
            raise AssertionError("it is not ready")

    with pytest.raises(ChildFailed, match="before it was ready"):
        asyncio.run(go())
    assert Pretended.said == ["ended", "ended"]
