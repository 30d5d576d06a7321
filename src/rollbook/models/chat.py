"""The chat model: any OpenAI-compatible endpoint, on one replica or many; with vLLM, exact tokens too.

Before first use it finds out which models an endpoint lists, whether it is a vLLM that can report exact tokens, and
whether its logprobs are those of the distribution that was sampled from, or of the model before temperature, top-p and
the like.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from time import perf_counter
from typing import Literal, TypeAlias, Unpack

import aiohttp
import msgspec
from yarl import URL

from rollbook.core import JSON, JSON_ERRORS, Message, ModelSpec, Sampling, Settings, Turn
from rollbook.errors import ContextFull, EndpointDown, RolloutFailed, UsageError
from rollbook.models.chat_protocol import (
    UNSHAPED_SAMPLING,
    AnswerChoice,
    ChatAnswer,
    chat_body,
    check_extra,
    list_sampling_fields,
    make_message,
    prepare_messages,
    read_answer,
    read_models,
    text_body,
    without_reasoning,
)
from rollbook.models.model import Completion, ModelCall, join_url, normalize_base_url
from rollbook.models.outage import describe_outage, describe_waiting
from rollbook.models.providers import advise_on_key, has_key_header, read_headers
from rollbook.models.router import FIRST_PROBE_S, SLOWEST_PROBE_S, Replica, Router, open_http_session
from rollbook.models.server_errors import (
    OTHER_NAMES,
    WHERE,
    check_logprobs,
    find_named_parameter,
    find_refused_parameter,
    is_context_error,
    make_bad_completion,
    read_context_limit,
    read_server_message,
    shorten_page,
)
from rollbook.models.token_continuation import AnsweredCall, PromptContinuer


class EndpointModels(msgspec.Struct, frozen=True):
    """The names that an endpoint serves, and which of them with vLLM; `names` is None if it lists none."""

    base: str
    names: list[str] | None
    vllm: frozenset[str] = frozenset()
    problem: str = ""
    """What it answered instead of a list."""


class ModelsNotListed(UsageError):
    """No model name was given, and the endpoint lists none."""


async def fetch_endpoint_models(replica: Replica, timeout_s: float, key_advice: str) -> EndpointModels:
    """Return what a replica serves; RolloutFailed("model_unavailable") if it is down, UsageError if it is wrong."""
    status, raw = await replica.get(replica.models, timeout_s)
    if status in (401, 403):
        raise UsageError(f"{replica.base}: HTTP {status}; {key_advice}")
    if status >= 500 or status in (408, 429):
        raise RolloutFailed("model_unavailable", WHERE, f"{replica.base}: HTTP {status}: {read_server_message(raw)}")
    if status in (301, 302, 307, 308):
        raise UsageError(f"{replica.base}: HTTP {status}, the endpoint is elsewhere; give its new URL with -m")
    if status != 200:
        await _suggest_v1(replica, timeout_s)
        return EndpointModels(replica.base, None, problem=f"HTTP {status}")
    try:
        rows = read_models(raw).data
    except JSON_ERRORS:
        page = shorten_page(raw[:2000].decode(errors="replace"))
        return EndpointModels(
            replica.base, None, problem=page if page.startswith("an HTML") else "not a list of models"
        )
    return EndpointModels(replica.base, [row.id for row in rows], frozenset(r.id for r in rows if r.owned_by == "vllm"))


def choose_model_name(name: str, endpoints: Sequence[EndpointModels]) -> str:
    """Return the model name to request: the one given, which all endpoints must serve, or the only one there is."""
    listed = [s for s in endpoints if s.names is not None]
    if name:
        for endpoint in listed:
            check_model_name(name, endpoint)
        return name
    names = sorted({n for s in listed for n in s.names or ()})
    if unlisted := next((s for s in endpoints if s.problem), None):
        way = "check the path of the URL: most endpoints end in /v1; one that lists no models needs --model-name"
        raise ModelsNotListed(f"{unlisted.base}/models: {unlisted.problem}; {way}")
    if len(names) == 1 and all(s.names == names for s in endpoints):
        return names[0]
    offered = f"serves {_list_names(names)}" if names else "does not report what it serves"
    raise UsageError(f"{endpoints[0].base} {offered}; choose the model with --model-name")


def check_model_name(name: str, endpoint: EndpointModels) -> None:
    """Raise UsageError if the endpoint lists its models and this is not one of them."""
    if endpoint.names is None or is_listed(name, endpoint.names) or _serves_deployments(endpoint.base):
        return
    close = get_close_matches(name, endpoint.names, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]}?" if close else ""
    raise UsageError(f"{endpoint.base} does not serve {name!r}, only {_list_names(endpoint.names) or 'nothing'}{hint}")


def is_listed(name: str, names: Sequence[str]) -> bool:
    """Return whether an endpoint lists a name: Gemini adds a prefix, Ollama a tag, OpenRouter takes more tags.

    >>> [is_listed(name, ["models/a", "b:latest", "org/c"]) for name in ("a", "b", "org/c:free", "c")]
    [True, True, True, False]
    """
    forms = {name, f"models/{name}", f"{name}:latest", name.partition(":")[0]}
    return not forms.isdisjoint(names)


def _serves_deployments(base: str) -> bool:
    """Return whether an endpoint is Azure's: it lists models, but is asked for deployments, which have other names."""
    path = base.partition("?")[0]
    return "/openai/deployments/" in path or path.endswith("/openai/v1")


