"""How far the judge of a calibration run agrees with people, from the scores that its journal lines hold."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rollbook.book import Book, CountedLines
from rollbook.core import BUILTIN_PREFIX
from rollbook.stats import RatedItem, RaterAgreement, compare_raters

CALIBRATION_TARGET = f"{BUILTIN_PREFIX}rubric_calibration"


class _CalibrationScores(msgspec.Struct, frozen=True):
    judge: list[float]
    human: list[float]
    scale: list[int]


class _CalibrationInfo(msgspec.Struct, frozen=True):
    calibration: _CalibrationScores | None = None


class _CalibrationLine(msgspec.Struct, frozen=True):
    task: str
    sample: int
    attempt: int
    env: str
    reward: float
    parts: dict[str, float]
    info: _CalibrationInfo = _CalibrationInfo()


def measure_calibration(books: Sequence[Book]) -> dict[str, RaterAgreement]:
    """Return by environment how far the judge agrees with people; empty for a run that has no calibration."""
    specs = books[0].manifest.environments
    names = [name for name, spec in specs.items() if spec.target == CALIBRATION_TARGET]
    if not names:
        return {}
    lines = [line for book in books for _, _, line in CountedLines(book, _CalibrationLine) if line.info.calibration]
    return {name: _compare([line for line in lines if line.env == name]) for name in names if lines}


def _compare(lines: Sequence[_CalibrationLine]) -> RaterAgreement:
    scores = [(line, line.info.calibration) for line in lines if line.info.calibration]
    items = [RatedItem(*item) for _, each in scores for item in zip(each.judge, each.human, each.scale, strict=True)]
    equal = sum(line.parts["human_agreement"] * len(each.judge) for line, each in scores) / len(items)
    return compare_raters(items, [(line.reward, line.parts["human"]) for line in lines], equal)
