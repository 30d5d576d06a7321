"""The embedded model: SmolLM2-135M-Instruct in a llama.cpp server that is a child of this process.

Every turn carries exact tokens. The prompt is rendered and tokenised by the server itself, as its own chat endpoint
does, and then *sent as ids*; the sampled ids come back one by one, the end-of-sequence token included when the model
ended its answer. The logprobs are the model's own, before temperature, top_p and top_k: at temperature 1 and top_p 1
they are also those of the distribution that was sampled from. The same seed gives the same answer only while the
server computes in the same batches; under load the last bits differ, and sometimes the answer.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import TypeVar, Unpack

import aiohttp
import msgspec
from yarl import URL

from rollbook.core import JSON, JSON_ERRORS, Message, ModelSpec, Sampling, Settings, Turn, decode, encode
from rollbook.errors import ChildFailed, EndpointDown, RolloutFailed, UsageError
from rollbook.models.chat_protocol import check_extra, without_reasoning
from rollbook.models.model import EMBEDDED_SLOTS as SLOTS
from rollbook.models.model import Completion, Model, ModelCall
from rollbook.models.router import Replica, open_http_session
from rollbook.models.server_errors import WHERE, check_logprobs, make_bad_completion
from rollbook.models.weights import ensure_weights
from rollbook.processes import Child, module_argv, start_ready

Key = TypeVar("Key")

MESSAGE_END = "<|im_end|>"
"""The end of a message in the embedded model's template."""
MAX_CACHED_PROMPTS = 256
MAX_MISSING_LOGPROBS = 64
_TOP_LOGPROBS = (1_000, 1_000_000)
_FORCING_BIAS = 1_000.0


class TokenLogprob(msgspec.Struct):
    """A candidate token."""

    id: int
    logprob: float | None = None


class SampledToken(TokenLogprob):
    """A sampled token."""

    top_logprobs: list[TokenLogprob] = []


class LlamaAnswer(msgspec.Struct):
    """The reply of /completion."""

    content: str
    tokens: list[int]
    stop_type: str
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[SampledToken] = []


_llama_decoder = msgspec.json.Decoder(LlamaAnswer)


class LlamaPrompt(msgspec.Struct, frozen=True):
    """A conversation as the model sees it."""

    text: str
    ids: list[int]


