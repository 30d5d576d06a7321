"""MLflow. Its own variables apply: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and those of its credentials."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from rollbook.core import JSON
from rollbook.engine import TrackedResult, TrackedRun, TrackedTable

DEFAULT_EXPERIMENT = "rollbook"
MAX_PARAM_CHARS = 500
PARAMS_PER_CALL = 100
METRICS_PER_CALL = 1000
STATUS = {"finished": "FINISHED", "shortfall": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """A run of MLflow: the settings are its params and an artifact, tasks and samples are tables among its artifacts.

    By a client and the run's id, never by the active run, which belongs to a thread.
    """

    package = "mlflow"

    def open(self, run: TrackedRun) -> str:
        """Begin a run, or continue one."""
        from mlflow import MlflowClient

        self._client: Any = MlflowClient()
        self._id = self._resume(run.tracker_id) or self._create(run)
        self._client.log_dict(self._id, run.settings, "settings.json")
        return self._id

    def _resume(self, run_id: str) -> str:
        """Return the id of an earlier start whose run is still there; else nothing."""
        from mlflow.exceptions import MlflowException

        if not run_id:
            return ""
        try:
            self._client.update_run(run_id, status="RUNNING")
        except MlflowException:
            return ""
        return run_id

    def _create(self, run: TrackedRun) -> str:
        from mlflow.entities import Param

        made = self._client.create_run(self._find_experiment(), run_name=run.name)
        params = [Param(name, text[:MAX_PARAM_CHARS]) for name, text in flatten(run.settings)]
        for start in range(0, len(params), PARAMS_PER_CALL):
            self._client.log_batch(made.info.run_id, params=params[start : start + PARAMS_PER_CALL])
        return str(made.info.run_id)

    def _find_experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or DEFAULT_EXPERIMENT
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Log numbers over the number of rollouts."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [Metric(clean_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(batch), METRICS_PER_CALL):
            self._client.log_batch(self._id, metrics=batch[start : start + METRICS_PER_CALL])

    def close(self, result: TrackedResult) -> None:
        """Log the final numbers and tables."""
        self.log_metrics(result.metrics, int(result.metrics["final/scored"] + result.metrics["final/failed"]))
        for name, table in (("tasks.json", result.tasks), ("samples.json", result.samples)):
            self._client.log_dict(self._id, _split(table), name)
        # The tag by which MLflow's pages find tables; log_table writes the same, and needs pandas for it.
        tables = [{"path": name, "type": "table"} for name in ("tasks.json", "samples.json")]
        self._client.set_tag(self._id, "mlflow.loggedArtifacts", json.dumps(tables))
        self._client.set_terminated(self._id, STATUS.get(result.state, "FAILED"))


def flatten(value: JSON, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the values inside of dictionaries with dotted names.

    >>> list(flatten({"sampling": {"top_p": 1.0, "extra": {}}, "model": {"name": "a/b"}}))
    [('sampling.top_p', '1.0'), ('model.name', 'a/b')]
    """
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flatten(each, clean_name(f"{name}.{key}" if name else str(key)))
    elif value is not None:
        yield name, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def clean_name(name: str) -> str:
    """Return a name with only the characters that MLflow takes.

    >>> clean_name("final/gym:a?n=1/mean")
    'final/gym_a_n_1/mean'
    """
    return re.sub(r"[^\w\-./ ]", "_", name, flags=re.ASCII)


def _split(table: TrackedTable) -> dict[str, JSON]:
    return {"columns": list(table.columns), "data": list(table.rows)}
