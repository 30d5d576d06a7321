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


class Steps:
    """Answers that take a second each, and the limits to which they lead."""

    def __init__(self, **options: int) -> None:
        self.now = 0.0
        self.auto = AdaptiveLimit(clock=lambda: self.now, **options)

    def answer(self, tokens: int) -> None:
        began, self.now = self.now, self.now + 1.0
        self.auto.record_answer(began, tokens)

    def find_next(self, tokens: int) -> tuple[int, int]:
        """Return after how many answers of so many tokens the limit changes, and what it is then."""
        before, count = self.auto.limit, 0
        while self.auto.limit == before:
            self.answer(tokens)
            count += 1
        return count, self.auto.limit

    def follow(self, *tokens: int) -> list[tuple[int, int]]:
        return [self.find_next(each) for each in tokens]


def test_the_limit_is_multiplied_by_four_while_that_gives_as_much_more() -> None:
    # 16 answers are enough at first, then half the limit; at the bound less is tried after half as many again.
    assert Steps().follow(80, 80, 80, 80, 80) == [(16, 64), (32, 256), (128, 1024), (512, 4096), (2048 + 6144, 3277)]


@pytest.mark.parametrize(
    ("tokens", "limit"),
    [
        (50, 256),  # 2.5 times as much: four times the limit again
        (49, 128),  # less: only doubled
        (22, 128),  # a tenth more is still more
        (21, 32),  # 1.05 times as much is not: halfway back
        (19, 32),  # 0.95 times as much: halfway back
        (18, 16),  # less than that: all the way back
    ],
)
def test_the_gain_decides_how_the_limit_grows(tokens: int, limit: int) -> None:
    assert Steps().follow(80, tokens) == [(16, 64), (32, limit)]


def test_what_waits_in_the_servers_is_awaited_where_doubling_gives_little() -> None:
    steps = Steps()
    assert steps.follow(80, 40, 50) == [(16, 64), (32, 128), (64, 256)]  # 2.0 and 2.5 times as much
    assert steps.find_next(35) == (128, 512)  # 1.4 times as much: the 256 that were added are awaited
    assert steps.find_next(35) == (256 + 256, 1024)


def test_nothing_is_awaited_where_doubling_gives_half_as_much_again() -> None:
    steps = Steps()
    assert steps.follow(80, 40, 30) == [(16, 64), (32, 128), (64, 256)]  # 2.0 and 1.5 times as much
    assert steps.find_next(30) == (128, 512)


def test_a_limit_that_stopped_growing_is_tried_a_little_lower_and_higher() -> None:
    steps = Steps()
    assert steps.follow(80, 20) == [(16, 64), (32, 32)]  # as much as with 16: halfway back
    assert steps.find_next(20) == (32 + 48, 26)  # 32 that ended before tell nothing; then 32 / 1.25
    assert steps.find_next(20) == (6 + 39, 32)  # less: back
    assert steps.find_next(20) == (6 + 48, 36)  # then up, in smaller steps where a step lost much: 1.25 ** 0.5
    assert steps.find_next(20) == (4 + 54, 43)  # more: up again, in larger steps


def test_as_much_is_enough_for_a_lower_limit() -> None:
    steps = Steps()
    assert steps.follow(80, 20, 200) == [(16, 64), (32, 32), (80, 26)]
    assert steps.find_next(246) == (
        45,
        21,
    )  # 26 x 246 is a little less than 32 x 200, within half a percent: lower still
    other = Steps()
    assert other.follow(80, 20, 200) == [(16, 64), (32, 32), (80, 26)]
    assert other.find_next(244) == (45, 32)  # a percent less: back


def test_a_higher_limit_has_to_give_more() -> None:
    steps = Steps()
    assert steps.follow(80, 18, 100) == [(16, 64), (32, 16), (48 + 24, 20)]  # much was lost: up first
    assert steps.find_next(81) == (4 + 30, 16)  # 20 x 81 is only 1.25 percent more
    other = Steps()
    assert other.follow(80, 18, 100) == [(16, 64), (32, 16), (48 + 24, 20)]
    assert other.find_next(82) == (4 + 30, 25)  # 2.5 percent more: on, in steps of the same size


def test_an_answer_that_began_before_the_limit_was_set_does_not_count() -> None:
    steps = Steps()
    steps.now = 5.0
    for _ in range(15):
        steps.auto.record_answer(0.0, 10)
    assert steps.find_next(10) == (1, 64)  # it is as old as the limit itself
    for _ in range(100):
        steps.auto.record_answer(5.9, 10)
    assert steps.auto.limit == 64
    assert steps.find_next(10) == (32, 256)


def test_an_answer_without_tokens_counts_as_one() -> None:
    steps = Steps()
    assert steps.follow(0, 1) == [(16, 64), (32, 256)]
    assert Steps().follow(3, 0) == Steps().follow(3, 1) == [(16, 64), (32, 128)]  # 64 is 1.33 times 16 x 3


@pytest.mark.parametrize(
    ("before", "tokens", "limit"),
    [
        ((80, 18, 1000), 816, 16),  # exactly 2 percent more than with 16 is not enough for 20
        ((80, 18, 1000), 817, 25),
        ((80, 18, 1000), 840, 25),  # exactly 5 percent more: on, in steps of the same size
        ((80, 18, 1000), 841, 28),  # more than that: in larger steps
        ((80, 20, 13000), 15920, 32),  # exactly half a percent less than with 32 is too little for 26
        ((80, 20, 13000), 15921, 21),
    ],
)
def test_what_is_just_as_much_as_a_bound_is_not_more(before: tuple[int, ...], tokens: int, limit: int) -> None:
    steps = Steps()
    steps.follow(*before)
    assert steps.find_next(tokens)[1] == limit


