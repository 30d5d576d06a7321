"""`rollbook local`: the embedded model."""

from __future__ import annotations

import sys


def pull() -> None:
    """Download the weights (93 MB, once) and check them."""
    from rollbook.models import weights

    path = weights.pull(lambda line: print(line, file=sys.stderr))
    if not sys.stdout.isatty():  # a person has just been told
        print(path)


SUBCOMMANDS = [pull]
