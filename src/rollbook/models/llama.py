"""A llama.cpp server, spoken to in ids: render, tokenise, sample, and account for every sampled token's logprob."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

import aiohttp
import msgspec
from yarl import URL

from rollbook.core.json import JSON, decode, encode
from rollbook.core.manifest import Sampling
from rollbook.core.message import Message
from rollbook.errors import RolloutFailed
from rollbook.models.refusal import WHERE, bad_completion
from rollbook.models.replica import Replica

Key = TypeVar("Key")

END = "<|im_end|>"
"""What the embedded model's template ends a message with."""
PROMPTS_KEPT = 256
MOST_MISSING = 64
_WIDTHS = (1_000, 1_000_000)
_FORCED = 1_000.0


class Likely(msgspec.Struct):
    """One of the tokens that could have come."""

    id: int
    logprob: float | None = None


class Sampled(msgspec.Struct):
    """A token that came."""

    id: int
    logprob: float | None = None
    top_logprobs: list[Likely] = []


class LlamaAnswer(msgspec.Struct):
    """What /completion says."""

    content: str
    tokens: list[int]
    stop_type: str
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: list[Sampled] = []


_answers = msgspec.json.Decoder(LlamaAnswer)


class Prompt(msgspec.Struct, frozen=True):
    """A conversation as the model sees it."""

    text: str
    ids: list[int]


class Llama:
    """One llama.cpp server."""

    def __init__(self, url: str, session: aiohttp.ClientSession, call_s: float) -> None:
        self.url = url
        self._replica = Replica(url, session, call_s, scrub=str)
        self._completion = URL(f"{url}/completion")
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._said: OrderedDict[str, Prompt] = OrderedDict()
        self._plain: int | None = None

    async def prompt(self, messages: Sequence[Message], rollout: str = "") -> Prompt:
        """A conversation as the server's own chat endpoint would make it.

        One that goes on keeps the ids that were sampled: the same text could be cut into other tokens.
        """
        if said := self._said.get(rollout):
            text = await self._render(messages)
            if text.startswith(said.text):
                rest = await self._tokenize(text[len(said.text) :], special=False)
                return Prompt(text, [*said.ids, *rest])
        key = encode(messages)
        known = self._prompts.get(key)
        if known is None:
            text = await self._render(messages)
            known = self._prompts[key] = Prompt(text, await self._tokenize(text))
        keep(self._prompts, key)
        return known

    def remember(self, rollout: str, prompt: Prompt, answer: LlamaAnswer) -> None:
        """What was said last in a rollout, for the prompt that goes on from there."""
        ended = answer.stop_type == "eos" and bool(answer.tokens)
        ids = answer.tokens[:-1] if ended else answer.tokens
        self._said[rollout] = Prompt(prompt.text + answer.content, [*prompt.ids, *ids])
        keep(self._said, rollout)

    async def _render(self, messages: Sequence[Message]) -> str:
        text = (await self._ask("apply-template", {"messages": messages})).get("prompt")
        if not isinstance(text, str):
            raise bad_completion("the server did not render the conversation")
        return text

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling, seed: int) -> LlamaAnswer:
        """Continue the ids. The server's defaults for top_k and min_p are switched off; `extra` has the last word."""
        body = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "n_predict": sampling.max_tokens,
            "seed": seed,
            **_extra(sampling),
            "prompt": prompt_ids,
            "n_probs": 1,
            "return_tokens": True,
            "post_sampling_probs": False,
            "stream": False,
        }
        return await self._complete(body)

    async def logprobs(self, prompt_ids: Sequence[int], answer: LlamaAnswer) -> list[float | None]:
        """One logprob for each sampled id.

        The server leaves out tokens that end in the middle of a character, and one that completes a stop word. Those
        few are asked for again: the same ids up to that token, and the model's logprob of it as the next one.
        """
        known = align(answer.tokens, answer.completion_probabilities)
        if sum(p is None for p in known) > MOST_MISSING:
            raise RolloutFailed("token_mismatch", WHERE, f"more than {MOST_MISSING} tokens came without a logprob")
        return [
            await self._logprob([*prompt_ids, *answer.tokens[:at]], answer.tokens[at]) if p is None else p.logprob
            for at, p in enumerate(known)
        ]

    async def _logprob(self, before: list[int], token: int) -> float | None:
        if self._plain is None:
            self._plain = (await self._tokenize("a"))[-1]
        # Some whole token is forced to come, so that the list of all that could have come is reported with it.
        body: dict[str, JSON] = {"prompt": before, "n_predict": 1, "temperature": 0.0, "return_tokens": True}
        body["logit_bias"] = [[self._plain, _FORCED]]
        for width in _WIDTHS:
            sampled = (await self._complete({**body, "n_probs": width})).completion_probabilities
            for likely in sampled[0].top_logprobs if sampled else ():
                if likely.id == token:
                    return likely.logprob
        raise RolloutFailed("token_mismatch", WHERE, f"the server does not report the logprob of token {token}")

    async def _tokenize(self, text: str, special: bool = True) -> list[int]:
        said = await self._ask("tokenize", {"content": text, "add_special": special, "parse_special": True})
        ids = said.get("tokens")
        if not isinstance(ids, list):
            raise bad_completion("the server did not tokenise the conversation")
        return ids

    async def _ask(self, path: str, body: JSON) -> dict[str, JSON]:
        raw = await self._replica.post(URL(f"{self.url}/{path}"), encode(body))
        try:
            said = decode(raw)
        except msgspec.DecodeError as error:
            raise bad_completion(f"/{path}: {error}") from None
        return said if isinstance(said, dict) else {}

    async def _complete(self, body: dict[str, JSON]) -> LlamaAnswer:
        raw = await self._replica.post(self._completion, encode(body))
        try:
            return _answers.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise bad_completion(f"/completion: {error}") from None


def keep(held: OrderedDict[Key, Prompt], key: Key) -> None:
    """Mark one as used now, and let go of the one that was not for longest."""
    held.move_to_end(key)
    if len(held) > PROMPTS_KEPT:
        held.popitem(last=False)


def _extra(sampling: Sampling) -> dict[str, JSON]:
    """Further sampling, the chat protocol's response_format as the grammar that /completion takes.

    With its field json_schema an answer would end in <|endoftext|>, and no next prompt would continue it.
    """
    extra = dict(sampling.extra)
    form = extra.pop("response_format", None)
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        schema = encode(form["json_schema"].get("schema")).decode()
        extra["grammar"] = f"%llguidance {{}}\nstart: answer {END}\nanswer: %json {schema}"
    return extra


def align(tokens: Sequence[int], sampled: Sequence[Sampled]) -> list[Sampled | None]:
    """Which entry belongs to which token, where that can only be one; `sampled` may leave some tokens out.

    Matched once from the left and once from the right: an entry that lands on the same token both
    times can be nowhere else.
    """
    left = _match(tokens, [s.id for s in sampled])
    right = [len(tokens) - 1 - at for at in reversed(_match(tokens[::-1], [s.id for s in reversed(sampled)]))]
    found: list[Sampled | None] = [None] * len(tokens)
    if len(left) == len(sampled):
        for entry, a, b in zip(sampled, left, right, strict=True):
            if a == b:
                found[a] = entry
    return found


def _match(tokens: Sequence[int], ids: Sequence[int]) -> list[int]:
    places: list[int] = []
    at = iter(range(len(tokens)))
    for wanted in ids:
        place = next((i for i in at if tokens[i] == wanted), None)
        if place is None:
            break
        places.append(place)
    return places
