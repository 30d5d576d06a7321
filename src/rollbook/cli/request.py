"""What `run` and `plan` ask for: their options gathered into one Request."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import cast

from rollbook.cli import options as o
from rollbook.cli.gathered import gathered
from rollbook.collect.request import Request
from rollbook.core.json import JSON
from rollbook.core.manifest import Limits, Sampling, Settings, ToolFormat
from rollbook.environments.registry import played_elsewhere
from rollbook.models.target import EMBEDDED_SLOTS


@gathered("given", o.changes)
def request_of(
    env: o.Asked,
    samples: o.Samples = 1,
    limit: o.Limit = None,
    out: o.Out = None,
    model_name: o.ModelName = "",
    judge_name: o.JudgeName = "",
    *,
    given: dict[str, JSON],
    temperature: o.Temperature = o.SAMPLING.temperature,
    top_p: o.TopP = o.SAMPLING.top_p,
    max_tokens: o.MaxTokens = o.SAMPLING.max_tokens,
    sampling: o.Extra = None,
    seed: o.Seed = 0,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    task: o.TaskId = None,
    sample: o.SampleIndex = None,
    timeout: o.Timeout = o.LIMITS.rollout_s,
    verify_timeout: o.VerifyTimeout = o.LIMITS.verify_s,
    max_turns: o.MaxTurns = o.LIMITS.max_turns,
    max_tokens_total: o.MaxTokensTotal = None,
    agent: o.AgentName = "",
    tool_format: o.ToolFormatName = "auto",
    continue_tokens: o.ContinueTokens = False,
    tool_timeout: o.ToolTimeout = o.LIMITS.tool_s,
    tool_chars: o.ToolChars = o.LIMITS.tool_chars,
    stop_repeats: o.StopRepeats = None,
) -> Request:
    """The request of a command line; a run directory is always named, so that it can be shown whatever happens."""
    o.finite(temperature=temperature, top_p=top_p, timeout=timeout)
    o.finite(verify_timeout=verify_timeout, tool_timeout=tool_timeout)
    urls = list(given.get("urls", []))
    first: dict[str, JSON] = {} if urls or played_elsewhere(env) else {"concurrency": EMBEDDED_SLOTS}
    return Request(
        env=env,
        model=urls,
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=out or str(new_folder(env)),
        seed=seed,
        sampling=Sampling(temperature, top_p, max_tokens, o.extra_sampling(sampling)),
        limits=Limits(
            verify_s=verify_timeout,
            tool_s=tool_timeout,
            rollout_s=timeout,
            max_turns=max_turns,
            max_tokens_total=max_tokens_total,
            tool_chars=tool_chars,
            stop_repeats=stop_repeats,
        ),
        agent=agent,
        tool_format=cast(ToolFormat, tool_format),
        continue_tokens=continue_tokens,
        settings=Settings(**first | given),
        data=data,
        template=prompt_template,
        judge=list(given.get("judge_urls", [])),
        judge_name=judge_name,
        tasks=task,
        sample=sample,
    )


def new_folder(env: str) -> Path:
    """A run directory that does not exist yet: runs/ENVIRONMENT-TIME."""
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", env.partition("?")[0]).strip("-.") or "run"
    stem = Path("runs") / f"{name}-{time.strftime('%m%d-%H%M%S')}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 100))]
    return next((folder for folder in candidates if not folder.exists()), stem)