def _list_names(names: Sequence[str], most: int = 12) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


async def _suggest_v1(replica: Replica, timeout_s: float) -> None:
    path, mark, query = replica.base.partition("?")
    if path.endswith("/v1"):
        return
    try:
        status, raw = await replica.get(URL(join_url(replica.base, "v1/models")), timeout_s)
        read_models(raw)
    except (RolloutFailed, *JSON_ERRORS):
        return
    if status == 200:
        raise UsageError(f"{replica.base} is not the endpoint; did you mean {path}/v1{mark}{query}?")


LogprobsMode: TypeAlias = Literal["processed", "raw"]

PENALTY_FIELDS = ("presence_penalty", "frequency_penalty")
RAW_LOGPROBS = "the model's own, before temperature and top-p: start vLLM with --logprobs-mode processed_logprobs"
_LIKELIEST_TOKEN = Sampling(max_tokens=1, extra={"top_k": 1})


def is_shaped(sampling: Sampling) -> bool:
    """Whether tokens are sampled from another distribution than the model's own; greedy choices are not sampled.

    >>> [is_shaped(s) for s in (Sampling(), Sampling(0.7), Sampling(0.0), Sampling(extra={"top_k": 5}))]
    [False, True, False, True]
    """
    if sampling.temperature == 0 and not sampling.omits("temperature"):
        return False
    neutral = UNSHAPED_SAMPLING | dict.fromkeys(PENALTY_FIELDS, 0.0)
    other = any(sampling.extra.get(name, value) != value for name, value in neutral.items())
    omitted = sampling.omits("temperature") or sampling.omits("top_p")
    return other or omitted or sampling.temperature != 1 or sampling.top_p != 1 or "logit_bias" in sampling.extra


async def find_logprobs_mode(replica: Replica, name: str) -> LogprobsMode | None:
    """Determine the mode from one forced token: the sampled distribution gives it all probability, the model less.

    Return None if the server reports no logprob.
    """
    body = chat_body(name, [Message("user", "Hello")], _LIKELIEST_TOKEN, 0, (), True)
    _, choice, _ = read_answer(await replica.post(replica.chat, body))
    content = choice.logprobs.content if choice.logprobs else None
    if not content or content[0].logprob is None:
        return None
    return "processed" if content[0].logprob == 0 else "raw"


PROBE_TIMEOUT_S = 5.0
SHORT_WAIT_S = 2.0
"""A wait that may not last longer is not announced."""
MIN_SECRET_CHARS = 4
"""A shorter value of a header is not a secret; removing it would damage every message."""


