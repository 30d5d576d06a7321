"""Searching what was said: one scan of the counted lines, with its progress, until enough is found."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from rollbook.core.json import JSON, encode
from rollbook.core.message import Message
from rollbook.errors import UsageError
from rollbook.stats.columns import Ints
from rollbook.view.snapshot import Snapshot
from rollbook.view.tasks import spoken

MOST = 200
BLOCK = 4 << 20
AROUND = 60
LONGEST = 1000


class _Said(msgspec.Struct):
    task: str
    sample: int
    reward: float
    messages: list[Message]
    answer: str | None = None


_said = msgspec.json.Decoder(_Said)


class Step(msgspec.Struct, frozen=True):
    """How much was read of how much, and what was found in it."""

    done: int
    size: int
    found: list[dict[str, JSON]]


class Search:
    """A text to be found in any message or answer, whatever the case of its letters A to Z."""

    def __init__(self, snapshot: Snapshot, text: str) -> None:
        if not text.strip() or len(text) > LONGEST:
            raise UsageError(f"search for a text of 1 to {LONGEST} characters")
        self._snapshot, self._text = snapshot, text
        self._written = encode(_plain(text))[1:-1].lower()
        self._folded = text.lower()

    def steps(self) -> Iterator[Step]:
        """One step a block of lines; the last has everything behind it."""
        located = self._snapshot.located
        size = int((located.end - located.begin).sum())
        done, found = 0, 0
        for file in range(len(located.paths)):
            mine = np.flatnonzero(located.file == file)
            for places in self._blocks(mine):
                hits = list(self._found(file, places))[: MOST - found]
                done, found = done + int((located.end[places] - located.begin[places]).sum()), found + len(hits)
                yield Step(done, size, hits)
                if found >= MOST:
                    return

    def _blocks(self, places: Ints) -> Iterator[Ints]:
        """Lines of one file that lie side by side, some megabytes of them at a time."""
        if not len(places):
            return
        cuts = self._snapshot.located.end[places] // BLOCK
        for block in np.unique(cuts).tolist():
            yield places[cuts == block]

    def _found(self, file: int, places: Ints) -> Iterator[dict[str, JSON]]:
        located = self._snapshot.located
        start = int(located.begin[places].min())
        with open(located.paths[file], "rb") as opened:
            opened.seek(start)
            data = opened.read(int(located.end[places].max()) - start).lower()
        if self._written not in data:
            return
        for place in places.tolist():
            low, high = int(located.begin[place]) - start, int(located.end[place]) - start
            if data.find(self._written, low, high) >= 0 and (hit := self._hit(place)):
                yield hit

    def _hit(self, place: int) -> dict[str, JSON] | None:
        """The rollout, if the text stands in what was said and not only in how the line is written."""
        line = _said.decode(self._snapshot.located.line(place))
        texts = [line.answer or "", *(message.text for message in line.messages), spoken(line.messages)]
        for text in texts:
            at = text.lower().find(self._folded)
            if at >= 0:
                excerpt = text[max(0, at - AROUND) : at + len(self._text) + AROUND]
                return {"task": line.task, "sample": line.sample, "reward": line.reward, "excerpt": excerpt}
        return None


def _plain(text: str) -> str:
    """Text that can be written as JSON."""
    return text.encode("utf-8", "replace").decode()
