"""`rollbook resume`: finish exactly what a run is missing."""

from __future__ import annotations

from rollbook.cli import options as o
from rollbook.cli.showing import watched


def command(
    run: o.Run,
    model: o.Model = None,
    concurrency: o.Concurrency = None,
    workers: o.Workers = None,
    call_timeout: o.CallTimeout = None,
    connect_timeout: o.ConnectTimeout = None,
    outage: o.Outage = None,
    api_key_env: o.ApiKeyEnv = None,
    fail_fast: o.FailFast = False,
    max_failures: o.MaxFailures = None,
    offline: o.Offline = False,
    retry: o.Retry = None,
    json: o.Json = False,
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
    from rollbook.collect.run import resume

    watched(run, lambda display: resume(run, given, retry, display), json)
