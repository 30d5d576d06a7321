"""`python -m rollbook.clusters.ray.worker RUN SUBMISSION`: the worker that an actor keeps. Never run by hand."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from rollbook.clusters.blame import blame
from rollbook.clusters.duty import Duty
from rollbook.clusters.heed import Heed
from rollbook.clusters.joblog import JobLog
from rollbook.clusters.order import read_order
from rollbook.clusters.pack import check_pack
from rollbook.collect.loop import on_fast_loop
from rollbook.errors import ChildFailed, RollbookError, Shortfall, Stopped
from rollbook.processes.life import die_with_parent

UNFIT = 69
"""The exit code of a worker whose servers do not run on its node: another may do better elsewhere."""


def main(words: list[str]) -> int:
    """Work until nothing is left; every way it can end is an exit code."""
    die_with_parent()
    run, log = Path(words[0]), JobLog()
    try:
        order = read_order(run, int(words[1]))
        Heed(order.profile.grace_s)
        log.note(f"worker on {socket.gethostname()}")
        if order.pack:
            check_pack(run, order.pack)
        verdict = on_fast_loop(Duty(run, order, log).work)
    except KeyboardInterrupt:
        return Stopped.exit_code
    except ChildFailed as error:
        blame(run, socket.gethostname(), str(error))
        sys.stderr.write(f"rollbook: {error}\n")
        return UNFIT
    except RollbookError as error:
        sys.stderr.write(f"rollbook: {error}\n")
        return error.exit_code
    log.stop()
    log.note(verdict or "nothing is left to do")
    return Shortfall.exit_code if verdict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
