"""`CodeEnvironment`: NeMo RL's environment interface around sessions of the sandbox.

A model reads one `<result>` for every block, in one form whatever happened:

<result>7</result>                      one line of code, one line to tell

<result>                                otherwise; in this order what was printed to stdout, what to stderr,
printed                                 the value of the last expression, and a problem as
error[runtime]: line 2: ValueError: no  error[KIND]: MESSAGE
session: rolled back; ...               what became of the session, when it is not simply kept
</result>
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from rollbook.errors import UsageError
from rollbook.trainers.formats import make_array
from rollbook.trainers.nemo_rl.code_samples import (
    CLOSE_TAG,
    CodeBlocks,
    CodeConfig,
    CodeOutcome,
    CodeRequest,
    SampleRefused,
    make_problem_outcome,
    read_code_request,
    read_config,
    read_last_message,
)
from rollbook.trainers.nemo_rl.code_workers import ACTOR_OPTIONS, EventCounter, start_workers, sum_counts

_RESULT_TAG = re.compile(r"<(?=\s*/?\s*result)", re.IGNORECASE)


def make_observation(
    outcomes: Sequence[CodeOutcome], blocks: Sequence[str], after: str, max_chars: int, like_nemo_rl: bool = False
) -> str:
    """Return the results of a message's blocks. Line ends that the model wrote after its code are not repeated."""
    bodies = [format_outcome(outcome, max_chars, like_nemo_rl) for outcome in outcomes]
    if len(bodies) == 1 and "\n" not in bodies[0] + "".join(blocks):
        return f"<result>{bodies[0]}</result>"
    text = "\n\n" + "\n".join(f"<result>\n{body}\n</result>" if body else "<result></result>" for body in bodies)
    return text.removeprefix(after) if after.isspace() else text


def format_outcome(outcome: CodeOutcome, max_chars: int, like_nemo_rl: bool = False) -> str:
    """Return the content of one result, which no output of code can close. `like_nemo_rl` changes exceptions."""
    parts = [f"session: {outcome.before}"] if outcome.before else []
    parts += [
        truncate_text(text.rstrip("\n"), max_chars) for text in (outcome.stdout, outcome.stderr) if text.rstrip("\n")
    ]
    parts += [truncate_text(outcome.value, max_chars)] if outcome.value is not None else []
    if outcome.problem:
        plain = f"error[{outcome.problem.kind}]: {truncate_text(outcome.problem.message, max_chars)}"
        parts.append(truncate_text(outcome.problem.repr, max_chars) if like_nemo_rl and outcome.problem.repr else plain)
    parts += [f"session: {outcome.after}"] if outcome.after else []
    return escape_tags("\n".join(parts))


def truncate_text(text: str, max_chars: int) -> str:
    """Return the head of a long text, and a mark that there was more."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n[cut after {max_chars} characters]"


def escape_tags(text: str) -> str:
    """Return text that any tokenizer can encode, without tags of ours."""
    return _RESULT_TAG.sub("&lt;", text.encode(errors="replace").decode())


ROLE = "environment"
NO_CODE = "no_code"

LogMessage = Mapping[str, object]
SampleMetadata = Mapping[str, object] | None


class StepReturn(NamedTuple):
    """The six fields of NeMo RL's `EnvironmentReturn`, in their order, one element for every sample."""

    observations: list[dict[str, str]]
    metadata: list[SampleMetadata]
    next_stop_strings: list[list[str] | None]
    rewards: Any
    """float32, all 0: a torch tensor if torch is installed, else a numpy array."""
    terminateds: Any
    """bool, likewise."""
    answers: list[str | None] | None


class CodeSample(NamedTuple):
    """One row of a batch during a step."""

    metadata: SampleMetadata
    message: CodeBlocks
    request: CodeRequest | None = None
    outcomes: tuple[CodeOutcome, ...] = ()
    turns: int | None = None

    @property
    def status(self) -> str:
        """The outcome in one word."""
        return (
            next((outcome.status for outcome in self.outcomes if outcome.problem), "ok") if self.outcomes else NO_CODE
        )

    @property
    def value(self) -> str | None:
        """The value of its last expression, if everything succeeded."""
        return self.outcomes[-1].value if self.status == "ok" else None