def test_steps_get_smaller_after_one_failure_in_each_direction() -> None:
    steps = Steps()
    assert steps.follow(80, 20, 20) == [(16, 64), (32, 32), (80, 26)]
    assert steps.find_next(24) == (6 + 39, 32)  # 26 x 24 is a little less than 32 x 20: back
    assert steps.find_next(20) == (6 + 48, 40)  # up by as much: 32 x 1.25
    assert steps.find_next(16) == (8 + 60, 32)  # no more: back
    assert steps.find_next(20) == (8 + 48, 29)  # down by less: 32 / 1.25 ** 0.5


@pytest.mark.parametrize(("tokens", "limit"), [(1520, 40), (1519, 36)])
def test_steps_get_smaller_at_once_where_one_loses_more_than_five_percent(tokens: int, limit: int) -> None:
    steps = Steps()
    assert steps.follow(80, 20, 1300) == [(16, 64), (32, 32), (80, 26)]
    assert steps.follow(tokens, 1300) == [(6 + 39, 32), (6 + 48, limit)]


@pytest.mark.parametrize(("times", "limit"), [(12, 256), (13, 64)])
def test_refusals_are_an_overload_from_a_share_of_the_limit_on(times: int, limit: int) -> None:
    steps = Steps()
    steps.follow(80, 80)
    refuse(steps.auto, steps.now, times)
    assert steps.auto.limit == limit


def test_few_refusals_are_an_overload_of_a_low_limit() -> None:
    steps = Steps()
    refuse(steps.auto, -1.0, 9)  # before the first limit
    refuse(steps.auto, 0.0, 2)
    assert steps.auto.limit == 16
    refuse(steps.auto, 0.0, 1)
    assert steps.auto.limit == 8


def test_refusals_of_an_earlier_window_are_forgotten() -> None:
    steps = Steps()
    refuse(steps.auto, 0.0, 2)
    assert steps.find_next(10) == (16, 64)
    refuse(steps.auto, 0.0, 2)
    assert steps.auto.limit == 64
    refuse(steps.auto, 0.0, 1)
    assert steps.auto.limit == 8


def test_refusals_before_an_overload_do_not_count_for_the_limit_after_it() -> None:
    steps = Steps()
    assert steps.find_next(10) == (16, 64)
    refuse(steps.auto, 0.0, 2)  # these began under 16
    refuse(steps.auto, steps.now, 4)
    assert steps.auto.limit == 16
    refuse(steps.auto, steps.now, 2)
    assert steps.auto.limit == 16
    refuse(steps.auto, steps.now, 1)
    assert steps.auto.limit == 8


def test_the_refused_limit_is_tried_again_after_eight_windows_without_a_refusal() -> None:
    steps = Steps()
    refuse(steps.auto, 0.0, 3)
    assert steps.auto.limit == 8
    limits = [limit for _, limit in steps.follow(*[10] * 12)]
    assert limits[:2] == [6, 8]
    assert max(limits[:8]) < 16 < max(limits)


def test_auto_is_bounded_by_the_open_files_and_says_nothing() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said: list[str] = []
    try:
        limiter = make_limiter("auto", said.append)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert isinstance(limiter, AdaptiveLimit)
    assert (limiter.limit, said) == (16, [])
    for wanted in (1, 3):
        fixed = make_limiter(wanted, said.append)
        assert isinstance(fixed, FixedLimit)
        assert fixed.limit == wanted


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "raised"),
    [
        (228, 500, 100, 100, 500),  # enough already, but containers and programs need more
        (1024, 524_288, 100, 100, 65_536),
        (1024, 524_288, 65_500, 65_500, 65_628),
        (100_000, 524_288, 100, 100, 100_000),
        (100, 200, 100, 72, 200),
        (100, 128, 100, 1, 128),
        (100, -1, 1000, 1000, 1128),
        (-1, -1, 5000, 5000, -1),
    ],
)
def test_open_files_bound_the_concurrency(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, allowed: int, raised: int
) -> None:
    held, said = [soft, hard], list[str]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(held))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: held.__setitem__(slice(None), limits))
    assert limit_by_open_files(wanted, said.append) == allowed
    assert held == [raised, hard]
    words = (
        f"concurrency {wanted} needs {wanted + 128} open files, the hard limit is {hard}: running {allowed} at a time"
    )
    assert said == ([words] if allowed < wanted else [])
    held[:] = [soft, hard]
    assert limit_by_open_files(wanted, said.append, quiet=True) == allowed
    assert len(said) == (allowed < wanted)


def test_answers_that_began_while_an_effect_was_awaited_do_not_count() -> None:
    steps = Steps()
    assert steps.follow(80, 20) == [(16, 64), (32, 32)]  # 32 more have to end before the lower limit is in effect
    for _ in range(32):
        steps.answer(20)
    for _ in range(200):
        steps.auto.record_answer(steps.now - 0.5, 20)
    assert steps.auto.limit == 32
    assert steps.find_next(20) == (48, 26)


@pytest.mark.parametrize(("changes", "known"), [(7, True), (8, False)])
def test_a_refusal_is_matched_with_one_of_the_last_eight_limits(changes: int, known: bool) -> None:
    steps = Steps()
    limits = [limit for _, limit in steps.follow(80, 20, *[20] * (changes - 2))]
    refuse(steps.auto, 0.0, 3)  # these began under the first limit
    assert steps.auto.limit == (8 if known else limits[-1])
