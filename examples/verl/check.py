"""Whether what requirements.txt pins is what is installed: one line for every difference, and exit code 2."""

import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

PINS = Path(__file__).with_name("requirements.txt")


def wrong(line: str) -> str:
    """What is wrong with one of the pinned packages; empty if it is as it should be."""
    wanted = Requirement(line)
    try:
        found = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name} is not installed, and {line} is needed: pip install '{line}'"
    if found.partition("+")[0] not in wanted.specifier:
        return f"{wanted.name} {found} is installed, and {line} is needed: pip install '{line}'"
    return ""


pinned = [line for line in PINS.read_text().splitlines() if line and not line.startswith("#")]
found = [why for why in map(wrong, pinned) if why]
sys.stderr.write("".join(f"{why}\n" for why in found))
sys.exit(2 if found else 0)