class CodeActor:
    """The environment itself; an instance runs in this process or in a Ray actor."""

    def __init__(self, cfg: Mapping[str, object] | None = None) -> None:
        self._config: CodeConfig = read_config(cfg)
        self._counter = EventCounter()
        self._workers = start_workers(self._config)

    def step(
        self,
        message_log_batch: Sequence[Sequence[LogMessage]],
        metadata: Sequence[SampleMetadata],
        return_extracted_answer: bool = False,
    ) -> StepReturn:
        """Run the code in the last message of every log, each in the session of its sample."""
        if len(message_log_batch) != len(metadata):
            raise UsageError(f"step: {len(message_log_batch)} message logs, but {len(metadata)} metadata")
        samples = self._read_samples(message_log_batch, metadata)
        requests = [(place, sample.request) for place, sample in enumerate(samples) if sample.request]
        answers = self._workers.turns([request for _, request in requests])
        for (place, _), answer in zip(requests, answers, strict=True):
            samples[place] = samples[place]._replace(outcomes=answer.outcomes, turns=answer.turns)
        return self._make_return(samples, return_extracted_answer)

    def _read_samples(
        self, logs: Sequence[Sequence[LogMessage]], metadata: Sequence[SampleMetadata]
    ) -> list[CodeSample]:
        samples = [self._read_sample(log, values) for log, values in zip(logs, metadata, strict=True)]
        uses = Counter(sample.request.session_id for sample in samples if sample.request)
        return [self._refuse_shared_session(sample, uses) for sample in samples]

    def _read_sample(self, log: Sequence[LogMessage], given: SampleMetadata) -> CodeSample:
        try:
            message = read_last_message(log)
            if not message.blocks:
                self._counter.add(NO_CODE)
            return CodeSample(
                given, message, read_code_request(message.blocks, given, self._config) if message.blocks else None
            )
        except SampleRefused as error:
            return self._refuse(CodeSample(given, CodeBlocks((), "")), str(error))

    def _refuse_shared_session(self, sample: CodeSample, uses: Counter[str]) -> CodeSample:
        """Refuse two samples of one batch in one session: they would see each other's variables."""
        if sample.request is None or uses[sample.request.session_id] == 1:
            return sample
        name = sample.request.session_id
        return self._refuse(sample, f"metadata session_id={name}: {uses[name]} samples of this batch have it")

    def _refuse(self, sample: CodeSample, why: str) -> CodeSample:
        self._counter.add("refused")
        return sample._replace(request=None, outcomes=(make_problem_outcome("refused", why),))

    def _make_return(self, samples: list[CodeSample], with_answers: bool) -> StepReturn:
        return StepReturn(
            observations=[{"role": ROLE, "content": self._make_observation(sample)} for sample in samples],
            metadata=[make_metadata(sample) for sample in samples],
            next_stop_strings=[[CLOSE_TAG] for _ in samples],
            rewards=make_array([0.0] * len(samples), "float32"),
            terminateds=make_array([self._is_over(sample) for sample in samples], "bool"),
            answers=[sample.value for sample in samples] if with_answers else None,
        )

    def _make_observation(self, sample: CodeSample) -> str:
        if not sample.outcomes:
            return ""
        max_chars, like_nemo_rl = self._config.max_output_chars, self._config.like_nemo_rl
        return make_observation(sample.outcomes, sample.message.blocks, sample.message.after, max_chars, like_nemo_rl)

    def _is_over(self, sample: CodeSample) -> bool:
        if sample.status == NO_CODE:
            return self._config.terminate_without_code and not self._config.like_nemo_rl
        return self._config.terminate_on_evaluation and sample.value is not None

    def global_post_process_and_metrics(self, batch: object) -> tuple[object, dict[str, float]]:
        """Return the batch unchanged, and the counts since the last call under `code/`."""
        counts = sum_counts([self._counter.take(), self._workers.counts()])
        return batch, {f"code/{name}": value for name, value in counts.items()}

    def shutdown(self) -> None:
        """End every session and every worker."""
        self._workers.close()


class RayRemoteClass(Protocol):
    """A class wrapped by Ray, which starts actors."""

    def remote(self, cfg: Mapping[str, object] | None = None) -> Any:
        """Start a new actor and return its handle."""


class CodeEnvironment(CodeActor):
    """Multi-turn code for RL. `CodeEnvironment(cfg)` runs in this process; `.remote(cfg)` is a Ray actor."""

    @classmethod
    def options(cls, **options: object) -> RayRemoteClass:
        """Ray's own options: where and how the actor runs."""
        if find_spec("ray") is None:
            raise UsageError("CodeEnvironment.remote: Ray is not installed; CodeEnvironment(cfg) works in this process")
        import ray

        remote_class: RayRemoteClass = ray.remote(**{**ACTOR_OPTIONS, **options})(CodeActor)
        return remote_class

    @classmethod
    def remote(cls, cfg: Mapping[str, object] | None = None) -> Any:
        """Start a new actor."""
        return cls.options().remote(cfg)


def make_metadata(sample: CodeSample) -> SampleMetadata:
    """Return the metadata for the next turn: the sample's own, its session, and the status of this turn."""
    if sample.metadata is not None and not isinstance(sample.metadata, Mapping):
        return sample.metadata
    metadata: dict[str, object] = {**(sample.metadata or {}), "last_status": sample.status}
    if sample.request and sample.turns is not None:
        metadata |= {"session_id": sample.request.session_id, "session_turn": sample.turns}
    return metadata


ENVIRONMENT_PATH = "rollbook.trainers.nemo_rl.CodeEnvironment"


def register(env_name: str = "rollbook_code") -> str:
    """Let NeMo RL's `create_env` find `CodeEnvironment` under this name, and start it with its own Python.

    Calling it again changes nothing; a name that NeMo RL has registered for another environment is refused.
    """
    if find_spec("nemo_rl") is None:
        raise UsageError("register: NeMo RL is not installed here; CodeEnvironment works without it")
    from nemo_rl.distributed.ray_actor_environment_registry import ACTOR_ENVIRONMENT_REGISTRY
    from nemo_rl.distributed.virtual_cluster import PY_EXECUTABLES
    from nemo_rl.environments.utils import ENV_REGISTRY, register_env

    known = ENV_REGISTRY.get(env_name, {}).get("actor_class_fqn")
    if known not in (None, ENVIRONMENT_PATH):
        raise UsageError(f"register: NeMo RL has {env_name} registered as {known}; choose another name")
    ACTOR_ENVIRONMENT_REGISTRY[ENVIRONMENT_PATH] = PY_EXECUTABLES.SYSTEM
    if known is None:
        register_env(env_name, ENVIRONMENT_PATH)
    return env_name