class ChatModel:
    """Sends chat completions to every URL of the settings.

    `tokens` asks for exact ids and logprobs: by default wherever all replicas are vLLM. True requires them: an answer
    without them is a `token_mismatch`. The logprobs are those of the server's --logprobs-mode; vLLM's default is
    before temperature and top_p. `version` is recorded on each turn as it starts. A model's reasoning is not sent
    back to it in later turns unless `send_reasoning` is set: the protocol has no field for it. `answered` says that
    the endpoint has answered a call before, so that a refusal is an outage.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        *,
        tokens: bool | None = None,
        send_reasoning: bool = False,
        say: Callable[[str], None] | None = None,
        answered: bool = False,
    ) -> None:
        if not settings.urls:
            raise UsageError("no endpoint: give its URL with -m")
        self.spec = spec
        self.version: str | None = None
        self.tokens = bool(tokens)
        self.send_reasoning = send_reasoning
        self._forced = tokens
        self._answered = answered
        self._settings = settings
        self._bases = [normalize_base_url(url) for url in settings.urls]
        # A header that carries the key carries it alone, also where both are of one variable.
        self._key = "" if has_key_header(settings) else os.environ.get(settings.api_key_env, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise UsageError(f"{settings.api_key_env} does not hold a valid key: only printable ASCII can be sent")
        self._headers = read_headers(settings.headers)
        self._session: aiohttp.ClientSession | None = None
        self._router: Router | None = None
        self._checked: Sampling | None = None
        self._logprobs_checked = False
        self.warns_of_logprobs = True
        """Whether a first call with tokens makes another one, to find out whose logprobs the server reports."""
        self._waiting_ended = False
        self._say = say or (lambda _: None)
        self._learned_names: dict[str, Mapping[str, str]] = {}
        self._continuer = PromptContinuer(self._say)

    def __repr__(self) -> str:
        return f"ChatModel({self.spec.name!r}, {self._bases})"

    @property
    def wire_names(self) -> Mapping[str, str]:
        """The names under which parameters are sent: what was learned first, of any replica, else the given ones."""
        return next(iter(self._learned_names.values()), self._settings.wire_names)

    async def open(self) -> None:
        """Find out what is served; wait for a server that is not up yet, as long as an outage may last."""
        self._session = self._open_session()
        try:
            advice = advise_on_key(self._settings)
            replicas = [
                Replica(base, self._session, self._settings.call_s, self._scrub, advice) for base in self._bases
            ]
            results = await self._wait_for_replicas(replicas)
            served = [s for s in results if isinstance(s, EndpointModels)]
            self.spec = msgspec.structs.replace(self.spec, name=choose_model_name(self.spec.name, served))
            if self._forced is None:
                self.tokens = all(self.spec.name in s.vllm for s in served)
            self._router = Router(replicas, self._probe, self._settings.outage_s, self._settings.routing)
            self._router.answered = self._answered
            if self._waiting_ended:
                self._router.stop_waiting()
            for replica, result in zip(replicas, results, strict=True):
                if isinstance(result, RolloutFailed):
                    self._router.take_out(replica, result.message)
        except BaseException:
            await self.close()
            raise

    def _open_session(self) -> aiohttp.ClientSession:
        return open_http_session(self._settings.connect_s, self._key, more_headers=self._headers)

    async def close(self) -> None:
        """Close all connections and stop all probes."""
        if self._router:
            await self._router.close()
        if self._session:
            await self._session.close()
        self._router = self._session = None

    @property
    def url(self) -> str:
        """The base URL of its first replica."""
        return self._bases[0]

    def stop_waiting(self) -> None:
        """Let calls that wait for a server give up at once, and `open` at its next look."""
        self._waiting_ended = True
        if self._router:
            self._router.stop_waiting()

    def describe_outage(self) -> str:
        """Return how long no server has answered, and why; empty while one does."""
        return self._router.describe_outage() if self._router else ""

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Answer once."""
        return await self.complete_from(None, messages, sampling, **call)

    async def complete_from(
        self, previous: AnsweredCall | None, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]
    ) -> Completion:
        """Answer once, with the ids of an earlier call and its answer as prompt, plus what the new messages add.

        Where that cannot be proven, or the server takes no ids, the messages are sent as usual. The turn records the
        prompt that the server reports, whatever it is.
        """
        if self._router is None:
            raise RuntimeError("the model is not open")
        if self._checked is not sampling:
            check_extra(sampling)
            self._checked = sampling
            await self._warn_of_raw_logprobs(sampling)
        if not self.send_reasoning:
            messages = without_reasoning(messages)
        prepared, seed, tools = prepare_messages(messages), call["seed"], call.get("tools", ())
        version, continued = self.version, previous if self.tokens else None

        async def ask(replica: Replica) -> Completion:
            name, url, ids, text = self.spec.name, self._find_url(replica), None, False
            if continued:
                prompt = await self._continuer.make_prompt(replica, name, continued, messages, sampling, tools)
                ids = self._continuer.accept(prompt)
            if ids and await self._continuer.needs_text_completions(replica):
                url, text = replica.text, True

            def make_body(wire_names: Mapping[str, str]) -> bytes:
                if ids and text:
                    return text_body(name, ids, sampling, seed)
                return self._make_body(prepared, sampling, seed, tools, ids, wire_names)

            started = perf_counter()
            raw = await self._post(replica, url, make_body)
            completion = self._read_completion(raw, perf_counter() - started, version, text)
            if ids is not None and completion.turn.prompt_ids != ids:
                self._continuer.mark_ignoring(replica)
            return completion

        try:
            return await self._router.send(call["rollout"], ask, call.get("group", ""))
        except ContextFull as full:
            raise _max_tokens_error(str(full), sampling) or full from None
        except RolloutFailed as error:
            raise _add_advice(error, bool(tools), "response_format" in sampling.extra) from None

    def _find_url(self, replica: Replica) -> URL:
        return replica.chat

    def _make_body(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seed: int,
        tools: Sequence[JSON],
        prompt_ids: list[int] | None,
        wire_names: Mapping[str, str],
    ) -> bytes:
        return chat_body(self.spec.name, messages, sampling, seed, tools, self.tokens, prompt_ids, wire_names)

    async def _post(self, replica: Replica, url: URL, make_body: Callable[[Mapping[str, str]], bytes]) -> bytes:
        """Return the body of an answer; where the replica takes a parameter under its other name only, learn that."""
        names = self._learned_names.get(replica.base, self._settings.wire_names)
        refused: list[str] = []
        while True:
            body = make_body(names)
            status, retry_after, raw = await replica.post_any_status(url, body)
            found = find_refused_parameter(raw, list_sampling_fields(body)) if status in (400, 422) else None
            other = OTHER_NAMES.get(found.name) if found else None
            if (
                refused and other is None and status in (200, 400, 413, 422)
            ):  # the other name was taken, whatever else was not
                self._learn_names(replica.base, refused[0], names)
            if status == 200:
                self._answered = True
                return raw
            if found is None:
                error = replica.make_error(status, retry_after, raw)
                raise error if self._answered else _name_parameter(error, raw, body)
            if other is None or found.value or refused:
                raise self._explain_refusal(replica.base, found.name, raw)
            refused.append(found.name)
            names = {"max_tokens": other}

    def _learn_names(self, base: str, refused: str, names: Mapping[str, str]) -> None:
        """Keep the names for one replica: another one may want others. Reported once, also if it changes."""
        if base not in self._learned_names:
            self._say(f"{base} does not take {refused}: {names['max_tokens']} is sent instead")
        self._learned_names[base] = names

    def _explain_refusal(self, base: str, name: str, raw: bytes) -> RolloutFailed | UsageError:
        """Return the error for a parameter that is refused: never dropped, since that would change the sampling.

        While nothing was ever answered it is a mistake in the settings, which ends a run; later it fails one rollout.
        """
        usual = "max_tokens" if name in OTHER_NAMES else name
        advice = f"pass --sampling {usual}=null to omit it"
        message = f"{base} refuses {name}: {read_server_message(raw)!r}; {advice}"
        return RolloutFailed("model_rejected", WHERE, message) if self._answered else UsageError(message)

    async def _warn_of_raw_logprobs(self, sampling: Sampling) -> None:
        """Warn once if the logprobs are not those of the sampled distribution."""
        if self._logprobs_checked or not (self.tokens and self.warns_of_logprobs) or not is_shaped(sampling):
            return
        self._logprobs_checked = True
        try:
            if await self.find_logprobs_mode() == "raw":
                self._say(f"warning: the logprobs are {RAW_LOGPROBS}")
        except (RolloutFailed, ContextFull):
            self._logprobs_checked, self._checked = False, None  # no answer tells nothing: the next call asks again

    async def find_logprobs_mode(self) -> LogprobsMode | None:
        """Ask the server for one token to find out whose logprobs it reports."""
        assert self._router is not None
        return await self._router.send("", lambda replica: find_logprobs_mode(replica, self.spec.name))

    def _read_completion(self, raw: bytes, seconds: float, version: str | None, text: bool) -> Completion:
        try:
            answer, choice, reason = read_answer(raw, text)
        except RolloutFailed as error:
            raise self._explain_error_body(raw, error) from None
        assert choice.message is not None
        usage = answer.usage
        prompt, completion = usage.read_counts() if usage else (None, None)
        counts = prompt or 0, completion or 0
        ids: tuple[list[int] | None, list[int] | None, list[float] | None] = (None, None, None)
        if self.tokens and (exact := self._read_ids(answer, choice)):
            ids, counts = exact, (len(exact[0]), len(exact[1]))
        cached = usage.read_cached() if usage else None
        return Completion(make_message(choice.message), Turn(*ids, *counts, reason, seconds, version, cached))

    def _read_ids(self, answer: ChatAnswer, choice: AnswerChoice) -> tuple[list[int], list[int], list[float]] | None:
        """Return the reported ids, checked; None from a vLLM too old to report them, unless tokens are required."""
        if answer.prompt_token_ids is None and choice.token_ids is None and not self._forced:
            return None
        logprobs = choice.logprobs.content if choice.logprobs else None
        if answer.prompt_token_ids is None or choice.token_ids is None or logprobs is None:
            raise RolloutFailed("token_mismatch", WHERE, "the server did not return token ids with their logprobs")
        prompt, completion = answer.usage.read_counts() if answer.usage else (None, None)
        numbers = check_logprobs(
            answer.prompt_token_ids,
            choice.token_ids,
            [p.logprob for p in logprobs],
            prompt_tokens=prompt,
            completion_tokens=completion,
        )
        return answer.prompt_token_ids, choice.token_ids, numbers

    def _explain_error_body(self, raw: bytes, error: RolloutFailed) -> Exception:
        """Return the failure for a 200 that contains an error, with the server's message."""
        if error.kind == "bad_completion" and b'"error"' in raw[:4096]:
            message = self._scrub(read_server_message(raw))
            return (
                ContextFull(message)
                if is_context_error(raw)
                else make_bad_completion(f"HTTP 200 with an error: {message}")
            )
        return RolloutFailed(error.kind, error.where, self._scrub(error.message))

    async def _wait_for_replicas(self, replicas: Sequence[Replica]) -> list[EndpointModels | RolloutFailed]:
        """Return what each replica serves, as soon as one of them answers."""
        loop = asyncio.get_running_loop()
        deadline, delay = loop.time() + self._settings.outage_s, FIRST_PROBE_S
        while True:
            results = await asyncio.gather(*(self._fetch_models(replica) for replica in replicas))
            reasons = [result.message for result in results if isinstance(result, RolloutFailed)]
            if len(reasons) < len(results):
                return results
            if self._waiting_ended or loop.time() + delay > deadline:
                why = "; ".join(reasons)
                raise EndpointDown(describe_outage(why, self._settings.outage_s, "try again"), why)
            if delay == FIRST_PROBE_S and self._settings.outage_s > SHORT_WAIT_S:
                self._say(describe_waiting("; ".join(reasons), self._settings.outage_s))
            await asyncio.sleep(delay)
            delay = min(delay * 2, SLOWEST_PROBE_S)

    async def _fetch_models(self, replica: Replica) -> EndpointModels | RolloutFailed:
        try:
            timeout_s = min(self._settings.connect_s, PROBE_TIMEOUT_S)
            return await fetch_endpoint_models(replica, timeout_s, advise_on_key(self._settings))
        except RolloutFailed as error:
            return error

    async def _probe(self, replica: Replica) -> str | None:
        try:
            served = await self._fetch_models(replica)
            if isinstance(served, RolloutFailed):
                return served.message
            check_model_name(self.spec.name, served)
        except UsageError as error:
            return str(error)
        return None

    def _scrub(self, text: str) -> str:
        for name, value in (*self._headers.items(), ("key", self._key)):
            if len(value) >= MIN_SECRET_CHARS or (name == "key" and value):
                text = text.replace(value, f"[{name}]")
        return text


