"""`rollbook local`: the embedded model."""

from __future__ import annotations

import sys


def pull() -> None:
    """Download the weights (93 MB, once) and check them."""
    from rollbook.models import weights

    print(weights.pull(lambda line: print(line, file=sys.stderr)))


SUBCOMMANDS = [pull]
