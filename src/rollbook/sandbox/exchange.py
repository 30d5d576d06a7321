"""One message to a guest and its reply; what the guest asks in between is answered."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from rollbook.core.json import JSON
from rollbook.sandbox.errors import Forged
from rollbook.sandbox.guest import Guest

ANSWER_S = 10.0


class Frame(msgspec.Struct, forbid_unknown_fields=True):
    """What a guest in conversation may say: that it is done with a message, or a question."""

    done: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"null")
    ask: msgspec.Raw = msgspec.Raw(b"")


_frame = msgspec.json.Decoder(Frame)


class Exchange:
    """Each has a word of its own that the reply must repeat: nothing that was written before it can be its reply."""

    def __init__(self, guest: Guest, answer: Callable[[bytes], JSON] | None = None) -> None:
        self._channel, self._answer = guest.channel, answer
        self._word = secrets.token_hex(8)
        self.reply: bytes | None = None

    def send(self, body: JSON, within_s: float) -> None:
        """Give it the message; Forged when something lies on the channel that nobody asked for."""
        if self._channel.unasked:
            raise Forged("it spoke unasked")
        self._channel.send({"turn": self._word, "body": body}, within_s)

    def hear(self) -> bool:
        """Take what is on the channel; true once the reply is there. Forged when it is anything else."""
        for data in self._channel.frames():
            self._take(data)
        return self.reply is not None

    def _take(self, data: bytes) -> None:
        try:
            frame = _frame.decode(data)
        except msgspec.DecodeError as error:
            raise Forged(str(error)) from None
        question = bytes(frame.ask)
        if question and self._answer and self.reply is None:
            self._channel.send({"answer": self._answer(question)}, ANSWER_S)
        elif not question and frame.done == self._word and self.reply is None:
            self.reply = bytes(frame.body)
        else:
            raise Forged("no reply to what it was asked")
