"""Environment processes can be killed and are replaced, and other rollouts lose nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from rollbook.book import digest_source
from rollbook.core import EnvironmentSpec, Limits, Message, Rollout, Score, Task
from rollbook.environments.environment import Environment
from rollbook.environments.pool import EnvironmentProcessPool
from rollbook.environments.registry import resolve
from rollbook.environments.runtime import EnvironmentRuntime
from rollbook.environments.snapshot import load_environment, write_snapshot
from rollbook.errors import RolloutFailed, Stopped, UsageError
from support.alive import alive, eventually

T = TypeVar("T")

SOURCE = """
import ctypes, os, signal, subprocess, sys, time
from rollbook import Environment, Score, Task

class Odd(Environment):
    def tasks(self):
        yield Task(id="a", prompt="p")

    def verify(self, task, rollout):
        match rollout.text:
            case "hang": time.sleep(60)
            case "cancelled":
                for number in (signal.SIGTERM, signal.SIGINT):
                    os.kill(os.getpid(), number)
                time.sleep(0.1)
            case "terminates":
                child = os.fork()
                if child == 0:
                    time.sleep(60)
                os.kill(child, signal.SIGTERM)
                program = subprocess.Popen(["sleep", "60"])
                program.terminate()
                return Score(1.0, answer=f"{os.waitpid(child, 0)[1]} {program.wait()}")
            case "raise": raise KeyError("nope")
            case "exit": sys.exit(0)
            case "vanish": os._exit(0)
            case "crash": ctypes.string_at(0)
            case "none": return None
            case "nan": return float("nan")
            case "text": return "1"
            case "object": return Score(1.0, info={"x": object()})
            case "memory": return len(bytearray(1 << 34))
            case "fork":
                if os.fork() == 0:
                    return 0.0
                return 1.0
            case "print": print("x" * 10_000_000)
            case "close": os.closerange(3, 4096)
            case "pid": return Score(1.0, answer=str(os.getpid()))
            case "daemon":
                if os.fork() == 0:
                    os.setsid()
                    if os.fork() == 0:
                        open(task.path, "w").write(f"{os.getpid()}\\n")
                        time.sleep(60)
                    os._exit(0)
                time.sleep(60)
        return Score(1.0, {"part": 0.5}, "x", {"k": [1]})


class Stateful(Environment):
    def tasks(self):
        yield Task(id="a", prompt="p")

    def open(self, task):
        if task.id == "closed":
            raise RuntimeError("no room")
        return {"id": task.id, "pid": os.getpid()}

    def outcome(self, state):
        if state["id"] == "slow":
            time.sleep(60)
        return state

    def close(self, state):
        state.clear()

    def verify(self, task, rollout):
        return rollout.outcome["id"] == task.id
