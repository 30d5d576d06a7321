"""`python -m rollbook.wire.gym`: one server as a child, started by ResourceServerProcess, never by hand.

What to serve comes by an inherited descriptor: it may hold what must not be seen in a list of processes.
"""

from __future__ import annotations

import os
import sys

import msgspec

from rollbook.collect.loop import on_fast_loop
from rollbook.errors import RollbookError
from rollbook.processes.life import keep_orphans
from rollbook.processes.ready import publish
from rollbook.processes.tree import end_with_parent, kill_descendants
from rollbook.wire.gym.serve import Serving, serve_gym

SERVING_FD = "ROLLBOOK_SERVING_FD"


def main() -> None:
    """Serve until told to stop, or until the parent is gone."""
    keep_orphans()
    end_with_parent()
    with open(int(os.environ.pop(SERVING_FD)), "rb") as file:
        asked = msgspec.json.decode(file.read(), type=Serving)
    try:
        on_fast_loop(lambda: serve_gym(asked, publish, say))
    except RollbookError as error:
        say(str(error))
        sys.exit(error.exit_code)
    finally:
        kill_descendants()  # however it ends: there may be no parent left to see to them


def say(line: str) -> None:
    """Into the log."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
