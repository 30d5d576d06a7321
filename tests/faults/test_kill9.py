"""Law 3: after kill -9 at any instant, resume loses only what was in flight and repeats nothing that was scored."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.alive import eventually
from support.book_assertions import assert_complete, scored_keys, seeds_of
from support.commands import Commands, Process, Served

TASKS, SAMPLES, LANES = 100, 3, 8
WORK_S = TASKS * SAMPLES / LANES * 0.02


class Victim:
    """One book that is killed again and again until it is full."""

    def __init__(self, rollbook: Commands, endpoint: Served, env: str, run: Path) -> None:
        self.rollbook, self.endpoint, self.env, self.run = rollbook, endpoint, env, run
        self.durable: set[tuple[str, int]] = set()

    def start(self) -> Process:
        """The first time `run`, from then on `resume`."""
        if (self.run / "run.json").exists():
            return self.rollbook.start("resume", self.run, "--no-probe")
        words = ("-m", self.endpoint.url, "-k", SAMPLES, "-c", LANES, "--no-probe", "-o", self.run)
        return self.rollbook.start("run", f"{self.env}?tasks={TASKS}", *words)

    def die(self, instant: random.Random) -> bool:
        """Start, kill at some instant of the start or of the work, and look; False if the work was done before that."""
        before = self.endpoint.seeds
        process = self.start()
        if instant.random() < 0.75:
            assert eventually(lambda: self.endpoint.seeds != before or process.code is not None, 20), process.stderr
        time.sleep(instant.uniform(0.0, WORK_S))
        finished = process.code
        process.kill()
        assert finished in (None, 0), process.stderr
        if (self.run / "run.json").exists():
            self._look(before)
        return finished is None

    def live(self) -> Process:
        """Resume to the end."""
        before = self.endpoint.seeds
        process = self.start().wait(60)
        assert process.code == 0, process.stderr
        self._look(before)
        assert_complete(self.run)
        assert not list((self.run / "leases").glob(".*")), "a hidden file of a killed worker is left"
        return process

    def _look(self, before: dict[int, int]) -> None:
        """Nothing durable is lost, doubled, or was asked again since."""
        counted = scored_keys(self.run)
        assert set(counted.values()) <= {1}
        assert self.durable <= set(counted), "a scored rollout was lost"
        asked = self.endpoint.seeds
        again = [s for s in seeds_of(self.durable) if asked[s] > before[s]]
        assert not again, f"{len(again)} scored rollouts were asked again"
        self.durable = set(counted)


@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.slow)])
def test_a_worker_killed_at_random_instants_loses_only_what_was_in_flight(
    kills: int, rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint, instant = serve("--delay-s", "0.02"), random.Random(kills)
    done = books = midway = 0
    while done < kills:
        books += 1
        victim = Victim(rollbook, endpoint, sums, tmp_path / f"run-{books}")
        deaths = 0
        while done < kills and victim.die(instant):
            done, deaths = done + 1, deaths + 1
            midway += 0 < len(victim.durable) < TASKS * SAMPLES
        victim.live()
        wasted = sum(endpoint.seeds.values()) - TASKS * SAMPLES
        assert wasted <= (deaths + 1) * 8 * LANES, "more was asked again than can have been in flight or unwritten"
        endpoint.kill()
        endpoint.start()
    assert midway >= kills // 3, "too few were killed at work to mean anything"
    assert rollbook.nothing_left()


def test_a_resume_right_after_the_kill_waits_for_no_lease(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve("--delay-s", "0.2")
    victim = Victim(rollbook, endpoint, sums, tmp_path / "run")
    process = victim.start()
    assert eventually(lambda: endpoint.calls >= 2 * LANES, 20)
    process.kill()
    endpoint.switch("ok", delay_s=0.0)
    assert victim.live().seconds < 15


def test_what_three_rounds_left_in_flight_is_still_tried(
    rollbook: Commands, serve: Callable[..., Served], sums: str, tmp_path: Path
) -> None:
    endpoint = serve("--mode", "hang")
    endpoint.switch("hang", models="ok")
    victim = Victim(rollbook, endpoint, sums, tmp_path / "run")
    for _ in range(4):
        calls = endpoint.calls
        process = victim.start()
        assert eventually(lambda calls=calls: endpoint.calls >= calls + LANES, 20), process.stderr
        process.kill()
    endpoint.switch("ok")
    victim.live()
