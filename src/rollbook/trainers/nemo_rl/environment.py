"""`CodeEnvironment`: NeMo RL's environment interface around sessions of the sandbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from rollbook.errors import UsageError
from rollbook.trainers.nemo_rl.blocks import CLOSE
from rollbook.trainers.nemo_rl.config import Config, config_of
from rollbook.trainers.nemo_rl.crew import ACTOR, crew_of
from rollbook.trainers.nemo_rl.observation import observation
from rollbook.trainers.nemo_rl.outcome import Outcome, failed
from rollbook.trainers.nemo_rl.sample import Asked, Refused, Said, asked, said
from rollbook.trainers.nemo_rl.tally import Tally, total

ROLE = "environment"
NO_CODE = "no_code"

Message = Mapping[str, object]
Metadata = Mapping[str, object] | None


class Return(NamedTuple):
    """The six fields of NeMo RL's `EnvironmentReturn`, in their order, one element for every sample."""

    observations: list[dict[str, str]]
    metadata: list[Metadata]
    next_stop_strings: list[list[str] | None]
    rewards: Any
    """float32, all 0: a torch tensor where torch is installed, a numpy array otherwise."""
    terminateds: Any
    """bool, likewise."""
    answers: list[str | None] | None


class Sample(NamedTuple):
    """One row of a batch on its way through a step."""

    metadata: Metadata
    said: Said
    asked: Asked | None = None
    outcomes: tuple[Outcome, ...] = ()
    turns: int | None = None

    @property
    def status(self) -> str:
        """What became of it, in one word."""
        return next((one.status for one in self.outcomes if one.problem), "ok") if self.outcomes else NO_CODE

    @property
    def value(self) -> str | None:
        """The value of its last expression, if all went well."""
        return self.outcomes[-1].value if self.status == "ok" else None


class CodeActor:
    """The environment itself; an instance lives in this process or in a Ray actor."""

    def __init__(self, cfg: Mapping[str, object] | None = None) -> None:
        self._config: Config = config_of(cfg)
        self._tally = Tally()
        self._crew = crew_of(self._config)

    def step(
        self,
        message_log_batch: Sequence[Sequence[Message]],
        metadata: Sequence[Metadata],
        return_extracted_answer: bool = False,
    ) -> Return:
        """Run the code in the last message of every log, each in the session of its sample."""
        if len(message_log_batch) != len(metadata):
            raise UsageError(f"step: {len(message_log_batch)} message logs, but {len(metadata)} metadata")
        samples = self._read(message_log_batch, metadata)
        wanted = [(place, sample.asked) for place, sample in enumerate(samples) if sample.asked]
        answers = self._crew.turns([asked for _, asked in wanted])
        for (place, _), answer in zip(wanted, answers, strict=True):
            samples[place] = samples[place]._replace(outcomes=answer.outcomes, turns=answer.turns)
        return self._returned(samples, return_extracted_answer)

    def _read(self, logs: Sequence[Sequence[Message]], metadata: Sequence[Metadata]) -> list[Sample]:
        samples = [self._sample(log, given) for log, given in zip(logs, metadata, strict=True)]
        uses = Counter(sample.asked.session_id for sample in samples if sample.asked)
        return [self._alone(sample, uses) for sample in samples]

    def _sample(self, log: Sequence[Message], given: Metadata) -> Sample:
        nothing = Said((), "")
        try:
            words = said(log)
            if not words.blocks:
                self._tally.add(NO_CODE)
            return Sample(given, words, asked(words.blocks, given, self._config) if words.blocks else None)
        except Refused as error:
            return self._refused(Sample(given, nothing), str(error))

    def _alone(self, sample: Sample, uses: Counter[str]) -> Sample:
        """Two samples of one batch in one session would see each other's variables."""
        if sample.asked is None or uses[sample.asked.session_id] == 1:
            return sample
        name = sample.asked.session_id
        return self._refused(sample, f"metadata session_id={name}: {uses[name]} samples of this batch have it")

    def _refused(self, sample: Sample, why: str) -> Sample:
        self._tally.add("refused")
        return sample._replace(asked=None, outcomes=(failed("refused", why),))

    def _returned(self, samples: list[Sample], with_answers: bool) -> Return:
        return Return(
            observations=[{"role": ROLE, "content": self._observation(sample)} for sample in samples],
            metadata=[told(sample) for sample in samples],
            next_stop_strings=[[CLOSE] for _ in samples],
            rewards=array([0.0] * len(samples), "float32"),
            terminateds=array([self._is_over(sample) for sample in samples], "bool"),
            answers=[sample.value for sample in samples] if with_answers else None,
        )

    def _observation(self, sample: Sample) -> str:
        if not sample.outcomes:
            return ""
        most, alike = self._config.max_output_chars, self._config.like_nemo_rl
        return observation(sample.outcomes, sample.said.blocks, sample.said.after, most, alike)

    def _is_over(self, sample: Sample) -> bool:
        if sample.status == NO_CODE:
            return self._config.terminate_without_code and not self._config.like_nemo_rl
        return self._config.terminate_on_evaluation and sample.value is not None

    def global_post_process_and_metrics(self, batch: object) -> tuple[object, dict[str, float]]:
        """The batch as it is, and what happened since the last time: counts under `code/`."""
        counts = total([self._tally.take(), self._crew.counts()])
        return batch, {f"code/{name}": value for name, value in counts.items()}

    def shutdown(self) -> None:
        """End every session and every worker."""
        self._crew.close()


class Remotely(Protocol):
    """What Ray makes of a class: something that starts actors."""

    def remote(self, cfg: Mapping[str, object] | None = None) -> Any:
        """A handle to a new actor."""


class CodeEnvironment(CodeActor):
    """Multi-turn code for RL. `CodeEnvironment(cfg)` works in this process; `.remote(cfg)` is a Ray actor."""

    @classmethod
    def options(cls, **options: object) -> Remotely:
        """Ray's own: where and how the actor is to run."""
        if find_spec("ray") is None:
            raise UsageError("CodeEnvironment.remote: Ray is not installed; CodeEnvironment(cfg) works in this process")
        import ray

        made: Remotely = ray.remote(**{**ACTOR, **options})(CodeActor)
        return made

    @classmethod
    def remote(cls, cfg: Mapping[str, object] | None = None) -> Any:
        """A new actor."""
        return cls.options().remote(cfg)


def told(sample: Sample) -> Metadata:
    """The metadata for the next turn: the sample's own, the session it is to come back to, what became of this one."""
    if sample.metadata is not None and not isinstance(sample.metadata, Mapping):
        return sample.metadata
    found: dict[str, object] = {**(sample.metadata or {}), "last_status": sample.status}
    if sample.asked and sample.turns is not None:
        found |= {"session_id": sample.asked.session_id, "session_turn": sample.turns}
    return found


def array(values: list[float] | list[bool] | list[int], kind: str) -> Any:
    """What NeMo RL computes with: a tensor where torch is installed, the same in numpy otherwise."""
    if find_spec("torch"):
        import torch

        return torch.tensor(values, dtype=getattr(torch, kind))
    import numpy

    return numpy.array(values, dtype=kind)
