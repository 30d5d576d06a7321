"""A worker: one sandbox, the sessions in it, and threads that run many turns at a time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import msgspec

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Sandbox, SandboxError, Session
from rollbook.sandbox.errors import Refused as NotToBeHad
from rollbook.trainers.nemo_rl.alike import FILTER
from rollbook.trainers.nemo_rl.config import MIB, Config
from rollbook.trainers.nemo_rl.descriptors import room_for
from rollbook.trainers.nemo_rl.outcome import LOST, Outcome, Problem, failed, outcome_of, timeout_of
from rollbook.trainers.nemo_rl.sample import Asked, Refused
from rollbook.trainers.nemo_rl.sessions import Held, Sessions
from rollbook.trainers.nemo_rl.tally import Counts, Tally

SPARE_SESSIONS = 64
"""Sessions that are on their way out while others come in."""
BYTES_PER_CHAR = 4
TRY_AGAIN_S = 10.0
LEAST_S = 0.001
SHUT_DOWN = "the code environment is shut down"
LOG = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True):
    """What became of a sample's code."""

    outcomes: tuple[Outcome, ...]
    turns: int | None = None
    """How many turns the session has had by now; None when this was not one."""


class Worker:
    """Owns a sandbox from the first turn on. Its threads are its own; `turns` may be called from several at once."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._tally = Tally()
        room = room_for(config.max_sessions)
        self._sessions = Sessions(self._begin, config.session_lease_seconds, room, self._tally)
        self._threads = ThreadPoolExecutor(config.threads, "code")
        self._lock = threading.Lock()
        self._box: Sandbox | None = None
        self._broken: tuple[float, SandboxError] | None = None

    def turns(self, batch: Sequence[Asked]) -> list[Answer]:
        """Run the code of every sample; returns by the deadline, whatever is still under way."""
        return self.begin(batch)()

    def begin(self, batch: Sequence[Asked]) -> Callable[[], list[Answer]]:
        """Start all of it; gives what waits for the end."""
        end = time.monotonic() + self._config.batch_timeout_seconds
        under_way = [self._submitted(asked) for asked in batch]

        def finish() -> list[Answer]:
            wait(under_way, max(0.0, end - time.monotonic()))
            return [self._answer(asked, future) for asked, future in zip(batch, under_way, strict=True)]

        return finish

    def _submitted(self, asked: Asked) -> Future[Answer]:
        try:
            return self._threads.submit(self._turn, asked)
        except RuntimeError:  # it is shut down
            future: Future[Answer] = Future()
            future.set_result(Answer((failed("sandbox", SHUT_DOWN),)))
            return future

    def _answer(self, asked: Asked, future: Future[Answer]) -> Answer:
        if future.done():
            return future.result()
        if not future.cancel():
            self._sessions.give_up(asked.session_id)
        self._tally.add("deadline")
        words = f"the batch was over after {self._config.batch_timeout_seconds:g} s, and this code was not"
        return Answer((failed("deadline", words),))

    def _turn(self, asked: Asked) -> Answer:
        try:
            held = self._sessions.claim(asked)
        except (Refused, UsageError) as error:
            return self._counted(Answer((failed("refused", str(error)),)))
        except (SandboxError, OSError, TimeoutError) as error:
            return self._counted(Answer((Outcome(problem=broken(error)),)))
        try:
            afresh = bool(asked.turn) and held.turns == 0
            if self._config.like_nemo_rl:
                afresh |= self._filtered(asked, held)
            outcomes = tuple(self._blocks(asked, held, afresh))
            held.turns = (asked.turn or 0) + 1 if afresh else held.turns + 1
            return self._counted(Answer(outcomes, held.turns))
        finally:
            self._sessions.release(asked.session_id)

    def _filtered(self, asked: Asked, held: Held) -> bool:
        """Set the filter of names; gives whether the session had begun afresh. What breaks here breaks the code too."""
        assert held.session
        try:
            return held.session.run_sync(FILTER, limits=self._limits(asked)).restarted
        except (SandboxError, UsageError, OSError, TimeoutError):
            return False

    def _blocks(self, asked: Asked, held: Held, afresh: bool) -> Iterator[Outcome]:
        """One block after another; they share the message's time, and after one that fails none is run."""
        limits = left = self._limits(asked)
        problem: Problem | None = None
        for code in asked.blocks:
            if problem:
                yield failed("skipped", "not run, since the code before it failed")
                continue
            outcome, left = self._block(code, held, limits, left, afresh)
            problem, afresh = outcome.problem, False
            yield outcome

    def _block(self, code: str, held: Held, limits: Limits, left: Limits, afresh: bool) -> tuple[Outcome, Limits]:
        assert held.session
        if min(left.seconds, left.wall_s) <= LEAST_S:
            return failed("timeout", timeout_of(limits, left.seconds <= LEAST_S)), left
        try:
            result = held.session.run_sync(code, limits=left)
        except (SandboxError, UsageError, OSError, TimeoutError) as error:
            return Outcome(problem=broken(error), after=LOST), left
        self._tally.add("cpu_seconds", result.cpu_seconds)
        return outcome_of(result, limits, left, afresh), less(left, result.cpu_seconds, result.seconds)

    def _limits(self, asked: Asked) -> Limits:
        return Limits(
            seconds=asked.seconds,
            memory_mb=asked.memory_mb,
            output_kb=kilobytes(self._config.max_output_chars),
            files_mb=-(-self._config.max_files_bytes // MIB),
        )

    def _begin(self, asked: Asked) -> Session:
        box, limits = self._sandbox(), self._limits(asked)
        try:
            return box.session(self._config.snapshots, limits, folder=asked.working_dir).__enter__()
        except UsageError as error:
            raise Refused(f"metadata working_dir: {error}") from None

    def _sandbox(self) -> Sandbox:
        """Started with the first turn; when it cannot be, that is not tried again for every sample."""
        with self._lock:
            if self._box:
                return self._box
            if self._broken and time.monotonic() < self._broken[0]:
                raise self._broken[1]
            try:
                self._box = self._started()
            except (SandboxError, OSError) as error:
                LOG.warning("the sandbox cannot be started: %s", error)
                why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                if not isinstance(error, NotToBeHad):
                    why = f"this machine has no sandbox, so no limit can be kept: {why}"
                told = SandboxError(why)
                self._broken = time.monotonic() + TRY_AGAIN_S, told
                raise told from None
            return self._box

    def _started(self) -> Sandbox:
        config = self._config
        sessions = config.max_sessions + SPARE_SESSIONS
        box = Sandbox(packages=config.packages, size=config.threads, sessions=sessions, provider=config.provider)
        return box.__enter__()

    def _counted(self, answer: Answer) -> Answer:
        self._tally.add("turns")
        for outcome in answer.outcomes:
            self._tally.add(outcome.status)
            if outcome.after:
                self._tally.add("sessions_lost" if outcome.after == LOST else "sessions_rolled_back")
        return answer

    def counts(self) -> Counts:
        """What happened since this was last asked."""
        return {**self._tally.take(), "sessions_open": len(self._sessions)}

    def close(self) -> None:
        """End every session and the sandbox; turns under way are cut off."""
        with self._lock:
            box, self._box = self._box, None
            self._broken = float("inf"), SandboxError(SHUT_DOWN)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if box:
            box.close()
        self._threads.shutdown(wait=True)
        self._sessions.close()


def broken(error: Exception) -> Problem:
    """A failure of the sandbox: the last line for the model, all of it for the log."""
    LOG.warning("a code sample could not be run: %s", error)
    return Problem("sandbox", (str(error).strip().splitlines() or [type(error).__name__])[-1])


def less(left: Limits, cpu_s: float, wall_s: float) -> Limits:
    """What remains of a message's time."""
    seconds, wall = max(LEAST_S, left.seconds - cpu_s), max(LEAST_S, left.wall_s - wall_s)
    return msgspec.structs.replace(left, seconds=seconds, wall_seconds=wall)


def kilobytes(chars: int) -> int:
    """So much that one character more than `chars` is kept, however many bytes each has."""
    return -(-BYTES_PER_CHAR * (chars + 1) // 1024)
