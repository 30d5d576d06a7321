"""Draw the output of a command as a picture of a terminal.

python website/terminal_picture.py docs/pictures/terminal.svg rollbook run sums.py:Sums -n 8 -k 4
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

CHARACTER_WIDTH, LINE_HEIGHT, MARGIN, BAR = 7.8, 18, 16, 30
BACKGROUND, TEXT, PROMPT = "#263238", "#eceff1", "#80cbc4"


def draw_terminal(command: str, output: str) -> str:
    """Return the picture as SVG: a window with the command and its output."""
    lines = [f"$ {command}", *output.rstrip().splitlines()]
    width = round(max(map(len, lines)) * CHARACTER_WIDTH) + 2 * MARGIN
    height = BAR + len(lines) * LINE_HEIGHT + 2 * MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="13">'
        f"<title>{escape(command)}</title>"
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>'
    )
    dots = "".join(f'<circle cx="{18 + 18 * i}" cy="16" r="5" fill="#607d8b"/>' for i in range(3))
    return "\n".join([head + dots, *(_draw_line(i, line) for i, line in enumerate(lines)), "</svg>", ""])


def _draw_line(number: int, line: str) -> str:
    y = BAR + MARGIN + (number + 0.5) * LINE_HEIGHT
    fill = TEXT if number else PROMPT
    return f'<text x="{MARGIN}" y="{y:g}" fill="{fill}" xml:space="preserve">{escape(line)}</text>'


def main() -> None:
    """Run the command and write the picture."""
    path, *command = sys.argv[1:]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    Path(path).write_text(draw_terminal(shlex.join(command), done.stdout))


if __name__ == "__main__":
    main()
