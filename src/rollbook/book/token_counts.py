"""How many tokens a run has used so far, from all its journals: every attempt counts, failed and repeated ones too."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollbook.book.counted_lines import list_journals
from rollbook.book.json_lines import read_line_blocks
from rollbook.core import JSON_ERRORS, TokenCounts, Usage


class _TurnTokens(msgspec.Struct, gc=False):
    cached_tokens: int = 0


class _LineTokens(msgspec.Struct, gc=False):
    usage: Usage = Usage()
    turns: list[_TurnTokens] = []


_decoder = msgspec.json.Decoder(_LineTokens)


class SpentTokens:
    """Counts the tokens in the journals of a run; `refresh` reads only what was written since."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._offsets: dict[Path, int] = {}
        self._prompt = self._cached = self._completion = 0

    @property
    def journals(self) -> int:
        """How many journal files were read."""
        return len(self._offsets)

    def refresh(self) -> TokenCounts:
        """Return the tokens of all durable attempts, whoever made them."""
        for failures in (False, True):
            for path in list_journals(self._run, failures=failures):
                self._read(path)
        return TokenCounts(self._prompt, self._cached, self._completion)

    def _read(self, path: Path) -> None:
        start = self._offsets.setdefault(path, 0)
        if path.stat().st_size <= start:
            return
        for offset, block in read_line_blocks(path, start):
            self._offsets[path] = offset + len(block)
            for line in _decode_lines(bytes(block)):
                self._prompt += line.usage.prompt_tokens
                self._completion += line.usage.completion_tokens
                self._cached += sum(turn.cached_tokens for turn in line.turns)


def _decode_lines(block: bytes) -> list[_LineTokens]:
    """Decode the lines of a block without damaged ones, which a report names."""
    try:
        return _decoder.decode_lines(block)
    except JSON_ERRORS:
        return [line for text in block.splitlines() if (line := _decode_line(text)) is not None]


def _decode_line(text: bytes) -> _LineTokens | None:
    try:
        return _decoder.decode(text)
    except JSON_ERRORS:
        return None
