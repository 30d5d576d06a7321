"""Puts tests/ on the import path, so that tests share what lies in tests/support; machines under load are slow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.commands import Served

sys.path.insert(0, str(Path(__file__).parent))

with suppress(ImportError):  # the environments of the big parts do without it
    from hypothesis import HealthCheck, settings

    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start fault endpoints, each a process."""
    from support.commands import Served

    started: list[Served] = []

    def start(*words: str) -> Served:
        started.append(Served(*words))
        return started[-1]

    yield start
    for endpoint in started:
        endpoint.kill()
