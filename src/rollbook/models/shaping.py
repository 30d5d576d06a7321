"""Whose logprobs a vLLM reports: of what it sampled from, or of the model before temperature, top-p and their like."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rollbook.core.manifest import Sampling
from rollbook.core.message import Message
from rollbook.models.protocol import UNSHAPED, chat_body, read_answer
from rollbook.models.replica import Replica

LogprobsMode: TypeAlias = Literal["processed", "raw"]

PENALTIES = ("presence_penalty", "frequency_penalty")
RAW = "the model's own, before temperature and top-p: start vLLM with --logprobs-mode processed_logprobs"
_CERTAIN = Sampling(max_tokens=1, extra={"top_k": 1})


def shaped(sampling: Sampling) -> bool:
    """Whether tokens are sampled from another distribution than the model's own; greedily chosen ones are not sampled.

    >>> [shaped(s) for s in (Sampling(), Sampling(0.7), Sampling(0.0), Sampling(extra={"top_k": 5}))]
    [False, True, False, True]
    """
    if sampling.temperature == 0:
        return False
    usual = UNSHAPED | dict.fromkeys(PENALTIES, 0.0)
    other = any(sampling.extra.get(name, value) != value for name, value in usual.items())
    return other or sampling.temperature != 1 or sampling.top_p != 1 or "logit_bias" in sampling.extra


async def logprobs_mode(replica: Replica, name: str) -> LogprobsMode | None:
    """Told by one token that had to be the likeliest: what was sampled from gave it all probability, the model less.

    None where the server reports no logprob.
    """
    body = chat_body(name, [Message("user", "Hello")], _CERTAIN, 0, (), True)
    _, choice, _ = read_answer(await replica.post(replica.chat, body))
    content = choice.logprobs.content if choice.logprobs else None
    if not content or content[0].logprob is None:
        return None
    return "processed" if content[0].logprob == 0 else "raw"
