"""How many tokens a run has used so far, from all its journals: every attempt counts, failed and repeated ones too.

The tokens of roles are counted apart from those of the policy.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.book.counted_lines import list_journals, worker_of_journal
from rollbook.book.json_lines import read_line_blocks
from rollbook.core import JSON_ERRORS, RoleCall, RoleUse, TokenCounts, Usage


class _TurnTokens(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def cached(self) -> int:
        """What was cached of the prompt; some servers report more than all of it."""
        return max(0, min(self.cached_tokens, self.prompt_tokens))


class _LineTokens(msgspec.Struct, gc=False):
    usage: Usage = Usage()
    turns: list[_TurnTokens] = []
    role_calls: list[RoleCall] = []


_decoder = msgspec.json.Decoder(_LineTokens)


class SpentTokens:
    """Counts the tokens in the journals of a run; `refresh` reads only what was written since.

    The journals of the worker `without` are left out: it counts what it writes itself, before it is durable.
    """

    def __init__(self, run: Path, without: str = "") -> None:
        self._run, self._without = run, without
        self._offsets: dict[Path, int] = {}
        self._prompt = self._cached = self._completion = 0
        self.roles: dict[str, RoleUse] = {}
        """The calls of each role."""
        self.uncounted = 0
        """How many scored rollouts have a turn without counts, because the server reported none."""
        self.uncounted_roles = 0
        """How many rollouts have a call of a role with a price, but without counts."""

    @property
    def role_cost(self) -> float:
        """What the calls of roles that have a price cost."""
        return sum(use.cost or 0.0 for use in self.roles.values())

    @property
    def journals(self) -> int:
        """How many journal files were read."""
        return len(self._offsets)

    def refresh(self) -> TokenCounts:
        """Return the tokens of all durable attempts, of every worker."""
        for failures in (False, True):
            for path in list_journals(self._run, failures=failures):
                if not self._without or worker_of_journal(path) != self._without:
                    self._read(path, failures)
        return TokenCounts(self._prompt, self._cached, self._completion)

    def _read(self, path: Path, failures: bool) -> None:
        start = self._offsets.setdefault(path, 0)
        if path.stat().st_size <= start:
            return
        for offset, block in read_line_blocks(path, start):
            self._offsets[path] = offset + len(block)
            for line in _decode_lines(bytes(block)):
                self._prompt += line.usage.prompt_tokens
                self._completion += line.usage.completion_tokens
                self._cached += sum(turn.cached for turn in line.turns)
                for call in line.role_calls:
                    self.roles[call.role] = self.roles.get(call.role, RoleUse()).add(call)
                self.uncounted += not failures and any(
                    not turn.prompt_tokens and not turn.completion_tokens for turn in line.turns
                )
                self.uncounted_roles += any(call.cost is not None and not call.is_counted for call in line.role_calls)


def _decode_lines(block: bytes) -> list[_LineTokens]:
    """Decode the lines of a block without damaged ones, which a report names."""
    try:
        return _decoder.decode_lines(block)
    except JSON_ERRORS:
        return [line for text in block.splitlines() if (line := _decode_line(text)) is not None]


def _decode_line(text: bytes) -> _LineTokens | None:
    with suppress(*JSON_ERRORS):
        return _decoder.decode(text)
    return None
