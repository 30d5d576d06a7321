"""Who puts up the walls: the one interface behind which providers differ."""

from __future__ import annotations

from typing import Protocol

from rollbook.core.json import JSON
from rollbook.sandbox.folder import Folder
from rollbook.sandbox.limits import Limits
from rollbook.sandbox.memory import Account


class Provider(Protocol):
    """Launches guests to order. `isolation` says which walls are really in force."""

    isolation: tuple[str, ...]

    @property
    def alive(self) -> bool:
        """Whether it takes orders."""

    def account(self, role: str, limits: Limits) -> Account | None:
        """Where a new guest's memory is counted, if it is."""

    def mount(self, folder: Folder, uid: int) -> int:
        """A folder of the host as a guest of this user can mount it, by a descriptor; Refused where it cannot."""

    def order(self, order: dict[str, JSON], handles: list[int]) -> None:
        """Launch a guest with a role of `inner/roles.py`.

        The descriptors are its stdin, stdout, stderr, channel and what else it is to have; then as many as the order
        has `doors`, which it goes through, and what `mount` gave, if the order says so. The last but one is the letter
        to the guest, with its code and files (the order only says whether it is `filled` with any): nobody but the
        guest itself may read it into its memory. The last one is the control line, on which the provider says
        {"begun"} with the pidfd of the guest, or {"failed"}; and at last {"ended"}.
        """

    def answers(self) -> bool:
        """Whether it lives, by its own word: asked when something has died that nobody here had killed."""

    def last_words(self) -> str:
        """What it complained of."""

    def close(self) -> None:
        """End everything in it."""
