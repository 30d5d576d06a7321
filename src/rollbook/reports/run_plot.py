"""The plot of a run: pass@k with its 95% interval, the rewards, and the tokens of its rollouts."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from rollbook.errors import UsageError
from rollbook.reports.report import Report
from rollbook.stats import Columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 30


def draw_run(report: Report, columns: Columns) -> Figure:
    """Return a figure of three panels; it needs no display, and a notebook shows it as the result of a cell."""
    figure = _make_figure()
    pass_axes, reward_axes, token_axes = figure.subplots(1, 3)
    _draw_pass_at(pass_axes, report)
    _draw_histogram(reward_axes, columns.reward, "reward")
    _draw_histogram(token_axes, columns.completion_tokens, "sampled tokens")
    figure.suptitle(f"{report.model}: {report.scored} of {report.requested} rollouts scored")
    return figure


def _make_figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("plot needs matplotlib: pip install 'rollbook[plot]'") from None

    class RunFigure(Figure):
        def _repr_png_(self) -> bytes:
            """Return the picture for a notebook, which shows no figure that pyplot did not make."""
            self.savefig(picture := BytesIO(), format="png")
            return picture.getvalue()

    return RunFigure(figsize=(12, 3.6), layout="constrained")


def _draw_pass_at(axes: Axes, report: Report) -> None:
    """Draw a line for each environment; the band is its interval, where it has one."""
    for name, metrics in report.environments.items():
        ks = sorted(metrics.pass_at)
        axes.plot(ks, [metrics.pass_at[k] for k in ks], marker="o", label=name)
        bounds = {k: each for k in ks if (each := metrics.pass_intervals.get(k)) is not None}
        if bounds:
            lows, highs = zip(*bounds.values(), strict=True)
            axes.fill_between(list(bounds), lows, highs, alpha=0.2)
    axes.set(xlabel="k", ylabel="pass@k", ylim=(-0.02, 1.02))
    if len(report.environments) > 1:
        axes.legend()


def _draw_histogram(axes: Axes, values: object, name: str) -> None:
    axes.hist(values, bins=BINS)  # type: ignore[arg-type]
    axes.set(xlabel=name, ylabel="rollouts")
