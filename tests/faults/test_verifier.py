"""A verifier that breaks: a failure of its own kind for exactly the keys it broke on, and harm to nobody else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support.book_assertions import all_keys, assert_adds_up, scored_keys
from support.commands import Commands, Process, Served

HEAD = """
import asyncio, ctypes, os, signal, sys, threading, time
from rollbook import Environment, Score, Task

class Poisoned(Environment):
    poisons = {poisons!r}

    def tasks(self):
        for i in range(40):
            name = self.poisons[i // 4] if i % 4 == 1 and i // 4 < len(self.poisons) else "fine"
            yield Task(id=f"{{name}}-{{i}}", prompt=f"What is {{i}} + {{i}}?", answer=str(2 * i), poison=name)
"""
SYNC = """
    def verify(self, task, rollout):
        return getattr(self, task.poison)()

    def fine(self):
        return 1.0

    def hangs(self):
        time.sleep(3600)

    def hangs_deaf(self):
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 60))
        while True:
            pass

    def raises(self):
        raise ValueError("cannot say")

    def exits(self):
        sys.exit(0)

    def interrupts(self):
        raise KeyboardInterrupt

    def exits_at_once(self):
        os._exit(0)

    def segfaults(self):
        ctypes.string_at(0)

    def recurses(self):
        return self.recurses()

    def eats(self):
        return len(bytearray(3 << 30))

    def is_nan(self):
        return float("nan")

    def is_infinite(self):
        return Score(float("inf"))

    def is_none(self):
        return None

    def is_text(self):
        return "1.0"

    def parts_are_nan(self):
        return Score(1.0, parts={"style": float("nan")})

    def says_no_json(self):
        return Score(1.0, info={"what": object()})

    def kills_itself(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def closes_everything(self):
        os.closerange(0, 256)
        return 1.0

    def writes_everywhere(self):
        for number in range(3, 256):
            try:
                os.write(number, b"\\x05\\x00\\x00\\x00hello")
            except OSError:
                continue
        return 1.0

    def forks(self):
        os.fork()
        return 1.0

    def forks_and_stays(self):
        if os.fork() == 0:
            time.sleep(3600)
        return 1.0

    def leaves_a_daemon(self):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
        return 1.0

    def daemon_then_death(self):
        if os.fork() == 0:
            os.setsid()
            time.sleep(3600)
        time.sleep(0.2)
        os._exit(3)

    def prints(self):
        for _ in range(20):
            print("x" * (1 << 20))
        sys.stderr.write("y" * (1 << 20))
        return 1.0

    def closes_stderr(self):
        try:
            os.close(2)
        except OSError:
            pass
        return 1.0

    def closes_stdout(self):
        sys.stdout.close()
        return 1.0
"""
ASYNC = """
    async def verify(self, task, rollout):
        return await getattr(self, task.poison)()

    async def fine(self):
        await asyncio.sleep(0)
        return 1.0

    async def hangs(self):
        await asyncio.sleep(3600)

    async def raises(self):
        raise ValueError("cannot say")

    async def exits(self):
        sys.exit(0)

    async def is_cancelled(self):
        inner = asyncio.ensure_future(asyncio.sleep(3600))
        inner.cancel()
        await inner

    async def times_out_itself(self):
        raise TimeoutError("mine")

    async def is_nan(self):
        return float("nan")

    async def is_none(self):
        return None

    async def says_no_json(self):
        return Score(1.0, info={"what": object()})
"""
KINDS = {
    "hangs": "verifier_timeout",
    "hangs_deaf": "verifier_timeout",
    "raises": "verifier_error",
    "exits": "verifier_error",
    "interrupts": "verifier_error",
    "exits_at_once": "verifier_error",
    "segfaults": "verifier_error",
    "recurses": "verifier_error",
    "eats": "verifier_error",
    "is_cancelled": "verifier_error",
    "times_out_itself": "verifier_error",
    "daemon_then_death": "verifier_error",
    "closes_everything": "verifier_error",
    "writes_everywhere": "environment_error",
    "kills_itself": "environment_error",
    "is_nan": "invalid_reward",
    "is_infinite": "invalid_reward",
    "is_none": "invalid_reward",
    "is_text": "invalid_reward",
    "parts_are_nan": "invalid_reward",
    "says_no_json": "invalid_reward",
}
"""What becomes of each; those that are not here did no wrong that matters, and are scored."""


def play(rollbook: Commands, endpoint: Served, poisons: list[str], methods: str = SYNC) -> tuple[Process, Path]:
    """Run forty tasks, twice each, of which the named poisons are one task each."""
    source, run = rollbook.folder / "poisoned.py", rollbook.folder / "run"
    source.write_text(HEAD.format(poisons=poisons) + methods)
    words = ("-m", endpoint.url, "-k", 2, "--verify-timeout", 1, "-o", run, "--json")
    return rollbook.run("run", source, *words, within_s=60), run


def assert_only_the_poisoned_failed(done: Process, run: Path) -> None:
    """Every key is accounted for, under the kind of its own poison."""
    expected = {key: KINDS.get(key[0].partition("-")[0]) for key in all_keys(run)}
    report = json.loads((run / "metrics.json").read_text())
    assert_adds_up(report, 80)
    found = {(task, sample): why.partition(":")[0] for task, sample, why in report["missing"]}
    assert found == {key: kind for key, kind in expected.items() if kind}
    assert set(scored_keys(run)) == {key for key, kind in expected.items() if not kind}
    assert done.code == (3 if any(expected.values()) else 0), done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def endpoint(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.mark.parametrize(
    "poisons",
    [
        ["hangs", "raises", "exits", "exits_at_once", "segfaults", "is_nan", "is_none", "is_text", "eats", "forks"],
        ["hangs_deaf", "interrupts", "recurses", "is_infinite", "parts_are_nan", "says_no_json", "kills_itself"],
    ],
    ids=["first", "second"],
)
def test_poisons_of_all_kinds_in_one_run_harm_only_themselves(
    poisons: list[str], rollbook: Commands, endpoint: Served
) -> None:
    done, run = play(rollbook, endpoint, poisons)
    assert_only_the_poisoned_failed(done, run)
    assert done.seconds < 40
    assert rollbook.nothing_left(), rollbook.left()


@pytest.mark.parametrize(
    "poison",
    [
        "closes_everything",
        "writes_everywhere",
        "closes_stderr",
        "closes_stdout",
        "prints",
        "forks_and_stays",
        "leaves_a_daemon",
        "daemon_then_death",
    ],
)
def test_a_verifier_that_reaches_beyond_itself_harms_only_itself(
    poison: str, rollbook: Commands, endpoint: Served
) -> None:
    done, run = play(rollbook, endpoint, [poison] * (10 if poison.startswith("closes") else 2))
    assert_only_the_poisoned_failed(done, run)
    assert done.seconds < 40
    assert rollbook.nothing_left(), rollbook.left()


def test_async_poisons_harm_only_themselves(rollbook: Commands, endpoint: Served) -> None:
    poisons = ["hangs", "raises", "times_out_itself", "is_nan", "is_none", "says_no_json"]
    done, run = play(rollbook, endpoint, poisons, ASYNC)
    assert_only_the_poisoned_failed(done, run)


@pytest.mark.parametrize("poison", ["exits", "is_cancelled"])
def test_an_async_verifier_that_raises_more_than_an_exception_harms_only_itself(
    poison: str, rollbook: Commands, endpoint: Served
) -> None:
    done, run = play(rollbook, endpoint, [poison], ASYNC)
    assert_only_the_poisoned_failed(done, run)


def test_what_a_verifier_prints_does_not_fill_the_disk(rollbook: Commands, endpoint: Served) -> None:
    done, run = play(rollbook, endpoint, ["prints"] * 10)
    assert_only_the_poisoned_failed(done, run)
    assert sum(log.stat().st_size for log in (run / "logs").iterdir()) < 100 << 20


def test_the_failure_names_the_line_of_the_verifier(rollbook: Commands, endpoint: Served) -> None:
    _, run = play(rollbook, endpoint, ["raises"])
    lines = [json.loads(line) for p in run.glob("journals/*.failures.jsonl") for line in p.read_text().splitlines()]
    assert {line["failure"]["message"] for line in lines} == {f"ValueError: cannot say (poisoned.py:{line_of(run)})"}
    assert all(line["turns"] and not {"reward", "answer"} & set(line) for line in lines)


def line_of(run: Path) -> int:
    source = (run / "source" / "poisoned.py").read_text().splitlines()
    return next(n for n, line in enumerate(source, 1) if 'ValueError("cannot say")' in line)
