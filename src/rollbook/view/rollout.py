"""The page of a rollout: its line as it was written, the failed tries at it, and the command that plays it again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book.rollouts import with_tokens
from rollbook.core.json import JSON
from rollbook.core.line import FailedLine, ScoredLine
from rollbook.core.turn import TurnLine
from rollbook.errors import BookError, UsageError
from rollbook.tokens import merge
from rollbook.view.following import LocatedTry
from rollbook.view.located import read_line
from rollbook.view.replay import replay
from rollbook.view.snapshot import Snapshot

MOST_TOKENS = 4000
"""So many tokens are shown at once."""


def rollout_page(snapshot: Snapshot, row: int, sample: int, attempt: int | None) -> dict[str, JSON]:
    """A rollout, or with `attempt` one of its failed tries; `raw` is the journal's line, byte for byte."""
    task = snapshot.task(row)
    samples = snapshot.samples(row)
    if sample not in samples:
        raise UsageError(f"sample {sample} of task {task.id!r} was not asked for")
    _, line = _line_of(snapshot, row, sample, attempt)
    tries = snapshot.tries_of(task.id, sample)
    return {
        "version": snapshot.version,
        "task": {"id": task.id, "env": task.env, "asked": len(task.messages)},
        "verifier": {"answer": task.answer, "fields": task.fields},
        "sample": sample,
        "samples": samples,
        "strip": snapshot.strip(row, task.id),
        "scale": snapshot.scale,
        "shown": attempt,
        "raw": None if line is None else line.decode(),
        "tries": [_try(each) for each in tries],
        "replay": replay(snapshot.book, task, sample),
    }


def _try(each: LocatedTry) -> dict[str, JSON]:
    mark = each.mark
    return {
        "round": mark.round,
        "attempt": mark.attempt,
        "final": mark.final,
        "failure": mark.failure,
        "timing": mark.timing,
    }


def _line_of(snapshot: Snapshot, row: int, sample: int, attempt: int | None) -> tuple[Path | None, bytes | None]:
    """The journal and the line: the scored one, else the last failed one; none while it is pending."""
    tries = snapshot.tries_of(snapshot.task(row).id, sample)
    if attempt is not None:
        if attempt >= len(tries):
            raise UsageError(f"there are {len(tries)} failed tries, numbered from 0; {attempt} is none of them")
        return tries[attempt].path, read_line(tries[attempt].path, tries[attempt].begin, tries[attempt].end)
    place = snapshot.located.find(row, sample)
    if place is not None:
        return snapshot.located.path(place), snapshot.located.line(place)
    last = tries[-1] if tries else None
    return (last.path, read_line(last.path, last.begin, last.end)) if last else (None, None)


_kinds = msgspec.json.Decoder(ScoredLine | FailedLine)


def token_page(
    snapshot: Snapshot, row: int, sample: int, attempt: int | None, sequence: int, offset: int
) -> dict[str, JSON]:
    """The exact ids of a rollout as a trainer gets them: one sequence, or several where it forked."""
    path, line = _line_of(snapshot, row, sample, attempt)
    if path is None or line is None:
        raise UsageError("the rollout has not been played yet: there are no tokens")
    turns = _turns(path, line)
    if not any(turn.tokens for turn in turns):
        raise UsageError("no tokens were recorded: the model's server did not report ids, and they are never guessed")
    made = merge(with_tokens(path, turns))
    if sequence >= len(made):
        raise UsageError(f"there are {len(made)} sequences, numbered from 0; {sequence} is none of them")
    held = made[sequence]
    ids = held.prompt_ids + held.response_ids
    mask = [0] * len(held.prompt_ids) + held.mask
    logprobs = [None] * len(held.prompt_ids) + [p if m else None for p, m in zip(held.logprobs, held.mask, strict=True)]
    shown = slice(offset, offset + MOST_TOKENS)
    return {
        "version": snapshot.version,
        "sequence": sequence,
        "sequences": [
            {"prompt": len(s.prompt_ids), "tokens": len(s), "trained": s.trained, "fork": s.fork} for s in made
        ],
        "offset": offset,
        "ids": ids[shown],
        "texts": snapshot.vocabulary.texts(ids[shown]) if snapshot.vocabulary else None,
        "mask": mask[shown],
        "logprobs": logprobs[shown],
    }


def _turns(path: Path, line: bytes) -> list[TurnLine]:
    try:
        turns: list[TurnLine] = _kinds.decode(line).turns
        return turns
    except msgspec.DecodeError as error:
        raise BookError(f"{path}: malformed line ({error}); restore the file from a copy of the run") from None
