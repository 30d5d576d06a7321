"""`rollbook plan`: the run directory, and no model asked."""

from __future__ import annotations

import sys

from rollbook.cli import options as o
from rollbook.cli.request import request_of


def command(
    env: o.Target,
    model: o.Model = None,
    model_name: o.ModelName = "",
    samples: o.Samples = 1,
    limit: o.Limit = None,
    concurrency: o.Concurrency = None,
    out: o.Out = None,
    seed: o.Seed = 0,
    temperature: o.Temperature = o.SAMPLING.temperature,
    top_p: o.TopP = o.SAMPLING.top_p,
    max_tokens: o.MaxTokens = o.SAMPLING.max_tokens,
    sampling: o.Extra = None,
    max_turns: o.MaxTurns = o.LIMITS.max_turns,
    timeout: o.Timeout = o.LIMITS.rollout_s,
    verify_timeout: o.VerifyTimeout = o.LIMITS.verify_s,
    call_timeout: o.CallTimeout = None,
    connect_timeout: o.ConnectTimeout = None,
    outage: o.Outage = None,
    data: o.Data = None,
    task: o.TaskId = None,
    sample: o.SampleIndex = None,
    workers: o.Workers = None,
    api_key_env: o.ApiKeyEnv = None,
    fail_fast: o.FailFast = False,
    max_failures: o.MaxFailures = None,
    offline: o.Offline = False,
) -> None:
    given = o.changes(
        model=model,
        concurrency=concurrency,
        workers=workers,
        call_timeout=call_timeout,
        connect_timeout=connect_timeout,
        outage=outage,
        api_key_env=api_key_env,
        fail_fast=fail_fast,
        max_failures=max_failures,
        offline=offline,
    )
    request = request_of(
        env,
        given=given,
        model_name=model_name,
        samples=samples,
        limit=limit,
        out=out,
        seed=seed,
        temperature=temperature,
        top_p=top_p,
        max_tokens=max_tokens,
        sampling=sampling,
        max_turns=max_turns,
        timeout=timeout,
        verify_timeout=verify_timeout,
        data=data,
        task=task,
        sample=sample,
    )
    from rollbook.collect.run import plan_request

    run = plan_request(request)
    print(run)
    print(f"rollbook work {run}", file=sys.stderr)
