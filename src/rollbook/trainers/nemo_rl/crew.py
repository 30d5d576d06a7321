"""Who has the sessions: workers in this process, or Ray actors. Each id belongs to one of them, for good.

A sample's worker is chosen by a hash of its id over a list whose length is part of the configuration. So it is the same
whoever asks: another thread, another call, and with a `worker_group` another environment in another process.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rollbook.trainers.nemo_rl.config import Config
from rollbook.trainers.nemo_rl.outcome import failed
from rollbook.trainers.nemo_rl.sample import Asked
from rollbook.trainers.nemo_rl.tally import Counts, total
from rollbook.trainers.nemo_rl.worker import Answer, Worker

GRACE_S = 60.0
CALL_S = 30.0
ACTOR: dict[str, Any] = {"max_restarts": 16, "max_task_retries": 3, "max_concurrency": 64}
"""A worker that died comes back empty, and its samples are told: so a turn may be tried again. Threads for many steps
at once, as NeMo RL's asynchronous rollouts call with one sample each."""


class Crew(Protocol):
    """All workers of an environment."""

    def turns(self, batch: Sequence[Asked]) -> list[Answer]:
        """The answers, in the batch's order."""

    def counts(self) -> Counts:
        """What happened since this was last asked."""

    def close(self) -> None:
        """End every session."""


def crew_of(config: Config) -> Crew:
    """Ray actors where there are several to place or to share and Ray runs; otherwise workers right here."""
    if (config.num_workers > 1 or config.worker_group) and ray_runs():
        return Actors(config)
    return Here(config)


def ray_runs() -> bool:
    """Whether this process belongs to a Ray cluster. Ray is not imported to find out."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def owner(session_id: str, workers: int) -> int:
    """Whose session this is: the same in every process."""
    return zlib.crc32(session_id.encode(errors="surrogatepass")) % workers


def shares(batch: Sequence[Asked], workers: int) -> dict[int, list[int]]:
    """The places in a batch that each worker has to do with."""
    found: dict[int, list[int]] = {}
    for place, asked in enumerate(batch):
        found.setdefault(owner(asked.session_id, workers), []).append(place)
    return found


def in_order(size: int, answers: Mapping[int, Answer]) -> list[Answer]:
    """Answers by their place."""
    return [answers[place] for place in range(size)]


class Here:
    """Workers in this process."""

    def __init__(self, config: Config) -> None:
        self._workers = [Worker(config) for _ in range(config.num_workers)]

    def turns(self, batch: Sequence[Asked]) -> list[Answer]:
        """All workers at once."""
        parts = shares(batch, len(self._workers))
        begun = {who: self._workers[who].begin([batch[place] for place in places]) for who, places in parts.items()}
        answers = {place: answer for who in parts for place, answer in zip(parts[who], begun[who](), strict=True)}
        return in_order(len(batch), answers)

    def counts(self) -> Counts:
        """Of all workers together."""
        return total([worker.counts() for worker in self._workers])

    def close(self) -> None:
        """End every worker."""
        for worker in self._workers:
            worker.close()


class Actors:
    """Workers as Ray actors, spread over the cluster."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._actors = [self._hired(number) for number in range(config.num_workers)]

    def _hired(self, number: int) -> Any:
        import ray

        options: dict[str, Any] = {**ACTOR, "scheduling_strategy": "SPREAD"}
        if self._config.worker_group:
            options |= {"name": f"rollbook-code-{self._config.worker_group}-{number}", "get_if_exists": True}
        return ray.remote(**options)(Worker).remote(self._config)

    def turns(self, batch: Sequence[Asked]) -> list[Answer]:
        """All workers at once; one that is gone is replaced, and its share is done by the new one."""
        parts = shares(batch, len(self._actors))
        asked = {who: [batch[place] for place in places] for who, places in parts.items()}
        begun = {who: self._actors[who].turns.remote(share) for who, share in asked.items()}
        answers: dict[int, Answer] = {}
        for who, places in parts.items():
            answers |= zip(places, self._result(who, begun[who], asked[who]), strict=True)
        return in_order(len(batch), answers)

    def _result(self, who: int, begun: Any, share: list[Asked]) -> list[Answer]:
        import ray

        within_s = self._config.batch_timeout_seconds + GRACE_S
        try:
            try:
                return list(ray.get(begun, timeout=within_s))
            except ray.exceptions.RayActorError:
                self._actors[who] = self._hired(who)
                return list(ray.get(self._actors[who].turns.remote(share), timeout=within_s))
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            lost = Answer((failed("sandbox", f"worker {who} does not answer: {type(error).__name__}"),))
            return [lost] * len(share)

    def counts(self) -> Counts:
        """Of all workers together; one that does not answer counts for nothing."""
        import ray

        asked = [actor.counts.remote() for actor in self._actors]
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=CALL_S)
        found: list[Mapping[str, float]] = []
        for one in ready:
            try:
                found.append(ray.get(one, timeout=CALL_S))
            except ray.exceptions.RayActorError:
                found.append({"workers_gone": 1})
        return total(found)

    def close(self) -> None:
        """End every worker, and with it all that it has started."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