"""


def spec_of(folder: Path, name: str) -> EnvironmentSpec:
    path = folder / "odd_env.py"
    path.write_text(SOURCE)
    return write_snapshot(resolve(f"{path}:{name}"), folder / "source")


def replace_source(spec: EnvironmentSpec, folder: Path, text: str) -> EnvironmentSpec:
    """Return an environment whose copy has other source than the one that was resolved."""
    (folder / "source" / "odd_env.py").write_text(text)
    return msgspec.structs.replace(spec, digest=digest_source(folder / "source"))


def play(folder: Path, work: Callable[[EnvironmentRuntime], Awaitable[T]], name: str = "Odd", processes: int = 2) -> T:
    spec = spec_of(folder, name)
    limits = Limits(verify_s=3.0, tool_s=3.0, memory_mb=512)

    async def go() -> T:
        runtime = EnvironmentRuntime(
            spec,
            limits,
            environment=lambda: load_environment(spec, folder),
            run=folder,
            max_processes=processes,
            log=folder / "log",
        )
        try:
            await runtime.open()
            return await work(runtime)
        finally:
            await runtime.close()

    return asyncio.run(go())


def rollout(text: str, **fields: object) -> Rollout:
    task = Task(id="a", prompt="p", **fields)
    return Rollout(task=task, sample=0, seed=1, messages=[*task.messages, Message("assistant", text)])


async def verdict(runtime: EnvironmentRuntime, text: str, **fields: object) -> Score | str:
    made = rollout(text, **fields)
    try:
        return await runtime.verify(made.task, made)
    except RolloutFailed as error:
        return error.kind


def test_a_score_comes_back_whole(tmp_path: Path) -> None:
    assert play(tmp_path, lambda runtime: verdict(runtime, "ok")) == Score(1.0, {"part": 0.5}, "x", {"k": [1]})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("hang", "verifier_timeout"),
        ("raise", "verifier_error"),
        ("exit", "verifier_error"),
        ("vanish", "verifier_error"),
        ("crash", "verifier_error"),
        ("none", "invalid_reward"),
        ("nan", "invalid_reward"),
        ("text", "invalid_reward"),
        ("object", "invalid_reward"),
        ("memory", "verifier_error"),
        ("close", "verifier_error"),
    ],
)
def test_a_bad_verifier_fails_its_own_rollout_and_no_other(tmp_path: Path, text: str, kind: str) -> None:
    async def work(runtime: EnvironmentRuntime) -> list[Score | str]:
        texts = ["ok"] * 20 + [text] + ["ok"] * 20
        return list(await asyncio.gather(*(verdict(runtime, t) for t in texts)))

    found = play(tmp_path, work)
    assert found[20] == kind
    assert all(isinstance(score, Score) for score in found[:20] + found[21:])


def test_signals_of_a_job_that_is_cancelled_do_not_end_a_verifier(tmp_path: Path) -> None:
    assert isinstance(play(tmp_path, lambda runtime: verdict(runtime, "cancelled")), Score)


def test_what_a_verifier_starts_can_be_terminated(tmp_path: Path) -> None:
    found = play(tmp_path, lambda runtime: verdict(runtime, "terminates"))
    assert isinstance(found, Score)
    assert found.answer == "15 -15"


def test_a_fork_inside_verify_answers_once(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> list[Score | str]:
        return [await verdict(runtime, "fork"), await verdict(runtime, "ok"), await verdict(runtime, "ok")]

    first, *rest = play(tmp_path, work, processes=1)
    assert first == Score(1.0)
    assert all(score == Score(1.0, {"part": 0.5}, "x", {"k": [1]}) for score in rest)


def test_what_a_hanging_verifier_started_dies_with_it(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> int:
        assert await verdict(runtime, "daemon", path=str(tmp_path / "pid")) == "verifier_timeout"
        return int((tmp_path / "pid").read_text())

    pid = play(tmp_path, work)
    assert eventually(lambda: not alive(pid), 5)


def test_the_log_of_what_environments_print_is_bounded(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> None:
        for _ in range(4):
            await verdict(runtime, "print")

    play(tmp_path, work, processes=1)
    assert (tmp_path / "log").stat().st_size < 32 << 20


def test_a_hang_keeps_nobody_waiting_longer_than_its_deadline(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> float:
        await verdict(runtime, "ok")
        began = time.monotonic()
        await asyncio.gather(*(verdict(runtime, t) for t in ["hang", *["ok"] * 50]))
        return time.monotonic() - began

    assert play(tmp_path, work) < 15


def test_processes_are_reused(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> set[str | None]:
        scores = [await verdict(runtime, "pid") for _ in range(20)]
        return {s.answer for s in scores if isinstance(s, Score)}

    assert len(play(tmp_path, work)) == 1


def test_an_environment_that_does_not_load_is_known_at_once(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Odd")
    spec = replace_source(spec, tmp_path, "raise RuntimeError('broken on import')")

    async def go() -> None:
        runtime = EnvironmentRuntime(spec, Limits(), environment=Environment, run=tmp_path, log=tmp_path / "log")
        try:
            await runtime.open()
        finally:
            await runtime.close()

    with pytest.raises(UsageError, match="broken on import"):
        asyncio.run(go())


def test_an_environment_that_is_killed_while_it_loads_is_no_mistake_of_the_user(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Odd")
    spec = replace_source(spec, tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")

    async def go() -> None:
        pool = EnvironmentProcessPool(spec, Limits(), run=tmp_path)
        with pytest.raises(Stopped, match="was killed while it loaded"):
            await pool.open()
        await pool.close()

    asyncio.run(go())


def test_an_environment_that_closes_its_channel_while_it_loads_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Odd")
    spec = replace_source(spec, tmp_path, "import os, time\nos.closerange(3, 256)\ntime.sleep(60)")

    async def go() -> None:
        pool = EnvironmentProcessPool(spec, Limits(), run=tmp_path)
        with pytest.raises(UsageError, match="closed its channel"):
            await pool.open()
        await pool.close()

    asyncio.run(go())


def test_state_lives_in_one_process_and_reaches_the_record(tmp_path: Path) -> None:
    async def one(runtime: EnvironmentRuntime, name: str) -> tuple[dict[str, object], Score]:
        task = Task(id=name, prompt="p")
        session = await runtime.open_session(task, name)
        outcome = await session.outcome()
        await session.close()
        made = Rollout(task=task, sample=0, seed=0, messages=task.messages, outcome=outcome)
        return outcome, await runtime.verify(task, made)

    async def work(runtime: EnvironmentRuntime) -> list[tuple[dict[str, object], Score]]:
        return list(await asyncio.gather(*(one(runtime, f"t{i}") for i in range(8))))

    found = play(tmp_path, work, "Stateful")
    assert [outcome["id"] for outcome, _ in found] == [f"t{i}" for i in range(8)]
    assert all(score.reward == 1.0 for _, score in found)


def test_a_state_that_cannot_be_opened_is_an_environment_error(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> None:
        await runtime.open_session(Task(id="closed", prompt="p"), "x")

    with pytest.raises(RolloutFailed, match="no room") as caught:
        play(tmp_path, work, "Stateful")
    assert caught.value.kind == "environment_error"


def test_a_late_outcome_fails_its_rollout_and_its_neighbours_start_again(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> list[str]:
        slow = await runtime.open_session(Task(id="slow", prompt="p"), "slow")
        mate = await runtime.open_session(Task(id="mate", prompt="p"), "mate")

        async def end(session: object) -> str:
            try:
                await session.outcome()  # type: ignore[attr-defined]
            except Exception as error:
                return getattr(error, "kind", type(error).__name__)
            return "ok"

        return list(await asyncio.gather(end(slow), end(mate)))

    assert play(tmp_path, work, "Stateful", processes=1) == ["environment_error", "SessionLost"]


def test_nobody_waits_for_ever_for_a_stage_that_is_closed(tmp_path: Path) -> None:
    async def work(runtime: EnvironmentRuntime) -> list[Score | str]:
        waiting = [asyncio.ensure_future(verdict(runtime, "hang")) for _ in range(12)]
        await asyncio.sleep(0.2)
        await runtime.close()
        async with asyncio.timeout(10):
            return [*await asyncio.gather(*waiting), await verdict(runtime, "ok")]

    assert play(tmp_path, work, processes=1) == ["environment_error"] * 13


def test_a_process_for_state_is_refused_after_close_also_while_the_first_one_starts(tmp_path: Path) -> None:
    async def go() -> list[str]:
        pool = EnvironmentProcessPool(spec_of(tmp_path, "Stateful"), Limits(), run=tmp_path)
        waiting = asyncio.ensure_future(pool.acquire_process())
        await asyncio.sleep(0.05)
        assert pool._starting
        await pool.close()
        async with asyncio.timeout(10):
            results = await asyncio.gather(waiting, pool.acquire_process(), return_exceptions=True)
        assert not pool._starting
        assert not pool._processes
        return [result.kind for result in results if isinstance(result, RolloutFailed)]

    assert asyncio.run(go()) == ["environment_error"] * 2


def test_one_that_does_not_load_is_not_loaded_again_behind_the_error(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "Odd")
    spec = replace_source(spec, tmp_path, f"open({str(tmp_path / 'loads')!r}, 'a').write('x'); 1 / 0")

    async def go() -> None:
        processes = EnvironmentProcessPool(spec, Limits(), run=tmp_path)
        with pytest.raises(UsageError, match="did not load"):
            await processes.open()
        await asyncio.sleep(0)
        assert not processes._starting
        await processes.close()

    asyncio.run(go())
    assert (tmp_path / "loads").read_text() == "x"
