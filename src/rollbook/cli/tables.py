"""What goes to standard output: tables for people, aligned plain text for pipes, JSON for programs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from unicodedata import category

from rollbook.core import encode_pretty

Cell = str | int | float | None
"""What stands in a table; None is shown as a dash."""

HUGE = 1e9
UNPRINTABLE_CATEGORIES = ("Cc", "Cf", "Cs")
"""Characters that steer a terminal, turn the direction of writing, or are no text at all."""


def show_json(value: object) -> None:
    """Print a value as JSON."""
    sys.stdout.write(encode_pretty(value).decode())


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table, numbers to the right."""
    cells = list(rows)
    if sys.stdout.isatty():
        _show_rich(columns, cells)
    else:
        print("\n".join(format_plain_table(columns, cells)))


def show_numbers_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """The same for many columns of numbers: on a terminal too narrow for them, each becomes a line."""
    widest = max(map(len, format_plain_table(columns, rows)))
    narrow = sys.stdout.isatty() and widest + 2 * len(columns) > shutil.get_terminal_size().columns
    show_table(*(transpose_table(columns, rows) if narrow else (columns, rows)))


def transpose_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[list[str], list[list[Cell]]]:
    """A table on its side: a line for each column, with its name before it.

    >>> transpose_table(["env", "mean"], [["gsm8k", 0.25], ["sums", 0.5]])
    (['env', 'gsm8k', 'sums'], [['mean', 0.25, 0.5]])
    """
    sides = [[name, *cells] for name, *cells in zip(columns, *rows, strict=True)]
    return [format_cell(cell) for cell in sides[0]], sides[1:]


def format_plain_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """The lines of a table without any markup.

    >>> format_plain_table(["env", "mean"], [["gsm8k", 0.25]])
    ['env     mean', 'gsm8k  0.250']
    """
    texts = [
        [strip_control_characters(name) for name in columns],
        *([format_cell(cell) for cell in row] for row in rows),
    ]
    widths = [max(len(text) for text in column) for column in zip(*texts, strict=True)]
    right = _find_numeric_columns(columns, rows)
    return [
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in texts
    ]


def format_cell(cell: Cell) -> str:
    """A cell as it is shown: fractions with three digits, text on one line."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.3f}" if abs(cell) < HUGE else f"{cell:.4g}"
    return strip_control_characters(str(cell))


def format_interval(bounds: tuple[float, float] | None) -> str:
    """An interval in a cell; where a bound is negative, a dash would be read as its sign.

    >>> format_interval((0.25, 0.5)), format_interval((-0.25, 0.5))
    ('0.250-0.500', '-0.250 to 0.500')
    """
    if bounds is None:
        return "-"
    low, high = map(format_cell, bounds)
    return f"{low} to {high}" if low.startswith("-") else f"{low}-{high}"


def strip_control_characters(text: str) -> str:
    """Text that may go to a terminal: white space as spaces, and without control characters.

    >>> strip_control_characters("a\\tb\\x1b[31mc\\x9b")
    'a b[31mc'
    """
    if text.isprintable():
        return text
    return "".join(" " if c.isspace() else c for c in text if c.isspace() or category(c) not in UNPRINTABLE_CATEGORIES)


def _find_numeric_columns(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> list[bool]:
    return [bool(rows) and all(not isinstance(row[at], str) for row in rows) for at in range(len(columns))]


def _show_rich(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, to_right in zip(columns, _find_numeric_columns(columns, rows), strict=True):
        table.add_column(Text(strip_control_characters(name)), justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    Console().print(table)
