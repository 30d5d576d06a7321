"""The chat model: any OpenAI-compatible endpoint, on one replica or many; with vLLM, exact tokens too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from time import perf_counter

import aiohttp
import msgspec

from rollbook.core.json import JSON
from rollbook.core.manifest import ModelSpec, Sampling, Settings
from rollbook.core.message import Message
from rollbook.core.turn import Turn
from rollbook.errors import ContextFull, EndpointDown, RolloutFailed, UsageError
from rollbook.models.address import base_url
from rollbook.models.continuing import Continuer, Held
from rollbook.models.exact import exact_logprobs
from rollbook.models.model import Completion
from rollbook.models.protocol import (
    ChatAnswer,
    Choice,
    chat_body,
    check_extra,
    message_of,
    read_answer,
    sendable,
    text_body,
    without_reasoning,
)
from rollbook.models.refusal import WHERE, bad_completion, context_limit, is_context_error, server_words
from rollbook.models.replica import Replica, open_session
from rollbook.models.router import FIRST_PROBE_S, SLOWEST_PROBE_S, Router, outage
from rollbook.models.served import Served, ask_served, check_name, settle_name
from rollbook.models.shaping import RAW, LogprobsMode, logprobs_mode, shaped

PROBE_S = 5.0


class ChatModel:
    """Speaks chat completions to every URL of the settings.

    `tokens` asks for exact ids and logprobs: by default wherever all replicas are vLLM. True insists: an answer
    without them is a `token_mismatch`. The logprobs are those of the server's --logprobs-mode; vLLM's default is
    before temperature and top_p. `version` is stamped on each turn as it starts. What a model thought is not sent
    back to it in later turns unless `send_reasoning` is set: the protocol has no field for it.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        *,
        tokens: bool | None = None,
        send_reasoning: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if not settings.urls:
            raise UsageError("no endpoint: give its URL with -m")
        self.spec = spec
        self.version: str | None = None
        self.tokens = bool(tokens)
        self.send_reasoning = send_reasoning
        self._forced = tokens
        self._settings = settings
        self._bases = [base_url(url) for url in settings.urls]
        self._key = os.environ.get(settings.api_key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise UsageError(f"{settings.api_key_env} holds what cannot be a key: only printable ASCII can be sent")
        self._session: aiohttp.ClientSession | None = None
        self._router: Router | None = None
        self._checked: Sampling | None = None
        self._shape_known = False
        self._say = say or (lambda _: None)
        self._continuer = Continuer(self._say)

    def __repr__(self) -> str:
        return f"ChatModel({self.spec.name!r}, {self._bases})"

    async def open(self) -> None:
        """Find out what is served; wait for a server that is not up yet, as long as an outage may last."""
        self._session = open_session(self._settings, self._key)
        try:
            replicas = [Replica(base, self._session, self._settings.call_s, self._scrub) for base in self._bases]
            met = await self._meet(replicas)
            served = [s for s in met if isinstance(s, Served)]
            self.spec = msgspec.structs.replace(self.spec, name=settle_name(self.spec.name, served))
            if self._forced is None:
                self.tokens = all(self.spec.name in s.vllm for s in served)
            self._router = Router(replicas, self._probe, self._settings.outage_s)
            for replica, result in zip(replicas, met, strict=True):
                if isinstance(result, RolloutFailed):
                    self._router.take_out(replica, result.message)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of every connection and probe."""
        if self._router:
            await self._router.close()
        if self._session:
            await self._session.close()
        self._router = self._session = None

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Answer once."""
        return await self._complete(messages, sampling, seed, rollout, tools, None)

    async def go_on(
        self,
        held: Held,
        messages: Sequence[Message],
        sampling: Sampling,
        *,
        seed: int,
        rollout: str,
        tools: Sequence[JSON] = (),
    ) -> Completion:
        """Answer once, the prompt being the ids of an earlier call and of its answer, and what the new messages add.

        Where that cannot be proven, or the server takes no ids, it is asked as ever. The turn records what the
        server says it was shown, whatever that is.
        """
        return await self._complete(messages, sampling, seed, rollout, tools, held if self.tokens else None)

    async def _complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seed: int,
        rollout: str,
        tools: Sequence[JSON],
        held: Held | None,
    ) -> Completion:
        if self._router is None:
            raise RuntimeError("the model is not open")
        if self._checked is not sampling:
            check_extra(sampling)
            self._checked = sampling
            await self._check_shape(sampling)
        if not self.send_reasoning:
            messages = without_reasoning(messages)
        told = sendable(messages)
        plain = chat_body(self.spec.name, told, sampling, seed, tools, self.tokens)
        version = self.version

        async def call(replica: Replica) -> Completion:
            name, url, body, ids = self.spec.name, replica.chat, plain, None
            if held and (ids := await self._continuer.prompt(replica, name, held, messages, sampling, tools)):
                if await self._continuer.by_text(replica):
                    url, body = replica.text, text_body(name, ids, sampling, seed)
                else:
                    body = chat_body(name, told, sampling, seed, tools, True, ids)
            started = perf_counter()
            raw = await replica.post(url, body)
            completion = self._read(raw, perf_counter() - started, version, url is replica.text)
            if ids is not None and completion.turn.prompt_ids != ids:
                self._continuer.ignored(replica)
            return completion

        try:
            return await self._router.send(rollout, call)
        except ContextFull as full:
            raise _asked_too_much(str(full), sampling) or full from None
        except RolloutFailed as error:
            raise _advised(error, bool(tools), "response_format" in sampling.extra) from None

    async def _check_shape(self, sampling: Sampling) -> None:
        """Say it, once, if the logprobs are not those of what is sampled from."""
        if self._shape_known or not self.tokens or not shaped(sampling):
            return
        self._shape_known = True
        try:
            if await self.logprobs_mode() == "raw":
                self._say(f"warning: the logprobs are {RAW}")
        except (RolloutFailed, ContextFull):
            self._shape_known = False  # nothing is learned of a server that does not answer now

    async def logprobs_mode(self) -> LogprobsMode | None:
        """Whose logprobs the server reports, found out by asking it for one token."""
        assert self._router is not None
        return await self._router.send("", lambda replica: logprobs_mode(replica, self.spec.name))

    def _read(self, raw: bytes, seconds: float, version: str | None, text: bool) -> Completion:
        try:
            answer, choice, reason = read_answer(raw, text)
        except RolloutFailed as error:
            raise self._second_look(raw, error) from None
        assert choice.message is not None
        usage = answer.usage
        counts = ((usage.prompt_tokens or 0) if usage else 0, (usage.completion_tokens or 0) if usage else 0)
        ids: tuple[list[int] | None, list[int] | None, list[float] | None] = (None, None, None)
        if self.tokens and (found := self._ids(answer, choice)):
            ids, counts = found, (len(found[0]), len(found[1]))
        return Completion(message_of(choice.message), Turn(*ids, *counts, reason, seconds, version))

    def _ids(self, answer: ChatAnswer, choice: Choice) -> tuple[list[int], list[int], list[float]] | None:
        """What the server reports, if it adds up; None from a vLLM too old to report it, unless tokens are a must."""
        if answer.prompt_token_ids is None and choice.token_ids is None and not self._forced:
            return None
        logprobs = choice.logprobs.content if choice.logprobs else None
        if answer.prompt_token_ids is None or choice.token_ids is None or logprobs is None:
            raise RolloutFailed("token_mismatch", WHERE, "the server did not return token ids with their logprobs")
        numbers = exact_logprobs(
            answer.prompt_token_ids,
            choice.token_ids,
            [p.logprob for p in logprobs],
            prompt_tokens=answer.usage.prompt_tokens if answer.usage else None,
            completion_tokens=answer.usage.completion_tokens if answer.usage else None,
        )
        return answer.prompt_token_ids, choice.token_ids, numbers

    def _second_look(self, raw: bytes, error: RolloutFailed) -> Exception:
        """A 200 that holds an error: in the server's words, and by what it says."""
        if error.kind == "bad_completion" and b'"error"' in raw[:4096]:
            words = self._scrub(server_words(raw))
            return ContextFull(words) if is_context_error(raw) else bad_completion(f"HTTP 200 with an error: {words}")
        return RolloutFailed(error.kind, error.where, self._scrub(error.message))

    async def _meet(self, replicas: Sequence[Replica]) -> list[Served | RolloutFailed]:
        """What each replica serves, as soon as one of them answers."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + self._settings.outage_s, FIRST_PROBE_S
        while True:
            met = await asyncio.gather(*(self._ask(replica) for replica in replicas))
            away = [result.message for result in met if isinstance(result, RolloutFailed)]
            if len(away) < len(met):
                return met
            if loop.time() + delay > deadline:
                raise EndpointDown(outage("; ".join(away), self._settings.outage_s, "try again"))
            if delay == FIRST_PROBE_S:
                self._say(f"waiting for the model, {self._settings.outage_s:g} s at most: {'; '.join(away)}")
            await asyncio.sleep(delay)
            delay = min(delay * 2, SLOWEST_PROBE_S)

    async def _ask(self, replica: Replica) -> Served | RolloutFailed:
        try:
            return await ask_served(
                replica, min(self._settings.connect_s, PROBE_S), self._settings.api_key_env, bool(self._key)
            )
        except RolloutFailed as error:
            return error

    async def _probe(self, replica: Replica) -> str | None:
        try:
            served = await self._ask(replica)
            if isinstance(served, RolloutFailed):
                return served.message
            check_name(self.spec.name, served)
        except UsageError as error:
            return str(error)
        return None

    def _scrub(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _advised(error: RolloutFailed, tools: bool, schema: bool) -> RolloutFailed:
    """A server that takes no tools, or no schema, says so for every prompt: name the way out."""
    words = error.message.lower()
    if error.kind != "model_rejected" or not ((tools and "tool" in words) or (schema and "schema" in words)):
        return error
    way = "--tool-format schema" if tools else "--tool-format text"
    return RolloutFailed(error.kind, error.where, f"{error.message}; for a server that cannot do this: {way}")


def _asked_too_much(words: str, sampling: Sampling) -> RolloutFailed | None:
    """The prompt is not to blame when max_tokens alone fills the context: a mistake in the settings is not a score."""
    limit = context_limit(words)
    if limit is None or sampling.max_tokens < limit:
        return None
    advice = f"--max-tokens {sampling.max_tokens} leaves no room for a prompt: lower it"
    return RolloutFailed("model_rejected", WHERE, f"{words}; {advice}")
