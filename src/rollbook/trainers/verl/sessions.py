"""verl's V1: the sessions of many prompts at once, each put into the TransferQueue when its prompt is done with."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import msgspec

from rollbook.collect.group import Group
from rollbook.collect.policy import Counts, Policy
from rollbook.core.task import Task
from rollbook.errors import TokenError
from rollbook.trainers.background import Background
from rollbook.trainers.players import Players
from rollbook.trainers.sample import Sample, sample_of
from rollbook.trainers.verl.asked import GREEDY, SAMPLES, routed, sampling_of, version_of
from rollbook.trainers.verl.queue import prompts_of, publish, status
from rollbook.trainers.verl.trajectories import Prompt, trajectories


class Sessions:
    """Begins prompts and returns; what broke one of them is raised with the next batch."""

    def __init__(self, players: Players, background: Background, policy: Policy, rollout: Any) -> None:
        self._players, self._background = players, background
        self._policy, self._rollout = policy, rollout
        self.counts = Counts()
        self._under_way: set[Future[None]] = set()
        self._broken: BaseException | None = None

    def begin(self, prompts: Any) -> None:
        """Begin every prompt of a batch."""
        if self._broken is not None:
            raise self._broken
        validate, asked = prompts_of(prompts)
        found = routed(self._players, [prompt.fields for prompt in asked])
        self._background.run(self._told(asked))
        for prompt, (name, task) in zip(asked, found, strict=True):
            future = self._background.start(self._prompt(prompt, name, task, validate))
            self._under_way.add(future)
            future.add_done_callback(self._done)

    def _done(self, future: Future[None]) -> None:
        """Nobody awaits it: what broke, also the queue itself, is kept for the next batch."""
        self._under_way.discard(future)
        if not future.cancelled() and future.exception() is not None:
            self._broken = self._broken or future.exception()

    async def _told(self, asked: list[Prompt]) -> None:
        self._players.resume(version_of(asked[0].global_steps) if asked else None)

    async def _prompt(self, prompt: Prompt, name: str, task: Task, validate: bool) -> None:
        """All sessions of one prompt; what it came to is said once none of them is under way any more."""
        partition = "val" if validate else "train"
        await status(prompt.uid, partition, "running")
        ended = "failure"
        try:
            ended = await self._sessions(prompt, name, task, validate, partition)
        except Exception as error:  # noqa: BLE001 - known before the status is: then verl may come with its next batch
            self._broken = self._broken or error
        finally:
            await status(prompt.uid, partition, ended)

    async def _sessions(self, prompt: Prompt, name: str, task: Task, validate: bool, partition: str) -> str:
        own = self._rollout.val_kwargs if validate else self._rollout
        count = int(prompt.fields.get(SAMPLES, own.n))
        greedy = not validate and not prompt.fields.get(GREEDY, True)
        sampling = sampling_of(self._rollout, validate=validate, greedy=greedy)
        self.counts.drawn += 1
        rollouts = await asyncio.gather(*(self._players.play(name, task, sampling) for _ in range(count)))
        if not self._policy.passes(Group(task, rollouts), 0, self.counts):
            return "failure"
        kept = {key: value for key, value in prompt.fields.items() if key not in (SAMPLES, GREEDY)}
        told = msgspec.structs.replace(prompt, fields=kept)
        samples = list(enumerate(map(sample_of, rollouts)))
        fit = [one for one in samples if not (validate and one[1].masked)]  # verl would validate it with a reward of 0
        made = [trajectories(told, session, sample) for session, sample in fit]
        hollow = [sample for (_, sample), several in zip(fit, made, strict=True) if not several and not sample.masked]
        if hollow and not validate:
            return self._refused(hollow[0])
        for several in filter(None, made):
            await publish(several, partition)
        return "finished" if any(made) else "failure"

    def _refused(self, sample: Sample) -> str:
        """A rollout was scored though nothing was sampled: verl has no place for it, and its group would be short."""
        if self._policy.on_failure in ("raise", "retry"):
            (task, number), ended = sample.rollout.key, sample.rollout.ended
            way = "leave such prompts out, or use on_failure drop_group"
            raise TokenError(f"rollout {task}#{number} sampled no token ({ended or 'an empty answer'}): {way}")
        self.counts.given -= 1
        self.counts.dropped_failed += 1
        return "failure"
