"""Finding the concurrency that an endpoint can bear."""

from __future__ import annotations

import resource

import pytest

from rollbook.engine.worker import SPARE_FILES, AdaptiveLimit, FixedLimit, limit_by_open_files, make_limiter
from rollbook.errors import UsageError


class Server:
    """Answers up to `capacity` calls in `seconds`; more of them take proportionally longer."""

    def __init__(self, capacity: int, seconds: float = 0.05) -> None:
        self.capacity, self.seconds, self.now = capacity, seconds, 0.0

    def serve(self, auto: AdaptiveLimit, rounds: int) -> None:
        for _ in range(rounds):
            at_once = auto.limit
            took = self.seconds * max(1.0, at_once / self.capacity)
            self.now += took
            for _ in range(at_once):
                auto.record_answer(took)


@pytest.mark.parametrize("capacity", [4, 32, 200])
def test_auto_settles_near_the_capacity(capacity: int) -> None:
    server = Server(capacity)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 400)
    assert capacity / 2 <= auto.limit <= 3 * capacity


def test_auto_backs_off_at_once_but_once_per_overload() -> None:
    server = Server(1000)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 20)
    before = auto.limit
    for _ in range(50):
        auto.record_overload()
    assert auto.limit == before // 2


def test_auto_never_falls_below_one_nor_above_its_bound() -> None:
    server = Server(10**6)
    auto = AdaptiveLimit(max_limit=64, clock=lambda: server.now)
    server.serve(auto, 50)
    assert auto.limit == 64
    for _ in range(20):
        auto.record_overload()
        server.serve(auto, 1)
    assert auto.limit >= 1


def test_a_fixed_concurrency_stays() -> None:
    fixed = FixedLimit(7)
    fixed.record_overload()
    fixed.record_answer(1.0)
    assert fixed.limit == 7


@pytest.mark.parametrize("wanted", [0, -1, "many"])
def test_nonsense_is_refused(wanted: int | str) -> None:
    with pytest.raises(UsageError, match="concurrency"):
        make_limiter(wanted, print)


def test_the_soft_limit_is_raised_and_the_hard_one_caps_and_says_so() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said: list[str] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert limit_by_open_files(1000, said.append) == 1000
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 1000 + SPARE_FILES
        assert said == []
        assert limit_by_open_files(hard + 5, said.append) == hard - SPARE_FILES
        assert "hard limit" in said[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
