"""What the event loop of a worker spends its time on, sampled by py-spy: the share of each package in its own frames.

    make profile

20,000 rollouts against the mock endpoint, as in `engine.py`. Only samples of the event loop's thread count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from engine import CONCURRENCY, ROLLBOOK, endpoint, rows

ROLLOUTS = 20_000
SAMPLES_PER_S = 400
EVENT_LOOP = "run_event_loop ("
FILE = re.compile(r"\((?P<file>[^():]+?)(:\d+)?\)$")
C_CODE = "uvloop: the loop itself, sockets and timers"


def record(folder: Path) -> list[tuple[list[str], int]]:
    """Run under py-spy; return the stacks of the event loop's thread with the number of samples of each."""
    with endpoint(20) as url:
        words = ["run", "gsm8k", "-m", url, "--model-name", "mock", "-c", CONCURRENCY, "--data", rows(folder, ROLLOUTS)]
        spy = ["py-spy", "record", "-r", str(SAMPLES_PER_S), "-f", "raw", "-o", str(folder / "stacks"), "--"]
        command = [*spy, *ROLLBOOK, *map(str, words), "-o", str(folder / "run"), "--json"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    lines = (line.rpartition(" ") for line in (folder / "stacks").read_text().splitlines())
    stacks = [(stack.split(";"), int(count)) for stack, _, count in lines]
    return [(frames, count) for frames, count in stacks if any(EVENT_LOOP in frame for frame in frames)]


def name_package(frames: list[str]) -> str:
    """Return the package that owns the innermost frame: a package of Rollbook, a library, or the loop's own C code."""
    found = FILE.search(frames[-1])
    parts = Path(found["file"]).parts if found else ()
    if frames[-1].startswith("Runner.run"):
        return C_CODE
    return ".".join(parts[:2]) if parts[:1] == ("rollbook",) else (parts or ("?",))[0]


def main() -> int:
    if shutil.which("py-spy") is None:
        print("engine_profile: py-spy is not on PATH; use make profile", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="rollbook-profile-") as name:
        stacks = record(Path(name))
    shares: Counter[str] = Counter()
    for frames, count in stacks:
        shares[name_package(frames)] += count
    total = shares.total()
    print(f"{total} samples of the event loop's thread, {ROLLOUTS} rollouts")
    for package, count in shares.most_common(16):
        print(f"{count / total:6.1%}  {package}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
