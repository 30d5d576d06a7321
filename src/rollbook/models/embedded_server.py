"""The embedded model's server process: `python -m rollbook.models.embedded_server`, started by EmbeddedModel.

llama.cpp's own HTTP server, in a process of its own because it cannot be stopped otherwise and because we do not
control what it prints and how it crashes. It binds a free port, publishes it, and dies with its parent. Users never
start it by hand.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

from rollbook.processes import die_with_parent, publish_ready

MAX_THREADS = 8
"""A model of 135M parameters gains nothing from more threads."""

HTTP_THREADS = 64
"""Each open connection needs one."""


def main() -> None:
    """Serve until killed."""
    die_with_parent()
    parser = argparse.ArgumentParser(prog="python -m rollbook.models.embedded_server")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens for each slot")
    parser.add_argument("--threads", type=int, default=0, help="0: the cores that are idle now")
    serve(parser.parse_args())


def serve(args: argparse.Namespace) -> None:
    """Load the weights, publish the address, wait."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.weights
    params.port = 0
    params.n_parallel = args.slots
    params.n_ctx = args.slots * args.context
    params.n_threads_http = HTTP_THREADS
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads or count_idle_cores()
    params.verbosity = 1
    params.ui = False
    server = xllamacpp.Server(params)
    publish_ready({"url": server.listening_address})
    while True:
        signal.pause()


def count_idle_cores(sample_s: float = 0.2) -> int:
    """Return the number of threads to use: a thread that shares its core makes all the others wait for it."""
    cores = (
        min(len(os.sched_getaffinity(0)), _read_cpu_quota())
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
    try:
        before = _read_cpu_ticks()
        time.sleep(sample_s)
        after = _read_cpu_ticks()
    except OSError:
        return min(cores, MAX_THREADS)
    idle, total = after[0] - before[0], after[1] - before[1]
    return max(1, min(MAX_THREADS, round(cores * idle / max(total, 1))))


def _read_cpu_ticks() -> tuple[int, int]:
    fields = [int(n) for n in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)


def _read_cpu_quota() -> int:
    """Return the whole cores that the control group grants; all cores if it sets no limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return os.cpu_count() or 1


if __name__ == "__main__":
    main()
