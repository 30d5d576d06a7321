"""Finding the concurrency that an endpoint can bear."""

from __future__ import annotations

import random
import resource

import pytest

from rollbook.engine.concurrency import SPARE_FILES, AdaptiveLimit, FixedLimit, limit_by_open_files, make_limiter
from rollbook.errors import UsageError


class Server:
    """Answers up to `capacity` rollouts of ten tokens in `seconds`; more of them take proportionally longer."""

    def __init__(self, capacity: int, seconds: float = 0.05) -> None:
        self.capacity, self.seconds, self.now = capacity, seconds, 0.0

    def serve(self, auto: AdaptiveLimit, rounds: int) -> None:
        for _ in range(rounds):
            at_once, began = auto.limit, self.now
            self.now += self.seconds * max(1.0, at_once / self.capacity)
            for _ in range(at_once):
                auto.record_answer(began, 10)


def refuse(auto: AdaptiveLimit, began: float, times: int) -> None:
    for _ in range(times):
        auto.record_overload(began)


@pytest.mark.parametrize("capacity", [4, 32, 200])
def test_auto_settles_near_the_capacity(capacity: int) -> None:
    server = Server(capacity)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 400)
    assert capacity / 1.5 <= auto.limit <= 2 * capacity


def test_auto_follows_a_server_that_gets_smaller_and_larger() -> None:
    server = Server(64)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 200)
    server.capacity = 16
    server.serve(auto, 400)
    assert auto.limit <= 32
    server.capacity = 128
    server.serve(auto, 400)
    assert 85 <= auto.limit <= 256


def test_auto_finds_the_capacity_within_a_few_generations() -> None:
    server = Server(256)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 8)
    assert auto.limit >= 256


def test_lengths_of_rollouts_do_not_matter() -> None:
    """A rollout of ten times the tokens takes ten times as long: that is no sign of a full server."""
    now, draw = 0.0, random.Random(1)
    auto = AdaptiveLimit(clock=lambda: now)
    for _ in range(8):
        tokens = [draw.choice((10, 100, 1000)) for _ in range(auto.limit)]
        began = now
        for each in sorted(tokens):
            now = began + each / 100
            auto.record_answer(began, each)
    assert auto.limit >= 1024


def test_auto_backs_off_at_once_but_once_per_overload() -> None:
    server = Server(1000)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 1)
    assert auto.limit == 64
    began = server.now
    server.now += 0.01
    for _ in range(50):
        auto.record_overload(began)
    assert auto.limit == 16


def test_a_late_refusal_counts_for_the_limit_its_attempt_began_under() -> None:
    server = Server(1000)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 1)
    began = server.now
    server.serve(auto, 2)
    assert auto.limit > 64
    refuse(auto, began, 4)
    assert auto.limit == 16
    refuse(auto, server.now - 0.01, 50)  # these began under the limit that was left
    assert auto.limit == 16


def test_single_errors_at_any_load_are_no_overload() -> None:
    server = Server(1000)
    auto = AdaptiveLimit(clock=lambda: server.now)
    first = server.now
    for _ in range(100):
        server.serve(auto, 1)
        auto.record_overload(server.now)  # one in some hundred calls
    auto.record_overload(first)  # and one that was given up late
    assert auto.limit >= 500


def test_auto_halves_a_limit_that_is_refused_itself() -> None:
    auto = AdaptiveLimit(clock=lambda: 0.0)
    for expected in (8, 4, 2, 1, 1):
        refuse(auto, 1.0, 3)
        assert auto.limit == expected


def test_auto_stays_below_a_refused_limit_for_a_while_then_tries_more() -> None:
    server = Server(10**6)
    auto = AdaptiveLimit(clock=lambda: server.now)
    server.serve(auto, 1)
    refuse(auto, server.now, 4)
    highest = []
    for _ in range(200):
        server.serve(auto, 1)
        highest.append(auto.limit)
    assert max(highest[:8]) < 64
    assert highest[-1] > 128


def test_auto_never_falls_below_one_nor_above_its_bound() -> None:
    server = Server(10**6)
    auto = AdaptiveLimit(max_limit=64, clock=lambda: server.now)
    server.serve(auto, 50)
    assert auto.limit == 64
    for _ in range(20):
        refuse(auto, server.now, 4)
        server.serve(auto, 1)
    assert auto.limit >= 1


def test_a_fixed_concurrency_stays() -> None:
    fixed = FixedLimit(7)
    fixed.record_overload(0.0)
    fixed.record_answer(1.0, 10)
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
