"""Charts as SVG text: axes, bars, dots, lines and bands, coloured by the page's style sheet.

Written here and not taken from a library: the report needs six static charts in a file that runs no script, follows the
reader's light or dark theme and opens from disk. Whatever draws that in a browser is larger than all of Rollbook.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 520, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 44


@dataclass(frozen=True)
class Axis:
    """A range of values with a name; `log` spaces them by their logarithm, `ticks` says where to write numbers."""

    name: str
    low: float
    high: float
    log: bool = False
    ticks: Sequence[float] | None = None

    def share(self, value: float) -> float:
        """How far along the axis a value lies, from 0 to 1."""
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return 0.5 if high == low else (at - low) / (high - low)

    @property
    def marks(self) -> list[float]:
        """Where numbers are written."""
        return list(self.ticks) if self.ticks is not None else round_numbers(self.low, self.high)


def round_numbers(low: float, high: float, about: int = 5) -> list[float]:
    """About so many round numbers in a range.

    >>> round_numbers(0, 1), round_numbers(3, 1180)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [200.0, 400.0, 600.0, 800.0, 1000.0])
    """
    if not high > low or not math.isfinite(high - low):
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    step = next(power * nice for nice in (1, 2, 5, 10) if (high - low) / (power * nice) <= about + 1)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]


@dataclass
class Chart:
    """A chart in the making; things drawn later lie above."""

    title: str
    x: Axis
    y: Axis
    _drawn: list[str] = field(default_factory=list)

    def _x(self, value: float) -> str:
        return f"{LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT):.1f}"

    def _y(self, value: float) -> str:
        return f"{HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM):.1f}"

    def bar(self, low: float, high: float, size: float, said: str) -> None:
        """A bar over a range of x, from the bottom up to `size`."""
        left, right, top, bottom = (float(v) for v in (self._x(low), self._x(high), self._y(size), self._y(self.y.low)))
        place = f'x="{left + 0.5:.1f}" y="{top:.1f}" width="{max(right - left - 1, 1):.1f}" height="{bottom - top:.1f}"'
        self._drawn.append(f'<rect class="mark" {place}><title>{escape(said)}</title></rect>')

    def dots(self, points: Iterable[tuple[float, float, str]]) -> None:
        """A dot at each (x, y), with what to say about it."""
        for x, y, said in points:
            place = f'cx="{self._x(x)}" cy="{self._y(y)}"'
            self._drawn.append(f'<circle class="dot" {place} r="2.5"><title>{escape(said)}</title></circle>')

    def line(self, points: Sequence[tuple[float, float]], style: str, name: str) -> None:
        """A line through points, marked where they are."""
        path = " ".join(f"{self._x(x)},{self._y(y)}" for x, y in points)
        self._drawn.append(f'<polyline class="line {style}" points="{path}"/>')
        for x, y in points:
            said = escape(f"{name}@{x:g} = {y:.3f}")
            self._drawn.append(f'<circle class="point {style}" cx="{self._x(x)}" cy="{self._y(y)}" r="3">')
            self._drawn.append(f"<title>{said}</title></circle>")

    def band(self, points: Sequence[tuple[float, float, float]]) -> None:
        """The area between two lines, from (x, low, high)."""
        upper = [f"{self._x(x)},{self._y(high)}" for x, _, high in points]
        lower = [f"{self._x(x)},{self._y(low)}" for x, low, _ in reversed(points)]
        self._drawn.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')

    def svg(self) -> str:
        """The whole chart."""
        frame = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title, quote=True)}"'
        return f"<svg {frame}>{''.join([*self._grid(), *self._drawn, *self._names()])}</svg>"

    def _grid(self) -> Iterable[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        for value in self.y.marks:
            at = self._y(value)
            yield f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{right}" y2="{at}"/>'
            yield f'<text class="tick end" x="{LEFT - 6}" y="{float(at) + 3.5:.1f}">{number(value)}</text>'
        for value in self.x.marks:
            yield f'<text class="tick middle" x="{self._x(value)}" y="{bottom + 15}">{number(value)}</text>'
        yield f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'

    def _names(self) -> Iterable[str]:
        middle = (LEFT + WIDTH - RIGHT) / 2
        yield f'<text class="name middle" x="{middle:.0f}" y="{HEIGHT - 8}">{escape(self.x.name)}</text>'
        half = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'transform="rotate(-90 12 {half:.0f})"'
        yield f'<text class="name middle" x="12" y="{half:.0f}" {turned}>{escape(self.y.name)}</text>'


def number(value: float) -> str:
    """A number beside an axis.

    >>> number(0.25), number(20000), number(1.5e6)
    ('0.25', '20k', '1.5M')
    """
    if abs(value) >= 1e12:
        return f"{value:.3g}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):g}{letter}"
    return f"{value:g}"
