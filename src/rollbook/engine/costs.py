"""What a run costs while it is in progress: the tokens in its journals at the price of `--price`, and `--max-cost`.

The calls of roles that have a price are part of it.

The cost is that of all workers and all rounds, because it is read from the journals of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rollbook.book import SpentTokens
from rollbook.core import Settings, format_cost, parse_price

READ_EVERY_S = 1.0
JOURNALS_PER_S = 10
"""With many workers each reads the journals of all less often."""


class CostMeter:
    """The cost of a run so far; None without a price. `stop_reason` is set once it is over what is allowed."""

    def __init__(self, run: Path, settings: Settings) -> None:
        self._spent = SpentTokens(run)
        self._price = parse_price(settings.price) if settings.price else None
        self._has_role_prices = any(given.price for given in settings.roles.values())
        self._max_cost = settings.max_cost
        self.cost: float | None = None
        self.stop_reason = ""

    @property
    def is_priced(self) -> bool:
        """Whether tokens of the policy or of a role have a price."""
        return self._price is not None or self._has_role_prices

    def read(self) -> None:
        """Count what is durable now."""
        if not self.is_priced:
            return
        tokens = self._spent.refresh()
        self.cost = (self._price.cost(tokens) if self._price else 0.0) + self._spent.role_cost
        if self._max_cost is not None and self.cost > self._max_cost and not self.stop_reason:
            limit = f"--max-cost {self._max_cost:g}"
            self.stop_reason = f"stopped by {limit} at a cost of {format_cost(self.cost)}: resume with a higher one"

    async def watch(self) -> None:
        """Read again and again until cancelled."""
        while True:
            await asyncio.sleep(max(READ_EVERY_S, self._spent.journals / JOURNALS_PER_S))
            await asyncio.to_thread(self.read)


@asynccontextmanager
async def measure_costs(run: Path, settings: Settings) -> AsyncIterator[CostMeter]:
    """Measure the cost of a run for a context, if its tokens have a price."""
    meter = CostMeter(run, settings)
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
