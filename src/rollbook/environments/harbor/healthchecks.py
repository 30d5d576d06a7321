"""Healthchecks of a task: a command inside the container that must succeed before anything begins.

Before tests the container starts again, and with it the services of its entrypoint: tests begin when those are there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress

from rollbook.containers import ContainerHandle
from rollbook.environments.harbor.task_files import Healthcheck
from rollbook.errors import ContainerError

SERVICE_START_S = 5.0
"""How long after its start a container is looked at for ports, if no healthcheck says when its services are there."""

PORTS_S = 10.0
"""How long tests wait for ports on which something listened while the agent worked; the agent may have been that."""


def longest_wait_s(check: Healthcheck | None) -> float:
    """Return the longest that a healthcheck may take."""
    if check is None:
        return 0.0
    return check.start_period_sec + (check.retries + 1) * (check.timeout_sec + check.interval_sec)


async def wait_until_healthy(handle: ContainerHandle, check: Healthcheck, user: str) -> None:
    """Run a healthcheck until it succeeds; failures in the start period do not count towards its retries."""
    began, failures = time.monotonic(), 0
    while True:
        result = await handle.run(check.command, timeout_s=check.timeout_sec, user=user)
        if result.exit_code == 0 and not result.timed_out:
            return
        starting = time.monotonic() - began < check.start_period_sec
        failures += 0 if starting else 1
        if failures >= check.retries:
            said = result.text.strip()[-300:] or "it said nothing"
            raise ContainerError(f"the healthcheck failed {failures} times: exit code {result.exit_code}: {said}")
        await asyncio.sleep(check.start_interval_sec if starting else check.interval_sec)


async def find_ports(handle: ContainerHandle, checks: Iterable[Healthcheck | None]) -> set[int]:
    """Return the ports of the services of a container. An agent may end before a service has opened its port."""
    if not any(checks) and await handle.is_running() and await handle.image_entrypoint():
        await asyncio.sleep(max(0.0, SERVICE_START_S - handle.age_s))
    return await handle.list_ports()


async def wait_for_services(
    handle: ContainerHandle, checks: Iterable[Healthcheck | None], ports: set[int], user: str
) -> None:
    """Wait until what the entrypoint starts is there, as it was for the agent.

    What is not there in time may be the agent's work, so that is no failure: the tests judge it.
    """
    for check in filter(None, checks):
        with suppress(ContainerError):
            await wait_until_healthy(handle, check, user)
    deadline = time.monotonic() + PORTS_S
    while time.monotonic() < deadline:
        if ports <= await handle.list_ports():
            return
        await asyncio.sleep(0.1)
