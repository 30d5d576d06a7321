from collections.abc import Iterator

import pytest

from rollbook.trainers.task_runner import BackgroundLoop
from support.endpoint import Endpoint


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that returns tokens, on an event loop of its own: trainers block theirs."""
    background, result = BackgroundLoop("endpoint"), Endpoint(vllm=True)
    background.run(result.__aenter__())
    yield result
    background.run(result.__aexit__())
    background.close()
