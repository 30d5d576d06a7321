"""TensorBoard: event files in the folder `tensorboard` of a run, so that `tensorboard --logdir runs` shows them all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from rollbook.core import JSON, encode
from rollbook.engine import TrackedResult, TrackedRun, TrackedTable

MAX_TEXT_ROWS = 200
"""TensorBoard shows text whole: more rows than this would be no help."""


class TensorboardTracker:
    """Scalars over the number of rollouts; settings, tasks and samples as text. A later start writes another file."""

    package = "tensorboard"

    def open(self, run: TrackedRun) -> str:
        """Open an event file."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = run.path / "tensorboard"
        self._writer: Any = EventFileWriter(str(folder))
        settings = msgspec.json.format(encode(run.settings), indent=2).decode()
        self._write_text("settings", f"```\n{settings}\n```")
        return folder.name

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Write scalars."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(Summary(value=values), step)

    def close(self, result: TrackedResult) -> None:
        """Write the final numbers and tables."""
        self.log_metrics(result.metrics, int(result.metrics["final/scored"] + result.metrics["final/failed"]))
        self._write_text("tasks", make_markdown(result.tasks))
        self._write_text("samples", make_markdown(result.samples))
        self._writer.close()

    def _write_text(self, tag: str, text: str) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()], tensor_shape=shape)
        metadata = create_summary_metadata(display_name=tag, description="")
        self._write(Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=metadata)]), 0)

    def _write(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()


def make_markdown(table: TrackedTable) -> str:
    """Return the first rows of a table as Markdown.

    >>> print(make_markdown(TrackedTable(["task", "answer"], [["a", "x|y"], ["b", None]])))
    | task | answer |
    | --- | --- |
    | a | x\\|y |
    | b |  |
    """
    lines = [table.columns, ["---"] * len(table.columns), *table.rows[:MAX_TEXT_ROWS]]
    return "\n".join(f"| {' | '.join(map(_format_cell, line))} |" for line in lines)


def _format_cell(value: JSON) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.replace("|", "\\|").split())
