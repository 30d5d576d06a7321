"""`python -m rollbook.clusters.ray.worker RUN SUBMISSION`: the worker process of an actor. Never run by hand."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from rollbook.clusters.job_files import read_order, report_bad_node
from rollbook.clusters.job_process import JobLog, SignalHandler, run_entry_point
from rollbook.clusters.node import NodeWorker
from rollbook.clusters.packing import check_pack
from rollbook.clusters.ray.actors import SERVER_FAILED_CODE
from rollbook.errors import ChildFailed, Shortfall
from rollbook.processes import die_with_parent, run_event_loop


def main(words: list[str]) -> int:
    """Work until nothing is left; return the exit code."""
    die_with_parent()
    run, log = Path(words[0]), JobLog()
    try:
        order = read_order(run, int(words[1]))
        SignalHandler(order.profile.grace_s)
        log.note(f"worker on {socket.gethostname()}")
        if order.pack:
            check_pack(run, order.pack)
        verdict = run_event_loop(NodeWorker(run, order, log).work)
    except ChildFailed as error:
        report_bad_node(run, socket.gethostname(), str(error))
        sys.stderr.write(f"rollbook: {error}\n")
        return SERVER_FAILED_CODE
    log.stop()
    log.note(verdict or "nothing is left to do")
    return Shortfall.exit_code if verdict else 0


if __name__ == "__main__":
    run_entry_point(main)
