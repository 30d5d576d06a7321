"""Healthchecks of a task: a command inside the container that must succeed before anything begins."""

from __future__ import annotations

import asyncio
import time

from rollbook.containers import ContainerHandle
from rollbook.environments.harbor.task_files import Healthcheck
from rollbook.errors import ContainerError


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
