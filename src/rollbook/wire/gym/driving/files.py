"""The files that NeMo Gym's collector leaves: the rollouts, and beside them, called after them, everything else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rollbook.core.json import JSON, decode
from rollbook.errors import UsageError

Object = dict[str, JSON]


class Files(msgspec.Struct, frozen=True):
    """Where the results of one collection lie; `rollouts` names them all."""

    rollouts: Path

    def _beside(self, ending: str) -> Path:
        return self.rollouts.with_name(f"{self.rollouts.stem}_{ending}")

    @property
    def inputs(self) -> Path:
        """One row for each rollout that was asked for."""
        return self._beside("materialized_inputs.jsonl")

    @property
    def failures(self) -> Path:
        """One row for each attempt that failed."""
        return self._beside("failures.jsonl")

    @property
    def metrics(self) -> Path:
        """Statistics, for each agent."""
        return self._beside("aggregate_metrics.json")

    @property
    def all(self) -> tuple[Path, ...]:
        """Every one of them."""
        return self.inputs, self.failures, self.metrics, self.rollouts


class Lines:
    """A file of JSON objects, one a line, read by where they stand. `torn` says whether its last line is cut off."""

    def __init__(self, path: Path) -> None:
        self.path, self.torn = path, False

    def __iter__(self) -> Iterator[tuple[int, Object]]:
        """Each object with the offset that it stands at; anything but a torn end is refused by its line."""
        at = 0
        try:
            with open(self.path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    if line.strip():
                        value = self._read(line, number)
                        if value is None:
                            return
                        yield at, value
                    at += len(line)
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be read: {error.strerror}") from None

    def _read(self, line: bytes, number: int) -> Object | None:
        try:
            value = read_json(line)
        except ValueError as error:
            if not line.endswith(b"\n"):  # the last line of a collection that was killed
                self.torn = True
                return None
            raise UsageError(f"{self.path}:{number}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise UsageError(f"{self.path}:{number}: a JSON object is needed, this is {type(value).__name__}")
        return value

    def at(self, offset: int) -> Object:
        """The object at an offset."""
        with open(self.path, "rb") as file:
            file.seek(offset)
            value: Object = read_json(file.readline())
        return value


def read_json(line: bytes) -> JSON:
    """Its value, NaN and the like included, which some servers write; ValueError where it is no JSON."""
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(line)
