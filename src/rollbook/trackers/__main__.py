"""The process of one tracker: `python -m rollbook.trackers NAME RUN WORK_FD MESSAGES_FD`.

It follows the run through its files. The work has ended when a line arrives on the first pipe, or when the pipe closes
because the process that works on the run is dead. What has to be reported is written to the second pipe.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from rollbook.engine import TRACKER_END_S, HookLoop, TrackerHooks, find_tracker

ORPHAN_EXIT_CODE = 3


def main(name: str, run: Path, work: int, messages: int) -> None:
    """Log a run until its end."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - the log of this process
        with suppress(OSError):  # nobody is left to read it
            os.write(messages, line.replace("\n", " ").encode() + b"\n")

    loop = HookLoop(run, TrackerHooks(name, find_tracker(name)(), run).hooks, say)
    threading.Thread(target=_watch_work, args=(work, loop), daemon=True).start()
    loop.run()


def _watch_work(work: int, loop: HookLoop) -> None:
    """Wait for the end of the work; without a parent that would kill it, a tracker that hangs ends by itself."""
    told = os.read(work, 4)
    loop.ending.set()
    if not told:
        time.sleep(TRACKER_END_S)
        os._exit(ORPHAN_EXIT_CODE)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
