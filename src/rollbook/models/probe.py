"""One real completion of each replica before a run starts: a wrong URL, key, path or name is found before any write.

It goes through `ChatModel`, so that it sends the parameters of the real calls and waits as a run waits, but it is not
part of any run: nothing of it is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import ContextFull, EndpointDown, EndpointRefused, RolloutFailed, UsageError
from rollbook.models.chat import ChatModel, ModelsNotListed
from rollbook.models.model import open_model
from rollbook.models.server_errors import BILLING, REDIRECTS

PROBE_TOKENS = 16
"""The smallest number that all providers take."""
PROBE_ANSWER_S = 60.0
"""How long an endpoint that has taken the request may be silent: --call-timeout is for answers of any length."""
PROBE_MESSAGES = [Message("user", "Hello")]
GRACE_S = 1.0
"""How long one that fails is asked again without --wait: a single lost connection or 500 must not end a run."""
TRIES = 3
RETRY_S = 0.5
SLOW_ANSWER_S = 5.0
OUT_OF_TOKENS = "output limit was reached"
"""A reasoning model whose thoughts are longer than PROBE_TOKENS answers with an error that says this: it works."""
EXAMPLE_WAIT = "--wait 300"
LONG_WAIT_S = 600.0


class ProbedModel(NamedTuple):
    """What a probe has found out: the spec with the served name, and names of parameters that it takes instead."""

    spec: ModelSpec
    wire_names: dict[str, str]


class ReplicaFault(NamedTuple):
    """Why a replica did not answer.

    One that is `passing` may come back, so that the run does without it for now; any other is a mistake in the
    settings. `advice` goes with it where no other replica answers.
    """

    cause: str
    advice: str = ""
    passing: bool = False


async def probe_endpoint(
    spec: ModelSpec, settings: Settings, sampling: Sampling, *, wait_s: float, say: Callable[[str], None]
) -> ProbedModel:
    """Ask every replica one completion, waiting up to `wait_s` for a server that is starting.

    A UsageError names the cause and what to do. Of several replicas one has to answer; of the others those that may
    come back are reported, and one that is wrong is a UsageError.
    """
    limit_s = max(min(PROBE_ANSWER_S, settings.call_s), wait_s)
    patient = msgspec.structs.replace(settings, outage_s=max(wait_s, GRACE_S), call_s=limit_s)
    models = [_make_model(spec, patient, url, say) for url in settings.urls]
    short = _limit_tokens(sampling)
    faults = await _probe_all([_Probe(model, short, wait_s, limit_s, say) for model in models])
    wrong = [fault for fault in faults if fault and not fault.passing]
    if wrong or None not in faults:
        raise UsageError(_describe_faults(wrong or [fault for fault in faults if fault]))
    for fault in filter(None, faults):
        say(f"{fault.cause}; the other replicas answer")
    answering = [model for model, fault in zip(models, faults, strict=True) if fault is None]
    return ProbedModel(_choose_spec(answering), _choose_wire_names(answering, settings))


def _make_model(spec: ModelSpec, settings: Settings, url: str, say: Callable[[str], None]) -> ChatModel:
    model = open_model(spec, msgspec.structs.replace(settings, urls=[url]), say=say)
    assert isinstance(model, ChatModel)
    model.warns_of_logprobs = False  # the run's own model does, once
    return model


def _describe_faults(faults: Sequence[ReplicaFault]) -> str:
    """Return all causes, each once, and then what to do."""
    causes = dict.fromkeys(fault.cause for fault in faults)
    return "; ".join([*causes, *dict.fromkeys(fault.advice for fault in faults if fault.advice)])


def _choose_spec(models: Sequence[ChatModel]) -> ModelSpec:
    first = models[0]
    other = next((model for model in models if model.spec != first.spec), None)
    if other is None:
        return first.spec
    served = f"{first.url} serves {first.spec.name}, {other.url} serves {other.spec.name}"
    raise UsageError(f"{served}; choose the model with --model-name")


def _choose_wire_names(models: Sequence[ChatModel], settings: Settings) -> dict[str, str]:
    """Return what the first replica that has learned a name has learned; others learn theirs again."""
    learned = (model.wire_names for model in models if model.wire_names != settings.wire_names)
    return dict(next(learned, settings.wire_names))


async def _probe_all(probes: Sequence[_Probe]) -> list[ReplicaFault | None]:
    """Return why each replica fails, None for one that answers.

    As soon as one answers, no other one that is down is waited for. As soon as one is wrong, the probe ends.
    """
    tasks = [asyncio.create_task(probe.find_fault()) for probe in probes]
    pending = set(tasks)
    try:
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            faults = [task.result() for task in done]
            if None in faults:
                for probe in probes:
                    probe.stop_waiting()
            if any(fault and not fault.passing for fault in faults):
                if pending:
                    await asyncio.wait(pending, timeout=GRACE_S)  # another one may be wrong too
                break
        unknown = ReplicaFault("", passing=True)
        return [task.result() if task.done() else unknown for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Probe:
    """The probe of one replica."""

    def __init__(
        self, model: ChatModel, sampling: Sampling, wait_s: float, limit_s: float, say: Callable[[str], None]
    ) -> None:
        self._model, self._sampling, self._say = model, sampling, say
        self._wait_s, self._limit_s = wait_s, limit_s

    def stop_waiting(self) -> None:
        """Do not wait any longer for a server that is down."""
        self._model.stop_waiting()

    async def find_fault(self) -> ReplicaFault | None:
        """Ask for one completion; return why there is none."""
        deadline = asyncio.get_running_loop().time() + self._wait_s
        try:
            await _open(self._model, deadline)
            async with _report_slow_answer(self._model.url, self._say):
                await _ask(self._model, self._sampling, deadline)
        except EndpointRefused as error:
            return ReplicaFault(error.reasons)
        except EndpointDown as error:
            return self._explain_outage(error.reasons)
        except RolloutFailed as error:
            return self._explain_failure(error)
        except UsageError as error:
            return ReplicaFault(str(error))
        finally:
            await self._model.close()
        return None

    def _explain_outage(self, reasons: str) -> ReplicaFault:
        if "check the host" in reasons or "TLS: " in reasons:
            return ReplicaFault(reasons)
        waited = f"waited {self._wait_s:g} s for it"
        start = f"start the server first, or wait for one that is starting: {EXAMPLE_WAIT}"
        return ReplicaFault(reasons, waited if self._wait_s else start, passing=True)

    def _explain_failure(self, error: RolloutFailed) -> ReplicaFault:
        """Return the fault; the message of any but a timeout names its way out, or is the server's own."""
        url = self._model.url
        if error.kind != "model_timeout":
            return ReplicaFault(error.message if error.message.startswith(url) else f"{url}: {error.message}")
        cause = f"{url}: no answer to a first short completion in {self._limit_s:g} s"
        longer = max(LONG_WAIT_S, 2 * self._limit_s) if self._wait_s else LONG_WAIT_S
        needs = f"a server that loads its weights at the first call needs --wait {longer:g}"
        return ReplicaFault(cause, f"{needs}; --no-probe skips this check", passing=True)


