"""From a report that is not all scored to an exception that says why, and what to change."""

from __future__ import annotations

from pathlib import Path

from rollbook.collect.report import Report
from rollbook.errors import Shortfall

ADVICE = {
    "model_unavailable": "check the server, or lower --concurrency",
    "model_timeout": "lower --concurrency, or raise --call-timeout",
    "bad_completion": "look at the server's log",
    "nonfinite_logprobs": "look at the server: it reports logprobs that are not numbers",
    "environment_error": "look at the environment's log; lower --concurrency if memory ran out",
    "worker_lost": "lower --concurrency or --workers: workers died, most often of memory",
    "verifier_timeout": "mend the verifier, or start a new run with a longer --verify-timeout",
    "verifier_error": "mend the verifier, then rollbook reverify RUN --env NEW --only failed",
    "invalid_reward": "return a finite number from the verifier, then rollbook reverify RUN --env NEW --only failed",
    "model_rejected": "look at the message: the server refuses this prompt",
    "token_mismatch": "look at the server: its ids and counts contradict each other",
    "rollout_timeout": "start a new run with a longer --timeout",
}


def shortfall(report: Report, cause: str = "") -> Shortfall:
    """The exception for a report with rollouts missing."""
    worst = max(report.failed, key=lambda kind: report.failed[kind], default="")
    logs = Path(report.path) / "logs"
    return Shortfall(
        requested=report.requested,
        scored=report.scored,
        failed=report.failed,
        missing=report.missing,
        cause=cause or _first_words(report, worst),
        setting=ADVICE.get(worst, ""),
        log=str(logs) if logs.exists() else "",
    )


def _first_words(report: Report, worst: str) -> str:
    """What the first failure of the commonest kind said."""
    return next((f"probable cause: {why}" for _, _, why in report.missing if worst and why.startswith(worst)), "")