def _name_parameter(error: RolloutFailed | ContextFull, raw: bytes, body: bytes) -> RolloutFailed | ContextFull:
    """Add what to do if a server that has answered nothing yet complains about a parameter in words of its own."""
    if isinstance(error, ContextFull) or error.status not in (400, 422):
        return error
    name = find_named_parameter(raw, list_sampling_fields(body))
    if name is None:
        return error
    usual = "max_tokens" if name in OTHER_NAMES else name
    message = f"{error.message}; give another value, or pass --sampling {usual}=null to omit it"
    return RolloutFailed(error.kind, error.where, message, status=error.status)


def _add_advice(error: RolloutFailed, tools: bool, schema: bool) -> RolloutFailed:
    """Name the way out if a server takes no tools, or no schema: it refuses every prompt."""
    text = error.message.lower()
    if error.kind != "model_rejected" or not ((tools and "tool" in text) or (schema and "schema" in text)):
        return error
    option = "--tool-format schema" if tools else "--tool-format text"
    return RolloutFailed(error.kind, error.where, f"{error.message}; for a server that cannot do this: {option}")


def _max_tokens_error(message: str, sampling: Sampling) -> RolloutFailed | None:
    """Return a failure if max_tokens alone fills the context: a mistake in the settings is not a score."""
    limit = read_context_limit(message)
    if limit is None or sampling.max_tokens < limit or sampling.omits("max_tokens"):
        return None
    advice = f"--max-tokens {sampling.max_tokens} leaves no room for a prompt: lower it"
    return RolloutFailed("model_rejected", WHERE, f"{message}; {advice}")
