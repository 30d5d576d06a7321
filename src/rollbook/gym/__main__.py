"""`python -m rollbook.gym`: one server as a child process, started by ResourceServerProcess, never by hand.

The options come through an inherited descriptor: they may contain what must not be visible in a list of processes.
"""

from __future__ import annotations

import os
import sys

import msgspec

from rollbook.errors import RollbookError
from rollbook.gym.server.serve import SERVE_OPTIONS_FD, ServeOptions, serve_gym
from rollbook.processes import become_subreaper, end_with_parent, kill_descendants, publish_ready, run_event_loop


def main() -> None:
    """Serve until a signal arrives, or until the parent is gone."""
    become_subreaper()
    end_with_parent()
    with open(int(os.environ.pop(SERVE_OPTIONS_FD)), "rb") as file:
        options = msgspec.json.decode(file.read(), type=ServeOptions)
    try:
        run_event_loop(lambda: serve_gym(options, publish_ready, log_line))
    except RollbookError as error:
        log_line(str(error))
        sys.exit(error.exit_code)
    finally:
        kill_descendants()  # on every way out: no parent may be left to do it


def log_line(text: str) -> None:
    """Write one line to the log."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
