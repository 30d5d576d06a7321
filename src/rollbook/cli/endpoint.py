"""What an endpoint can do, found out by asking it: four short answers, nothing that lasts."""

from __future__ import annotations

import asyncio

from rollbook.cli.machine import Finding
from rollbook.core.manifest import Sampling, Settings
from rollbook.core.message import Message
from rollbook.errors import RolloutFailed
from rollbook.models.chat import ChatModel
from rollbook.models.continuing import Held
from rollbook.models.shaping import RAW
from rollbook.models.target import resolve_model

PROBE_S = 60.0
ASKED = [Message("user", "Hello")]
SHORT = Sampling(max_tokens=256, extra={"chat_template_kwargs": {"enable_thinking": False}})
"""Thoughts may be long, and one that is cut within them cannot be gone on from."""


def endpoint_findings(url: str, name: str, key_env: str) -> list[Finding]:
    """Everything that matters for exact tokens, in the order in which it is needed."""
    spec, urls = resolve_model([url], name)
    reasons: list[str] = []
    settings = Settings(urls=urls, api_key_env=key_env, call_s=PROBE_S, outage_s=0.0)
    return asyncio.run(_examine(ChatModel(spec, settings, say=reasons.append), reasons))


async def _examine(model: ChatModel, reasons: list[str]) -> list[Finding]:
    await model.open()
    try:
        served = Finding("endpoint", True, model.spec.name)
        if not model.tokens:
            return [
                served,
                Finding("  token ids", False, "only a vLLM reports them: rollouts can be scored, not trained on"),
            ]
        return [served, *await _tokens(model, reasons)]
    except RolloutFailed as error:
        return [Finding("endpoint", False, f"{error.kind}: {error.message}")]
    finally:
        await model.close()


async def _tokens(model: ChatModel, reasons: list[str]) -> list[Finding]:
    first = await model.complete(ASKED, SHORT, seed=0, rollout="doctor")
    if first.turn.prompt_ids is None or first.turn.ids is None:
        return [Finding("  token ids", False, "this vLLM does not report them; 0.11 and newer do")]
    mode = await model.logprobs_mode()
    messages = [*ASKED, first.message, Message("user", "Again")]
    then = await model.go_on(Held(ASKED, first), messages, SHORT, seed=0, rollout="doctor")
    held = first.turn.prompt_ids + first.turn.ids
    continued = (then.turn.prompt_ids or [])[: len(held)] == held and not reasons
    why = "; ".join(reasons) or "the second prompt does not begin with the first"
    return [
        Finding("  token ids", True, f"{len(held)} of a short answer, every one with its logprob"),
        Finding("  logprobs", mode == "processed", "of what is sampled from" if mode == "processed" else RAW),
        Finding("  --continue-tokens", continued, "tried out: a second turn went on in its ids" if continued else why),
    ]