class LlamaServer:
    """One llama.cpp server."""

    def __init__(self, url: str, session: aiohttp.ClientSession, call_s: float) -> None:
        self.url = url
        self._replica = Replica(url, session, call_s, scrub=str)
        self._completion = URL(f"{url}/completion")
        self._prompts: OrderedDict[bytes, LlamaPrompt] = OrderedDict()
        self._conversations: OrderedDict[str, LlamaPrompt] = OrderedDict()
        self._plain_token: int | None = None

    async def make_prompt(self, messages: Sequence[Message], rollout: str = "") -> LlamaPrompt:
        """Return a conversation as the server's own chat endpoint would render it.

        A continued conversation keeps the ids that were sampled: the same text could be split into other tokens.
        """
        if so_far := self._conversations.get(rollout):
            text = await self._render(messages)
            if text.startswith(so_far.text):
                rest = await self._tokenize(text[len(so_far.text) :], special=False)
                return LlamaPrompt(text, [*so_far.ids, *rest])
        key = encode(messages)
        prompt = self._prompts.get(key)
        if prompt is None:
            text = await self._render(messages)
            prompt = self._prompts[key] = LlamaPrompt(text, await self._tokenize(text))
        mark_recently_used(self._prompts, key)
        return prompt

    def remember(self, rollout: str, prompt: LlamaPrompt, answer: LlamaAnswer) -> None:
        """Remember a rollout's conversation up to this answer, for the prompt that continues it."""
        ended = answer.stop_type == "eos" and bool(answer.tokens)
        ids = answer.tokens[:-1] if ended else answer.tokens
        self._conversations[rollout] = LlamaPrompt(prompt.text + answer.content, [*prompt.ids, *ids])
        mark_recently_used(self._conversations, rollout)

    async def _render(self, messages: Sequence[Message]) -> str:
        text = (await self._post("apply-template", {"messages": messages})).get("prompt")
        if not isinstance(text, str):
            raise make_bad_completion("the server did not render the conversation")
        return text

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> LlamaAnswer:
        """Continue the ids. The server's defaults for top_k and min_p are switched off; `extra` overrides all."""
        body = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "n_predict": sampling.max_tokens,
            "seed": seed,
            **_extra_fields(sampling),
            "prompt": prompt_ids,
            "n_probs": 1,
            "return_tokens": True,
            "post_sampling_probs": False,
            "stream": False,
        }
        return await self._complete(body)

    async def find_logprobs(self, prompt_ids: Sequence[int], answer: LlamaAnswer) -> list[float | None]:
        """Return one logprob for each sampled id.

        The server leaves out tokens that end in the middle of a character, and one that completes a stop word. Those
        few are requested again: the same ids up to that token, and the model's logprob of it as the next one.
        """
        entries = align_logprobs(answer.tokens, answer.completion_probabilities)
        if sum(p is None for p in entries) > MAX_MISSING_LOGPROBS:
            raise RolloutFailed(
                "token_mismatch", WHERE, f"more than {MAX_MISSING_LOGPROBS} tokens came without a logprob"
            )
        return [
            await self._find_logprob([*prompt_ids, *answer.tokens[:at]], answer.tokens[at]) if p is None else p.logprob
            for at, p in enumerate(entries)
        ]

    async def _find_logprob(self, before: list[int], token: int) -> float | None:
        if self._plain_token is None:
            self._plain_token = (await self._tokenize("a"))[-1]
        # Some whole token is forced to come, so that the list of all candidates is reported with it.
        body: dict[str, JSON] = {"prompt": before, "n_predict": 1, "temperature": 0.0, "return_tokens": True}
        body["logit_bias"] = [[self._plain_token, _FORCING_BIAS]]
        for width in _TOP_LOGPROBS:
            sampled = (await self._complete({**body, "n_probs": width})).completion_probabilities
            for likely in sampled[0].top_logprobs if sampled else ():
                if likely.id == token:
                    return likely.logprob
        raise RolloutFailed("token_mismatch", WHERE, f"the server does not report the logprob of token {token}")

    async def _tokenize(self, text: str, special: bool = True) -> list[int]:
        reply = await self._post("tokenize", {"content": text, "add_special": special, "parse_special": True})
        ids = reply.get("tokens")
        if not isinstance(ids, list):
            raise make_bad_completion("the server did not tokenise the conversation")
        return ids

    async def _post(self, path: str, body: JSON) -> dict[str, JSON]:
        raw = await self._replica.post(URL(f"{self.url}/{path}"), encode(body))
        try:
            reply = decode(raw)
        except JSON_ERRORS as error:
            raise make_bad_completion(f"/{path}: {error}") from None
        return reply if isinstance(reply, dict) else {}

    async def _complete(self, body: dict[str, JSON]) -> LlamaAnswer:
        raw = await self._replica.post(self._completion, encode(body))
        try:
            return _llama_decoder.decode(raw)
        except JSON_ERRORS as error:
            raise make_bad_completion(f"/completion: {error}") from None


def mark_recently_used(cache: OrderedDict[Key, LlamaPrompt], key: Key) -> None:
    """Mark an entry as used now, and drop the one that was not used for longest."""
    cache.move_to_end(key)
    if len(cache) > MAX_CACHED_PROMPTS:
        cache.popitem(last=False)


def _extra_fields(sampling: Sampling) -> dict[str, JSON]:
    """Return further sampling, with the chat protocol's response_format as the grammar that /completion takes.

    With its field json_schema an answer would end in <|endoftext|>, and no next prompt would continue it.
    """
    extra = dict(sampling.extra)
    form = extra.pop("response_format", None)
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        schema = encode(form["json_schema"].get("schema")).decode()
        extra["grammar"] = f"%llguidance {{}}\nstart: answer {MESSAGE_END}\nanswer: %json {schema}"
    return extra


def align_logprobs(tokens: Sequence[int], sampled: Sequence[SampledToken]) -> list[SampledToken | None]:
    """Assign each entry to its token where only one assignment is possible; `sampled` may leave some tokens out.

    Matched once from the left and once from the right: an entry that gets the same token both
    times can belong to no other.
    """
    left = _match_from_left(tokens, [s.id for s in sampled])
    right = [len(tokens) - 1 - at for at in reversed(_match_from_left(tokens[::-1], [s.id for s in reversed(sampled)]))]
    aligned: list[SampledToken | None] = [None] * len(tokens)
    if len(left) == len(sampled):
        for entry, a, b in zip(sampled, left, right, strict=True):
            if a == b:
                aligned[a] = entry
    return aligned


def _match_from_left(tokens: Sequence[int], ids: Sequence[int]) -> list[int]:
    positions: list[int] = []
    remaining = iter(range(len(tokens)))
    for token in ids:
        position = next((i for i in remaining if tokens[i] == token), None)
        if position is None:
            break
        positions.append(position)
    return positions


