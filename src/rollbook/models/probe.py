"""One real completion before a run starts: a wrong URL, key, path or model name is found before anything is written.

It goes through `ChatModel`, so that it sends the parameters of the real calls and waits as a run waits, but it is no
part of any run: nothing of it is recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from rollbook.core import Message, ModelSpec, Sampling, Settings
from rollbook.errors import ContextFull, EndpointDown, EndpointRefused, RolloutFailed, UsageError
from rollbook.models.chat import ChatModel, ModelsNotListed
from rollbook.models.model import open_model
from rollbook.models.server_errors import REDIRECTS

PROBE_TOKENS = 16
"""The smallest number that all providers take."""
PROBE_MESSAGES = [Message("user", "Hello")]
GRACE_S = 1.0
"""How long one that fails is asked again without --wait: a single lost connection or 500 must not end a run."""
TRIES = 3
RETRY_S = 0.5
SLOW_ANSWER_S = 5.0
OUT_OF_TOKENS = "output limit was reached"
"""A reasoning model whose thoughts are longer than PROBE_TOKENS answers with an error that says this: it works."""
EXAMPLE_WAIT = "--wait 300"


class ProbedModel(NamedTuple):
    """What a probe has found out: the spec with the served name, and names of parameters that it takes instead."""

    spec: ModelSpec
    wire_names: dict[str, str]


async def probe_endpoint(
    spec: ModelSpec, settings: Settings, sampling: Sampling, *, wait_s: float, say: Callable[[str], None]
) -> ProbedModel:
    """Ask one completion, waiting up to `wait_s` for a server that is starting.

    A UsageError names the cause and what to do. Of several replicas one has to answer; the others are reported.
    """
    patient = msgspec.structs.replace(settings, outage_s=max(wait_s, GRACE_S))
    deadline = asyncio.get_running_loop().time() + wait_s
    model = open_model(spec, patient, say=say)
    assert isinstance(model, ChatModel)
    try:
        await _open(model, deadline)
        async with _report_slow_answer(settings.urls, say):
            await _ask(model, _limit_tokens(sampling), deadline)
        for reason in model.list_failing_replicas():
            say(f"{reason}; the other replicas answer")
        return ProbedModel(model.spec, dict(model.wire_names))
    except EndpointRefused as error:
        raise UsageError(error.reasons) from None
    except EndpointDown as error:
        raise UsageError(f"{error.reasons}{_advise_on_outage(error.reasons, wait_s)}") from None
    except RolloutFailed as error:
        raise UsageError(f"{_name_endpoint(settings.urls, error.message)}{_advise_on_failure(error)}") from None
    finally:
        await model.close()


def _name_endpoint(urls: list[str], message: str) -> str:
    """Return the message of a failure with the endpoint in front, unless it names it."""
    return message if message.startswith(tuple(urls)) else f"{', '.join(urls)}: {message}"


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
    busy = error.status == 429 and "quota" not in error.message
    return busy or (error.status == 400 and OUT_OF_TOKENS in error.message)


def _is_worth_another_try(error: RolloutFailed, tries: int) -> bool:
    """Return whether to ask again; the router ends the tries of a server that does not answer."""
    if error.kind == "bad_completion":
        return tries < TRIES
    return error.kind == "model_unavailable" and error.status not in (*REDIRECTS, 429)


def _advise_on_outage(reasons: str, wait_s: float) -> str:
    if "check the host" in reasons or "TLS: " in reasons:
        return ""
    if wait_s:
        return f"; waited {wait_s:g} s for it"
    return f"; start the server first, or wait for one that is starting: {EXAMPLE_WAIT}"


def _advise_on_failure(error: RolloutFailed) -> str:
    if error.kind == "model_timeout":
        return "; raise --call-timeout, or start without this check: --no-probe"
    return ""  # the message of any other names its way out, or is the server's own


@asynccontextmanager
async def _report_slow_answer(urls: list[str], say: Callable[[str], None]) -> AsyncIterator[None]:
    """Report that the first answer takes long: a server may load its weights only now."""
    handle = asyncio.get_running_loop().call_later(
        SLOW_ANSWER_S, say, f"waiting for a first answer of {', '.join(urls)}"
    )
    try:
        yield
    finally:
        handle.cancel()
