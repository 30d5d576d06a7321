"""Search in messages and answers: one scan of the counted lines, with progress, until MAX_HITS are found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
import numpy as np

from rollbook.core import JSON, Message
from rollbook.errors import UsageError
from rollbook.stats import Ints
from rollbook.viewer.snapshot import Snapshot
from rollbook.viewer.task_pages import join_model_text

MAX_HITS = 200
BLOCK_BYTES = 4 << 20
EXCERPT_CHARS = 60
MAX_QUERY_CHARS = 1000
_PIECES = re.compile(r'[^"\\()\[\]{}:,/\x00-\x1f\x7f]+')


class _SearchedLine(msgspec.Struct):
    task: str
    sample: int
    reward: float
    messages: list[Message]
    answer: str | None = None


_line_decoder = msgspec.json.Decoder(_SearchedLine)


class SearchStep(msgspec.Struct, frozen=True):
    """The bytes read, the bytes in all, and the hits in this step."""

    done: int
    size: int
    found: list[dict[str, JSON]]


class TextSearch:
    """A search for a text in messages and answers; the case of letters A to Z is ignored."""

    def __init__(self, snapshot: Snapshot, text: str) -> None:
        if not text.strip() or len(text) > MAX_QUERY_CHARS:
            raise UsageError(f"search for a text of 1 to {MAX_QUERY_CHARS} characters")
        self._snapshot, self._text = snapshot, text
        self._needles = make_needles(text)
        self._folded = text.lower()

    def steps(self) -> Iterator[SearchStep]:
        """Yield one step for each block of lines."""
        located = self._snapshot.located
        size = int((located.end - located.begin).sum())
        done, found = 0, 0
        for file in range(len(located.paths)):
            mine = np.flatnonzero(located.file == file)
            for places in self._blocks(mine):
                hits = list(self._search_block(file, places))[: MAX_HITS - found]
                done, found = done + int((located.end[places] - located.begin[places]).sum()), found + len(hits)
                yield SearchStep(done, size, hits)
                if found >= MAX_HITS:
                    return

    def _blocks(self, places: Ints) -> Iterator[Ints]:
        """Yield adjacent lines of one file, some megabytes at a time."""
        if not len(places):
            return
        cuts = self._snapshot.located.end[places] // BLOCK_BYTES
        for block in np.unique(cuts).tolist():
            yield places[cuts == block]

    def _search_block(self, file: int, places: Ints) -> Iterator[dict[str, JSON]]:
        located = self._snapshot.located
        start = int(located.begin[places].min())
        with open(located.paths[file], "rb") as opened:
            opened.seek(start)
            data = opened.read(int(located.end[places].max()) - start).lower()
        if not any(needle in data for needle in self._needles):
            return
        for place in places.tolist():
            low, high = int(located.begin[place]) - start, int(located.end[place]) - start
            if any(data.find(needle, low, high) >= 0 for needle in self._needles) and (hit := self._match_line(place)):
                yield hit

    def _match_line(self, place: int) -> dict[str, JSON] | None:
        """Return the rollout if the text is in its content, not only in the JSON syntax of the line."""
        line = _line_decoder.decode(self._snapshot.located.line(place))
        for text in (line.answer or "", join_model_text(line.messages), *_list_texts(line.messages)):
            at = text.lower().find(self._folded)
            if at >= 0:
                excerpt = text[max(0, at - EXCERPT_CHARS) : at + len(self._text) + EXCERPT_CHARS]
                return {"task": line.task, "sample": line.sample, "reward": line.reward, "excerpt": excerpt}
        return None


def make_needles(text: str) -> tuple[bytes, bytes]:
    """Return bytes that every line with a text contains, however it is encoded: its longest piece that JSON does not
    change, within a string and within JSON in a string, with letters beyond ASCII plain or escaped.

    >>> make_needles('print("Hello")')
    (b'print', b'print')
    """
    piece = max((found.strip() for found in _PIECES.findall(text)), key=len, default="")
    escaped = json.dumps(piece)[1:-1].replace("\\", "\\\\")
    return piece.encode("utf-8", "replace").lower(), escaped.lower().encode()


def _list_texts(messages: list[Message]) -> Iterator[str]:
    """Yield every text of a conversation as it is shown: JSON of tool calls also formatted and by value."""
    for message in messages:
        yield message.text
        yield message.written or ""
        calls = [call.function.arguments for call in message.tool_calls or []]
        for text in [*calls, message.text] if message.role == "tool" else calls:
            yield from _format_json(text)


def _format_json(text: str) -> Iterator[str]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict | list):
        yield json.dumps(value, indent=2, ensure_ascii=False)
        yield from (each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, str))
