"""With a real Ray: rollouts stream out of an actor, and what is missing is typed on the other side too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed here: make test-ray has an environment with it")

from rollbook.core import Task, decode, encode  # noqa: E402
from rollbook.trainers.nemo_rl import DataFailure, RolloutEnvironment  # noqa: E402
from rollbook.trainers.task_runner import BackgroundLoop  # noqa: E402
from support.endpoint import Endpoint  # noqa: E402
from support.ray_cluster import local_ray  # noqa: E402
from support.sums import SUMS, write_sums  # noqa: E402

WAIT_S = 120
BROKEN = SUMS.replace("        return roll", "        assert task.id != 'sum-1'\n        return roll")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with local_ray(cpus=4):
        yield


def test_results_stream_and_a_failure_keeps_its_type(tmp_path: Path) -> None:
    background, endpoint = BackgroundLoop("endpoint"), Endpoint(vllm=True)
    background.run(endpoint.__aenter__())
    sums = [Task(f"sum-{i}", f"What is {i} + {i}?", answer=str(2 * i), env="Sums") for i in range(3)]
    rows: list[dict[str, Any]] = [decode(encode(task.line())) for task in sums]
    cfg = {"environments": [{"env": write_sums(tmp_path, BROKEN)}], "base_urls": [endpoint.url]}
    actor = RolloutEnvironment.remote(cfg)
    streamed = actor.run_rollouts.options(num_returns="streaming").remote(rows, "gym")
    came = [ray.get(next(streamed), timeout=WAIT_S)[0] for _ in range(2)]
    assert sorted(came) == [0, 2]
    last = next(streamed)
    with pytest.raises(DataFailure, match="missing rows: 1") as caught:
        ray.get(last, timeout=WAIT_S)
    assert caught.value.rows == [1]
    ray.get(actor.shutdown.remote(), timeout=WAIT_S)
    background.run(endpoint.__aexit__())
    background.close()