CONTEXT_TOKENS = 2048
START_TIMEOUT_S = 120.0
MAX_RESTARTS = 3
_FINISH_REASONS = {"limit": "length", "eos": "stop", "word": "stop"}


class EmbeddedModel(Model):
    """Starts the server on `open` and ends it on `close`; restarts one that crashes, three times at most.

    With `Settings.urls` it joins a server that another process of ours has started (its `url`) and starts none. `log`
    is the file of the server's log. It takes text only, and tools only as text: its template has no place for them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        *,
        say: Callable[[str], None] | None = None,
        log: Path | None = None,
        threads: int = 0,
    ) -> None:
        self.spec = spec
        self.version: str | None = None
        self._settings = settings
        self._say = say or _print_to_stderr
        self._log = log
        self._threads = threads
        self._child: Child | None = None
        self._llama: LlamaServer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._starting = asyncio.Lock()
        self._starts = 0
        self._slots = asyncio.Semaphore(SLOTS)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._server.url

    async def open(self) -> None:
        """Fetch the weights if needed, start the server and wait until it is ready."""
        self._session = open_http_session(self._settings.connect_s, connections=SLOTS)
        try:
            if self._settings.urls:
                self._llama = LlamaServer(self._settings.urls[0], self._session, self._settings.call_s)
            else:
                await self._start(self._session)
        except ChildFailed as error:
            await self.close()
            raise UsageError(f"the embedded model did not start ({error}); give -m URL to use another") from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the server and close every connection to it."""
        if self._session:
            await self._session.close()
        if self._child:
            await self._child.kill_tree()
        self._session = self._child = self._llama = None

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Answer once."""
        rollout = call["rollout"]
        _check_supported(messages, call.get("tools", ()))
        check_extra(sampling)
        async with self._slots:
            llama = await self._running_server()
            started, version = perf_counter(), self.version
            prompt = await llama.make_prompt(without_reasoning(messages), rollout)
            prompt_ids = prompt.ids
            answer = await llama.sample(prompt_ids, sampling, call["seed"])
            llama.remember(rollout, prompt, answer)
            logprobs = check_logprobs(
                prompt_ids,
                answer.tokens,
                await llama.find_logprobs(prompt_ids, answer),
                prompt_tokens=answer.tokens_evaluated,
                completion_tokens=answer.tokens_predicted,
            )
        if answer.stop_type not in _FINISH_REASONS:
            raise make_bad_completion(f"the answer was not finished: stop_type is {answer.stop_type!r}")
        counts, finish = (len(prompt_ids), len(logprobs)), _FINISH_REASONS[answer.stop_type]
        turn = Turn(prompt_ids, answer.tokens, logprobs, *counts, finish, perf_counter() - started, version)
        return Completion(Message("assistant", answer.content), turn)

    @property
    def _server(self) -> LlamaServer:
        if self._llama is None:
            raise RuntimeError("the model is not open")
        return self._llama

    async def _running_server(self) -> LlamaServer:
        """Return the server, restarted if it has crashed."""
        llama, child = self._server, self._child
        if child is None or child.returncode is None:
            return llama
        async with self._starting:
            if self._child is child and self._session:
                if self._starts > MAX_RESTARTS:
                    raise EndpointDown(f"the embedded model crashed {self._starts} times: {child.last_log_line()}")
                try:
                    await self._start(self._session)
                except ChildFailed as error:
                    raise RolloutFailed("model_unavailable", WHERE, str(error)) from error
        return self._server

    async def _start(self, session: aiohttp.ClientSession) -> None:
        self._starts += 1
        if importlib.util.find_spec("xllamacpp") is None:
            raise UsageError("the embedded model needs xllamacpp: `pip install 'rollbook[local]'`, or give -m URL")
        weights = await asyncio.to_thread(ensure_weights, self._settings.offline, self._say)
        argv = module_argv(
            "rollbook.models.embedded_server", "--weights", str(weights), "--threads", str(self._threads)
        )
        argv += ["--slots", str(SLOTS), "--context", str(CONTEXT_TOKENS)]
        self._child, info = await start_ready(
            argv, timeout_s=START_TIMEOUT_S, name="the embedded model's server", log=self._log
        )
        self._llama = LlamaServer(info["url"], session, self._settings.call_s)


def _check_supported(messages: Sequence[Message], tools: Sequence[JSON]) -> None:
    if tools:
        raise RolloutFailed(
            "model_rejected", WHERE, "the embedded model parses no tool calls; use --tool-format schema"
        )
    for message in messages:
        if isinstance(message.content, list) and any(part.get("type") != "text" for part in message.content):
            raise RolloutFailed("model_rejected", WHERE, "the embedded model reads text only; give -m URL")


def _print_to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