def _limit_tokens(sampling: Sampling) -> Sampling:
    return msgspec.structs.replace(sampling, max_tokens=min(sampling.max_tokens, PROBE_TOKENS))


async def _open(model: ChatModel, deadline: float) -> None:
    """Open the model; one that does not list its models may be a proxy whose server is still starting."""
    while True:
        try:
            await model.open()
            return
        except ModelsNotListed:
            if asyncio.get_running_loop().time() >= deadline:
                raise
        await asyncio.sleep(RETRY_S)


async def _ask(model: ChatModel, sampling: Sampling, deadline: float) -> None:
    """Ask until there is an answer, or a failure that another try would not change."""
    tries = 0
    while True:
        try:
            await model.complete(PROBE_MESSAGES, sampling, seed=0, rollout="probe")
            return
        except ContextFull:
            return
        except EndpointRefused as error:
            if asyncio.get_running_loop().time() >= deadline or set(error.statuses) != {404}:
                raise
            await asyncio.sleep(RETRY_S)
        except RolloutFailed as error:
            if _is_working(error):
                return
            tries += 1
            if not _is_worth_another_try(error, tries):
                raise


def _is_working(error: RolloutFailed) -> bool:
    """Return whether an endpoint that fails like this takes the calls of a run: it is busy, or has little room."""
    busy = error.status == 429 and "quota" not in error.message and BILLING not in error.message
    return busy or (error.status == 400 and OUT_OF_TOKENS in error.message)


def _is_worth_another_try(error: RolloutFailed, tries: int) -> bool:
    """Return whether to ask again; the router ends the tries of a server that does not answer."""
    if error.kind == "bad_completion":
        return tries < TRIES
    return error.kind == "model_unavailable" and error.status not in (*REDIRECTS, 429)


@asynccontextmanager
async def _report_slow_answer(url: str, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Report that the first answer takes long: a server may load its weights only now."""
    handle = asyncio.get_running_loop().call_later(SLOW_ANSWER_S, say, f"waiting for a first answer of {url}")
    try:
        yield
    finally:
        handle.cancel()
