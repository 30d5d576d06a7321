"""What a run costs while it is in progress: the tokens in its journals at the price of `--price`, and `--max-cost`.

The calls of roles that have a price are part of it.

The cost is that of all workers and all rounds: what other workers spent is read from the journals of the run, what this
one spends is counted at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollbook.book import SpentTokens
from rollbook.core import JUDGE, Manifest, Rollout, Settings, TokenCounts, format_cost, parse_price
from rollbook.environments import RunRoles
from rollbook.models import ENDPOINT_KINDS

READ_EVERY_S = 1.0
JOURNALS_PER_S = 10
"""With many workers each reads the journals of all less often."""


class CostMeter:
    """The cost of a run so far; None without a price. `stop_reason` is set once it is over what is allowed.

    `worker` is the one that records its own rollouts. `expected_cost` stands for the cost of a rollout until the first
    one has ended; None if nothing is known about it.
    """

    def __init__(self, run: Path, settings: Settings, worker: str = "", expected_cost: float | None = None) -> None:
        self._spent = SpentTokens(run, without=worker)
        self._price = parse_price(settings.price) if settings.price else None
        self._has_role_prices = any(given.price for given in settings.roles.values())
        self._max_cost, self._workers = settings.max_cost, settings.workers
        self._others = self._own = 0.0
        self._expected, self._has_ended = expected_cost, False
        self.cost: float | None = None
        self.stop_reason = ""

    @property
    def is_priced(self) -> bool:
        """Whether tokens of the policy or of a role have a price."""
        return self._price is not None or self._has_role_prices

    def read(self) -> None:
        """Count what other workers have made durable."""
        if not self.is_priced:
            return
        tokens = self._spent.refresh()
        self._others = (self._price.cost(tokens) if self._price else 0.0) + self._spent.role_cost
        self._add_up()

    def record(self, rollout: Rollout) -> None:
        """Count an attempt of this worker."""
        if not self.is_priced:
            return
        cost = self._measure(rollout)
        self._expected = max(cost, self._expected or 0.0) if self._has_ended else cost
        self._has_ended = True
        self._own += cost
        self._add_up()

    def _measure(self, rollout: Rollout) -> float:
        cached = sum(max(0, min(turn.cached_tokens or 0, turn.prompt_tokens)) for turn in rollout.turns)
        usage = rollout.usage
        tokens = TokenCounts(usage.prompt_tokens, cached, usage.completion_tokens)
        of_roles = sum(call.cost or 0.0 for call in rollout.role_calls)
        return (self._price.cost(tokens) if self._price else 0.0) + of_roles

    def _add_up(self) -> None:
        self.cost = self._others + self._own
        if self._max_cost is not None and self.cost > self._max_cost and not self.stop_reason:
            limit = f"--max-cost {self._max_cost:g}"
            self.stop_reason = f"stopped by {limit} at a cost of {format_cost(self.cost)}: resume with a higher one"

    def admits(self, running: int) -> bool:
        """Return whether one more rollout may start while others run.

        Each may cost as much as the dearest so far, and other workers are taken to have as many. One alone runs as long
        as the limit is not passed.
        """
        if self._max_cost is None:
            return True
        spent = self.cost or 0.0
        if not running or self._expected is None:
            return not running and spent <= self._max_cost
        return spent + (running + 1) * self._workers * self._expected <= self._max_cost

    async def watch(self) -> None:
        """Read again and again until cancelled."""
        while True:
            await asyncio.sleep(max(READ_EVERY_S, self._spent.journals / JOURNALS_PER_S))
            await asyncio.to_thread(self.read)


def describe_unpriced(roles: RunRoles, settings: Settings) -> str:
    """Return a note on roles whose calls `--max-cost` does not count; empty if there are none."""
    models = {
        **({JUDGE: roles.judge} if roles.judge else {}),
        **{role: each.model for role, each in roles.others.items()},
    }
    priced = {role for role, given in settings.roles.items() if given.price}
    free = [role for role, model in models.items() if model.kind in ENDPOINT_KINDS and role not in priced]
    if settings.max_cost is None or not free:
        return ""
    why = f"--max-cost counts no calls of the role {' and '.join(free)}: it has no price"
    return f"{why}; give --role {free[0]}.price=in=1,out=4"


def estimate_cost(manifest: Manifest, settings: Settings) -> float | None:
    """Return what one answer of the most tokens costs, for want of anything better; None without a price for it."""
    if not settings.price:
        return None
    own = [spec.terms.sampling for spec in manifest.environments.values() if spec.terms]
    most = [sampling for sampling in own or [manifest.sampling] if not sampling.omits("max_tokens")]
    if not most:
        return None
    return parse_price(settings.price).cost(TokenCounts(completion=max(each.max_tokens for each in most)))


@asynccontextmanager
async def measure_costs(
    run: Path, settings: Settings, worker: str = "", expected_cost: float | None = None
) -> AsyncIterator[CostMeter]:
    """Measure the cost of a run for a context, if its tokens have a price."""
    meter = CostMeter(run, settings, worker, expected_cost)
    if not meter.is_priced:
        yield meter
        return
    await asyncio.to_thread(meter.read)
    watching = asyncio.create_task(meter.watch(), name="measure costs")
    try:
        yield meter
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
