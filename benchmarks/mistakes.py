"""How long each mistake of the table takes: `.venv/bin/python benchmarks/mistakes.py [--quick] [WORD...]`.

WORDs choose the lines that contain one of them, --quick takes every tenth.

Every command is a process of its own, started as people start it. The table is tests/support/mistakes.py.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from support.mistakes import DEADLINE_S, MISTAKES, RUN_LINE, Mistake, serve_wrong_endpoints, write_files  # noqa: E402


def run(line: str, folder: Path, environ: dict[str, str]) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run a command line; give its seconds and what it said."""
    words = [sys.executable, "-m", "rollbook", *shlex.split(line)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environ}
    began = time.monotonic()
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=10 * DEADLINE_S)
    return time.monotonic() - began, done


def measure(mistake: Mistake, folder: Path, server: str) -> float:
    """Print the seconds of one mistake, with its exit code and its first line."""
    seconds, done = run(mistake.line.replace("{server}", server), folder, dict(mistake.environ))
    lines = done.stderr.splitlines() or [""]
    more = f" (+{len(lines) - 1} lines)" if len(lines) > 1 else ""
    print(f"{seconds:6.2f} s  exit {done.returncode}  {mistake.line}\n          {lines[0]}{more}")
    return seconds


def main() -> None:
    """Measure the whole table, or the lines that contain one of the given words."""
    words = [word for word in sys.argv[1:] if word != "--quick"]
    chosen = [each for each in MISTAKES if not words or any(word in each.line for word in words)]
    chosen = chosen[:: 10 if "--quick" in sys.argv else 1]
    with tempfile.TemporaryDirectory() as name, serve_wrong_endpoints() as server:
        folder = Path(name)
        write_files(folder)
        run(RUN_LINE, folder, {})
        seconds = sorted(measure(each, folder, server) for each in chosen)
    print(f"{len(seconds)} mistakes: median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s")


if __name__ == "__main__":
    main()
