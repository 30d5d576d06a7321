"""A pipe that untrusted code writes to."""

from __future__ import annotations

import os

BLOCK = 1 << 16
BLOCKS_MOST = 32


class Stream:
    """A pipe being drained: its head is kept, the rest is counted."""

    def __init__(self, keep: int) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self._keep, self._held = keep, bytearray()
        self.total = 0
        self.open = True

    def drain(self) -> None:
        """Take what is there; of a writer who is faster than we are, no more than a pipe can ever hold."""
        for _ in range(BLOCKS_MOST):
            try:
                data = os.read(self.read, BLOCK)
            except BlockingIOError:
                return
            self.open = bool(data)
            self.total += len(data)
            if len(self._held) < self._keep:
                self._held += data[: self._keep - len(self._held)]
            if len(data) < BLOCK:
                return

    def again(self, keep: int) -> None:
        """Forget what came, and keep this much of what comes."""
        self._keep, self._held, self.total = keep, bytearray(), 0

    @property
    def truncated(self) -> bool:
        """Whether more came than is kept."""
        return self.total > self._keep

    def text(self) -> str:
        """What is kept; bytes that are no text are shown as such."""
        return self._held.decode(errors="replace")

    def abandon(self) -> None:
        """Close both ends: nobody came to write."""
        os.close(self.write)
        self.close()

    def close(self) -> None:
        """Let go."""
        os.close(self.read)
