"""Draw the learning curve of a training as SVG: .venv/bin/python examples/grpo/plot.py RESULTS > curve.svg"""

import json
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 320, 50, 40, 40
STYLE = """
text { font: 13px sans-serif } .grid { stroke: #d0d7de } .held { stroke: #0969da; fill: #0969da }
.reward { stroke: #bc4c00; fill: none; opacity: .8 }"""
TEXT = '<text fill="#24292f"'
"""The picture has its own background, so that it can be read on pages of any colour."""


def draw(folder: Path) -> str:
    """Return the picture: pass@1 on held-out tasks with intervals, and the mean reward of the groups of each step."""
    held_out = json.loads((folder / "held_out.json").read_text())
    steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    last = max(step["step"] for step in steps)

    def x(step: float) -> float:
        return LEFT + step / last * (WIDTH - LEFT - 20)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value * (HEIGHT - BOTTOM - TOP)

    parts = ["<title>Learning curve</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>']
    for tenth in range(0, 11, 2):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 20}" y1="{y(tenth / 10)}" y2="{y(tenth / 10)}"/>')
        parts.append(f'{TEXT} x="{LEFT - 8}" y="{y(tenth / 10) + 4}" text-anchor="end">{tenth / 10}</text>')
    for step in range(0, last + 1, 20):
        parts.append(f'{TEXT} x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step}</text>')
    line = " ".join(f"{x(step['step']):.1f},{y(step['reward']):.1f}" for step in steps)
    parts.append(f'<polyline class="reward" points="{line}"/>')
    line = " ".join(f"{x(point['step']):.1f},{y(point['pass@1']):.1f}" for point in held_out)
    parts.append(f'<polyline class="held" style="fill: none" stroke-width="2" points="{line}"/>')
    for point in held_out:
        at, (low, high) = x(point["step"]), point["interval"]
        parts.append(f'<line class="held" x1="{at:.1f}" x2="{at:.1f}" y1="{y(low):.1f}" y2="{y(high):.1f}"/>')
        parts.append(f'<circle class="held" cx="{at:.1f}" cy="{y(point["pass@1"]):.1f}" r="4"/>')
    legend = "blue: pass@1 on held-out tasks, 95%; orange: mean reward of the trained groups; by step"
    parts.append(f'{TEXT} x="{LEFT}" y="20">{legend}</text>')
    body = "\n".join(parts)
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return f"{head}\n<style>{STYLE}\n</style>\n{body}\n</svg>\n"


if __name__ == "__main__":
    folder = Path(sys.argv[-1])
    if len(sys.argv) != 2 or not (folder / "held_out.json").exists():
        sys.exit("plot.py: name the folder of a training, which has held_out.json and steps.jsonl")
    sys.stdout.write(draw(folder))
