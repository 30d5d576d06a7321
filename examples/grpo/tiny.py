"""A model of some ten thousand random weights, and a tokenizer whose tokens are characters."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from model import Model, Shape

CHARACTERS = "0123456789 say"


class Characters:
    """One token for each character that is known; the rest is left out."""

    end, answer = 0, 1

    def render(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Each message ends; then the answer begins."""
        ids = [[*(2 + CHARACTERS.index(c) for c in m["content"] if c in CHARACTERS), self.end] for m in messages]
        return [*itertools.chain(*ids), self.answer]

    def decode(self, ids: Sequence[int]) -> str:
        """Leave out the special tokens."""
        return "".join(CHARACTERS[i - 2] for i in ids if i > 1)


def load() -> tuple[Model, Characters]:
    """Return the model, drawn by PyTorch's seed."""
    return Model(Shape(2 + len(CHARACTERS), width=64, layers=2, heads=4, kv_heads=2, hidden=128)), Characters()
