"""Weights & Biases. Its own variables apply: WANDB_API_KEY, WANDB_PROJECT, WANDB_ENTITY, WANDB_MODE, WANDB_DIR."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rollbook.engine import TrackedResult, TrackedRun, TrackedTable

DEFAULT_PROJECT = "rollbook"


class WandbTracker:
    """A run of W&B: the settings are its config, the final numbers its summary, tasks and samples are tables."""

    package = "wandb"

    def open(self, run: TrackedRun) -> str:
        """Begin a run, or continue one."""
        import wandb

        settings = wandb.Settings(console="off", disable_git=True, save_code=False, silent=True)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
            name=run.name,
            id=run.tracker_id or None,
            resume="allow",
            config=run.settings,
            settings=settings,
        )
        # The step of W&B must never go back, which the number of rollouts does when failed ones are tried again.
        self._run.define_metric("rollouts")
        self._run.define_metric("*", step_metric="rollouts")
        return str(self._run.id)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers over the number of rollouts."""
        self._run.log({**metrics, "rollouts": step})

    def close(self, result: TrackedResult) -> None:
        """Log the final numbers and tables, and wait for the upload."""
        self._run.log({"tasks": _make_table(result.tasks), "samples": _make_table(result.samples)})
        self._run.summary.update({**result.metrics, "state": result.state})
        self._run.finish(exit_code=0 if result.state == "finished" else 1)


def _make_table(table: TrackedTable) -> Any:
    import wandb

    return wandb.Table(columns=table.columns, data=table.rows, allow_mixed_types=True)
