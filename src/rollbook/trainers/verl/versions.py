"""Which verl this works with. Its contracts move between releases, so another one is refused at the start."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rollbook.errors import UsageError

VERL, TESTED = "0.9.", "0.9.1"


def check_verl() -> str:
    """The version that is installed; UsageError if there is none, or one that is not known to work."""
    try:
        found = version("verl")
    except PackageNotFoundError:
        raise UsageError(f"verl is not installed here: pip install verl=={TESTED}") from None
    if not found.startswith(VERL):
        raise UsageError(f"verl {found} is installed, and this works with {VERL}x: pip install verl=={TESTED}")
    return found
