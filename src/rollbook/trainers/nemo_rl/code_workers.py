"""Workers of the code environment: a sandbox, its sessions, and threads that run many turns at a time.

Workers are in this process, or are Ray actors. Each session id belongs to one of them permanently: the worker is chosen
by a hash of the id over a list whose length is part of the configuration. So every caller gets the same one: another
thread, another call, and with a `worker_group` another environment in another process. A trainer never closes a
session: it expires. The number of sessions is bounded by the descriptors that the process may open.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from rollbook.errors import UsageError
from rollbook.processes import SessionEntry, SessionTable
from rollbook.sandbox import Limits, Sandbox, SandboxError, Session
from rollbook.sandbox import SandboxUnsupported as NotToBeHad
from rollbook.trainers.nemo_rl.code_samples import (
    IMPORT_FILTER,
    LOST,
    MIB,
    CodeConfig,
    CodeOutcome,
    CodeProblem,
    CodeRequest,
    SampleRefused,
    describe_timeout,
    make_outcome,
    make_problem_outcome,
)

CountsByName = dict[str, float]


class EventCounter:
    """Counts events by name, from many threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, amount: float = 1) -> None:
        """Add to a count."""
        with self._lock:
            self._counts[name] += amount  # type: ignore[assignment] # a Counter holds any number

    def take(self) -> CountsByName:
        """Return all counts and start again from zero."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)


def sum_counts(counts: list[Mapping[str, float]]) -> CountsByName:
    """Return the sum of several counts."""
    names = sorted({name for each in counts for name in each})
    return {name: sum(each.get(name, 0) for each in counts) for name in names}


DESCRIPTORS_PER_SESSION = 8
SPARE_DESCRIPTORS = 512
"""For everything else in the process."""


def fit_sessions(sessions: int) -> int:
    """Return the number of sessions that fit the kernel's hard limit, and raise the soft limit to what they need."""
    try:
        import resource
    except ImportError:  # not Unix: there is no sandbox either
        return sessions
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_PER_SESSION * sessions + SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return sessions
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return max(1, min(sessions, (max(soft, allowed) - SPARE_DESCRIPTORS) // DESCRIPTORS_PER_SESSION))


@dataclass
class CodeSession:
    """A session that is used by one turn at a time."""

    memory_mb: int
    working_dir: str | None = None
    session: Session | None = None
    turns: int = 0
    abandoned: bool = False

    def close(self) -> None:
        """Close the session, if it was opened."""
        if self.session:
            with suppress(SandboxError):  # it ended with its sandbox
                self.session.__exit__()


class CodeSessions:
    """A bounded table of sessions; the longest idle makes room. A thread closes those whose lease has expired."""

    def __init__(
        self, open_session: Callable[[CodeRequest], Session], lease_s: float, max_sessions: int, counter: EventCounter
    ) -> None:
        self._begin, self._lease_s, self._most, self._counter = open_session, lease_s, max_sessions, counter
        self._table = SessionTable[CodeSession](lease_s)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="code-sessions", daemon=True)
        self._sweeper.start()

    def __len__(self) -> int:
        return len(self._table)

    def claim(self, request: CodeRequest) -> CodeSession:
        """Return the session of this id for one turn: the existing one, or a new one."""
        with self._lock:
            entry = self._table.get(request.session_id)
            if entry:
                check_claim(entry, request)
                entry.users += 1
                return entry.value
            crowded_out = self._make_room()
            entry = self._table.add(request.session_id, CodeSession(request.memory_mb, request.working_dir))
            entry.users += 1
        if crowded_out:
            crowded_out.close()
        return self._open_claimed(entry.value, request)

    def _open_claimed(self, claimed: CodeSession, request: CodeRequest) -> CodeSession:
        try:
            claimed.session = self._begin(request)
        except BaseException:
            with self._lock:
                self._table.pop(request.session_id)
            raise
        self._counter.add("sessions_begun")
        return claimed

    def _make_room(self) -> CodeSession | None:
        """Remove the session that was idle longest, if there is no room for one more."""
        if len(self._table) < self._most:
            return None
        name = self._table.find_idle()
        if name is None:
            raise SampleRefused(f"{self._most} sessions have a turn under way: allow more with max_sessions")
        self._counter.add("sessions_crowded_out")
        return self._table.pop(name)

    def release(self, name: str) -> None:
        """End a turn and renew the lease; a session that was abandoned meanwhile is closed."""
        with self._lock:
            entry = self._table.get(name)
            if entry is None:
                return
            self._table.end_use(name, entry)
            if not (entry.value.abandoned or self._over.is_set()):
                return
            self._table.pop(name)
        entry.value.close()

    def abandon(self, name: str) -> None:
        """Mark a turn whose caller has given up: its state must not be continued."""
        with self._lock:
            entry = self._table.get(name)
            if entry is None:
                return
            if entry.users:
                entry.value.abandoned = True
                return
            self._table.pop(name)  # its turn has just ended
        entry.value.close()

    def _sweep(self) -> None:
        while not self._over.wait(min(self._lease_s / 4, 5.0)):
            self.expire()

    def expire(self) -> None:
        """Close the sessions that were not used for the length of a lease."""
        self._counter.add("sessions_expired", self._close_each(self._table.find_expired))

    def _close_each(self, find: Callable[[], str | None]) -> int:
        """Close, one after another, the sessions that `find` names; return how many."""
        closed = 0
        while True:
            with self._lock:
                name = find()
                session = None if name is None else self._table.pop(name)
            if session is None:
                return closed
            session.close()
            closed += 1

    def close(self) -> None:
        """Close all idle sessions; one with a turn in progress is closed after it."""
        self._over.set()
        self._close_each(self._table.find_idle)
        self._sweeper.join(10)


def check_claim(entry: SessionEntry[CodeSession], request: CodeRequest) -> None:
    """Check whether this sample may continue in this session."""
    name, held = request.session_id, entry.value
    if entry.users:
        raise SampleRefused(f"session {name} has a turn under way: every sample needs an id of its own")
    if request.turn is not None and request.turn != held.turns:
        raise SampleRefused(
            f"session {name} has had {held.turns} turns, this sample {request.turn}: "
            "every sample needs an id of its own"
        )
    if request.memory_mb != held.memory_mb:
        raise SampleRefused(
            f"metadata memory_limit_bytes: the session has {held.memory_mb} MiB, and its limit cannot change to "
            f"{request.memory_mb} MiB"
        )
    if request.working_dir != held.working_dir:
        raise SampleRefused(
            f"metadata working_dir={request.working_dir}: the session works in {held.working_dir or 'its own'}"
        )


SPARE_SESSIONS = 64
"""Sessions that are still being closed while new ones open."""
BYTES_PER_CHAR = 4
RESTART_DELAY_S = 10.0
MIN_SECONDS = 0.001
SHUT_DOWN = "the code environment is shut down"
LOGGER = logging.getLogger(__name__)


class CodeAnswer(msgspec.Struct, frozen=True):
    """The outcomes of a sample's code."""

    outcomes: tuple[CodeOutcome, ...]
    turns: int | None = None
    """The number of turns in the session so far; None if this was not one."""


class CodeWorker:
    """Owns a sandbox from the first turn on, and its threads; `turns` may be called from several threads."""

    def __init__(self, config: CodeConfig) -> None:
        self._config = config
        self._counter = EventCounter()
        max_sessions = fit_sessions(config.max_sessions)
        self._sessions = CodeSessions(self._open_session, config.session_lease_seconds, max_sessions, self._counter)
        self._threads = ThreadPoolExecutor(config.threads, "code")
        self._lock = threading.Lock()
        self._sandbox: Sandbox | None = None
        self._broken: tuple[float, SandboxError] | None = None

    def turns(self, batch: Sequence[CodeRequest]) -> list[CodeAnswer]:
        """Run the code of every sample; return by the deadline, whatever is still in progress."""
        return self.begin(batch)()

    def begin(self, batch: Sequence[CodeRequest]) -> Callable[[], list[CodeAnswer]]:
        """Start all samples; return a function that waits for the answers."""
        end = time.monotonic() + self._config.batch_timeout_seconds
        futures = [self._submit(request) for request in batch]

        def finish() -> list[CodeAnswer]:
            wait(futures, max(0.0, end - time.monotonic()))
            return [self._take_answer(request, future) for request, future in zip(batch, futures, strict=True)]

        return finish

    def _submit(self, request: CodeRequest) -> Future[CodeAnswer]:
        try:
            return self._threads.submit(self._run_turn, request)
        except RuntimeError:  # the worker is shut down
            future: Future[CodeAnswer] = Future()
            future.set_result(CodeAnswer((make_problem_outcome("sandbox", SHUT_DOWN),)))
            return future

    def _take_answer(self, request: CodeRequest, future: Future[CodeAnswer]) -> CodeAnswer:
        if future.done():
            return future.result()
        if not future.cancel():
            self._sessions.abandon(request.session_id)
        self._counter.add("deadline")
        message = f"the batch ended after {self._config.batch_timeout_seconds:g} s, before this code finished"
        return CodeAnswer((make_problem_outcome("deadline", message),))

    def _run_turn(self, request: CodeRequest) -> CodeAnswer:
        try:
            entry = self._sessions.claim(request)
        except (SampleRefused, UsageError) as error:
            return self._count_answer(CodeAnswer((make_problem_outcome("refused", str(error)),)))
        except (SandboxError, OSError, TimeoutError) as error:
            return self._count_answer(CodeAnswer((CodeOutcome(problem=make_sandbox_problem(error)),)))
        try:
            restarted = bool(request.turn) and entry.turns == 0
            if self._config.like_nemo_rl:
                restarted |= self._install_filter(request, entry)
            outcomes = tuple(self._run_blocks(request, entry, restarted))
            entry.turns = (request.turn or 0) + 1 if restarted else entry.turns + 1
            return self._count_answer(CodeAnswer(outcomes, entry.turns))
        finally:
            self._sessions.release(request.session_id)

    def _install_filter(self, request: CodeRequest, entry: CodeSession) -> bool:
        """Install the import filter; return whether the session was restarted. A failure here fails the code too."""
        assert entry.session
        try:
            return entry.session.run_sync(IMPORT_FILTER, limits=self._make_limits(request)).restarted
        except (SandboxError, UsageError, OSError, TimeoutError):
            return False

    def _run_blocks(self, request: CodeRequest, entry: CodeSession, restarted: bool) -> Iterator[CodeOutcome]:
        """Run block after block; they share the message's time, and none runs after one that fails."""
        limits = left = self._make_limits(request)
        problem: CodeProblem | None = None
        for code in request.blocks:
            if problem:
                yield make_problem_outcome("skipped", "not run, since the code before it failed")
                continue
            outcome, left = self._run_block(code, entry, limits, left, restarted)
            problem, restarted = outcome.problem, False
            yield outcome

    def _run_block(
        self, code: str, entry: CodeSession, limits: Limits, left: Limits, restarted: bool
    ) -> tuple[CodeOutcome, Limits]:
        assert entry.session
        if min(left.seconds, left.wall_s) <= MIN_SECONDS:
            return make_problem_outcome("timeout", describe_timeout(limits, left.seconds <= MIN_SECONDS)), left
        try:
            result = entry.session.run_sync(code, limits=left)
        except (SandboxError, UsageError, OSError, TimeoutError) as error:
            return CodeOutcome(problem=make_sandbox_problem(error), after=LOST), left
        self._counter.add("cpu_seconds", result.cpu_seconds)
        return make_outcome(result, limits, left, restarted), subtract_time(left, result.cpu_seconds, result.seconds)

    def _make_limits(self, request: CodeRequest) -> Limits:
        return Limits(
            seconds=request.seconds,
            memory_mb=request.memory_mb,
            output_kb=to_kilobytes(self._config.max_output_chars),
            files_mb=-(-self._config.max_files_bytes // MIB),
        )

    def _open_session(self, request: CodeRequest) -> Session:
        sandbox, limits = self._get_sandbox(), self._make_limits(request)
        try:
            return sandbox.session(self._config.snapshots, limits, folder=request.working_dir).__enter__()
        except UsageError as error:
            raise SampleRefused(f"metadata working_dir: {error}") from None

    def _get_sandbox(self) -> Sandbox:
        """Return the sandbox, started with the first turn; a failed start is not repeated for every sample."""
        with self._lock:
            if self._sandbox:
                return self._sandbox
            if self._broken and time.monotonic() < self._broken[0]:
                raise self._broken[1]
            try:
                self._sandbox = self._start_sandbox()
            except (SandboxError, OSError) as error:
                LOGGER.warning("the sandbox cannot be started: %s", error)
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                if not isinstance(error, NotToBeHad):
                    reason = f"this machine has no sandbox, so no limit can be kept: {reason}"
                failure = SandboxError(reason)
                self._broken = time.monotonic() + RESTART_DELAY_S, failure
                raise failure from None
            return self._sandbox

    def _start_sandbox(self) -> Sandbox:
        config = self._config
        sessions = config.max_sessions + SPARE_SESSIONS
        sandbox = Sandbox(packages=config.packages, size=config.threads, sessions=sessions, provider=config.provider)
        return sandbox.__enter__()

    def _count_answer(self, answer: CodeAnswer) -> CodeAnswer:
        self._counter.add("turns")
        for outcome in answer.outcomes:
            self._counter.add(outcome.status)
            if outcome.after:
                self._counter.add("sessions_lost" if outcome.after == LOST else "sessions_rolled_back")
        return answer

    def counts(self) -> CountsByName:
        """Return the counts since the last call."""
        return {**self._counter.take(), "sessions_open": len(self._sessions)}

    def close(self) -> None:
        """End every session and the sandbox; turns in progress are cut off."""
        with self._lock:
            sandbox, self._sandbox = self._sandbox, None
            self._broken = float("inf"), SandboxError(SHUT_DOWN)
        self._threads.shutdown(wait=False, cancel_futures=True)
        if sandbox:
            sandbox.close()
        self._threads.shutdown(wait=True)
        self._sessions.close()


def make_sandbox_problem(error: Exception) -> CodeProblem:
    """Return a failure of the sandbox: the last line for the model; all of it goes to the log."""
    LOGGER.warning("a code sample could not be run: %s", error)
    return CodeProblem("sandbox", (str(error).strip().splitlines() or [type(error).__name__])[-1])


def subtract_time(left: Limits, cpu_s: float, wall_s: float) -> Limits:
    """Return what remains of a message's time."""
    seconds, wall = max(MIN_SECONDS, left.seconds - cpu_s), max(MIN_SECONDS, left.wall_s - wall_s)
    return msgspec.structs.replace(left, seconds=seconds, wall_seconds=wall)


def to_kilobytes(chars: int) -> int:
    """Return enough to keep one character more than `chars`, however many bytes each has."""
    return -(-BYTES_PER_CHAR * (chars + 1) // 1024)


GRACE_S = 60.0
CALL_TIMEOUT_S = 30.0
ACTOR_OPTIONS: dict[str, Any] = {"max_restarts": 16, "max_task_retries": 3, "max_concurrency": 64}
"""A worker that died comes back empty and its samples see that, so a turn may be retried. Threads for many steps at
once, as NeMo RL's asynchronous rollouts call with one sample each.
"""


class CodeWorkers(ABC):
    """All workers of an environment."""

    def __init__(self, config: CodeConfig) -> None:
        self._config = config

    def turns(self, batch: Sequence[CodeRequest]) -> list[CodeAnswer]:
        """Run all workers at once; return the answers in the batch's order."""
        parts = split_by_worker(batch, self._config.num_workers)
        finish = {number: self._begin(number, [batch[place] for place in places]) for number, places in parts.items()}
        answers: dict[int, CodeAnswer] = {}
        for number, places in parts.items():
            answers |= zip(places, finish[number](), strict=True)
        return [answers[place] for place in range(len(batch))]

    @abstractmethod
    def _begin(self, number: int, share: list[CodeRequest]) -> Callable[[], list[CodeAnswer]]:
        """Start a worker's share of a batch; return a function that waits for the answers."""

    @abstractmethod
    def counts(self) -> CountsByName:
        """Return the counts of all workers together since the last call."""

    @abstractmethod
    def close(self) -> None:
        """End every session."""


def start_workers(config: CodeConfig) -> CodeWorkers:
    """Return Ray actors if there are several to place or share and Ray runs; otherwise workers in this process."""
    if (config.num_workers > 1 or config.worker_group) and is_ray_running():
        return RayWorkers(config)
    return LocalWorkers(config)


def is_ray_running() -> bool:
    """Whether this process belongs to a Ray cluster. Ray is not imported to find out."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def choose_worker(session_id: str, workers: int) -> int:
    """Return the worker of a session: the same in every process."""
    return zlib.crc32(session_id.encode(errors="surrogatepass")) % workers


def split_by_worker(batch: Sequence[CodeRequest], workers: int) -> dict[int, list[int]]:
    """Return each worker's places in a batch."""
    places: dict[int, list[int]] = {}
    for place, request in enumerate(batch):
        places.setdefault(choose_worker(request.session_id, workers), []).append(place)
    return places


class LocalWorkers(CodeWorkers):
    """Workers in this process."""

    def __init__(self, config: CodeConfig) -> None:
        super().__init__(config)
        self._workers = [CodeWorker(config) for _ in range(config.num_workers)]

    def _begin(self, number: int, share: list[CodeRequest]) -> Callable[[], list[CodeAnswer]]:
        return self._workers[number].begin(share)

    def counts(self) -> CountsByName:
        return sum_counts([worker.counts() for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            worker.close()


class RayWorkers(CodeWorkers):
    """Workers as Ray actors, spread over the cluster."""

    def __init__(self, config: CodeConfig) -> None:
        super().__init__(config)
        self._actors = [self._start_actor(number) for number in range(config.num_workers)]

    def _start_actor(self, number: int) -> Any:
        import ray

        options: dict[str, Any] = {**ACTOR_OPTIONS, "scheduling_strategy": "SPREAD"}
        if self._config.worker_group:
            options |= {"name": f"rollbook-code-{self._config.worker_group}-{number}", "get_if_exists": True}
        return ray.remote(**options)(CodeWorker).remote(self._config)

    def _begin(self, number: int, share: list[CodeRequest]) -> Callable[[], list[CodeAnswer]]:
        return partial(self._result, number, self._actors[number].turns.remote(share), share)

    def _result(self, number: int, result: Any, share: list[CodeRequest]) -> list[CodeAnswer]:
        """Wait for a worker's answers; one that is gone is replaced, and its share is run by the new one."""
        import ray

        timeout_s = self._config.batch_timeout_seconds + GRACE_S
        try:
            try:
                return list(ray.get(result, timeout=timeout_s))
            except ray.exceptions.RayActorError:
                self._actors[number] = self._start_actor(number)
                return list(ray.get(self._actors[number].turns.remote(share), timeout=timeout_s))
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            answer = CodeAnswer(
                (make_problem_outcome("sandbox", f"worker {number} does not answer: {type(error).__name__}"),)
            )
            return [answer] * len(share)

    def counts(self) -> CountsByName:
        """Return the counts of all workers together; one that does not answer is left out."""
        import ray

        results = [actor.counts.remote() for actor in self._actors]
        ready, _ = ray.wait(results, num_returns=len(results), timeout=CALL_TIMEOUT_S)
        counts: list[Mapping[str, float]] = []
        for result in ready:
            try:
                counts.append(ray.get(result, timeout=CALL_TIMEOUT_S))
            except ray.exceptions.RayActorError:
                counts.append({"workers_gone": 1})
        return sum_counts(counts)

    def close(self) -> None:
        """Kill every worker, and with it all that it has started."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
