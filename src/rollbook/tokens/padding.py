"""Sequences as padded arrays: prompts on the left, responses on the right, as trainers expect them."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rollbook.tokens.sequences import Fork, Sequence

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Ids: TypeAlias = NDArray[numpy.int64]
    Floats: TypeAlias = NDArray[numpy.float32]


@dataclass(frozen=True)
class Batch:
    """B sequences, P the longest prompt, R the longest response; each prompt ends where its response begins.

    `input_ids`, `attention_mask` and `position_ids` are int64 [B, P + R]; `response_mask`, 1 where sampled,
    is int64 [B, R]; `logprobs` is float32 [B, R], 0 on padding. Positions count from the first real token.
    """

    input_ids: Ids
    attention_mask: Ids
    position_ids: Ids
    response_mask: Ids
    logprobs: Floats
    forks: tuple[Fork | None, ...]

    @property
    def prompts(self) -> Ids:
        """Prompts, left-padded: int64 [B, P], a view."""
        return self.input_ids[:, : self._prompt_width]

    @property
    def responses(self) -> Ids:
        """Responses, right-padded: int64 [B, R], a view."""
        return self.input_ids[:, self._prompt_width :]

    @property
    def _prompt_width(self) -> int:
        return int(self.input_ids.shape[1] - self.response_mask.shape[1])

    def sequences(self) -> list[Sequence]:
        """Return the sequences without padding."""
        width = self._prompt_width
        prompt_lengths = self.attention_mask[:, :width].sum(axis=1)
        response_lengths = self.attention_mask[:, width:].sum(axis=1)
        return [
            self._sequence(row, width - int(p), int(r))
            for row, (p, r) in enumerate(zip(prompt_lengths, response_lengths, strict=True))
        ]

    def _sequence(self, row: int, padding: int, length: int) -> Sequence:
        return Sequence(
            self.prompts[row, padding:].tolist(),
            self.responses[row, :length].tolist(),
            self.response_mask[row, :length].tolist(),
            self.logprobs[row, :length].tolist(),
            self.forks[row],
        )


def batch(sequences: Rows[Sequence], pad_id: int) -> Batch:
    """Make one batch of all the sequences, row by row in their order."""
    import numpy as np

    rows = len(sequences)
    width = max((len(s.prompt_ids) for s in sequences), default=0)
    longest = max((len(s.response_ids) for s in sequences), default=0)
    ids = np.full((rows, width + longest), pad_id, np.int64)
    attention = np.zeros((rows, width + longest), np.int64)
    mask = np.zeros((rows, longest), np.int64)
    logprobs = np.zeros((rows, longest), np.float32)
    positions = np.zeros((rows, width + longest), np.int64)
    numbers = np.arange(width + longest)
    for row, s in enumerate(sequences):
        arrays, start, end = s.arrays, width - len(s.prompt_ids), len(s.response_ids)
        last = width + end
        ids[row, start:width] = arrays.prompt_ids
        ids[row, width:last] = arrays.response_ids
        attention[row, start:last] = 1
        positions[row, start:last] = numbers[: last - start]
        positions[row, last:] = max(last - start - 1, 0)
        mask[row, :end] = arrays.mask
        logprobs[row, :end] = arrays.logprobs
    return Batch(ids, attention, positions, mask, logprobs, tuple(s.fork for s in sequences))
