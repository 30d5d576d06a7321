"""`rollbook` with a shorter lease, on a machine that calls itself HOST:  python -m chaos.worker HOST work RUN"""

from __future__ import annotations

import socket
import sys

from chaos.schedule import STALE_S
from rollbook.book import leases
from rollbook.cli.main import main
from rollbook.engine import book_worker, worker

if __name__ == "__main__":
    host = sys.argv[1]
    if host != "here":  # other workers cannot look its pid up, and wait for its heartbeats
        socket.gethostname = lambda: host
    else:  # these give up at once what was in flight on a dead worker; it is marked as lost
        worker.MAX_WORKER_DEATHS = 1
    assert book_worker.HEARTBEAT_S > 1
    assert leases.STALE_S > 10
    assert worker.MAX_WORKER_DEATHS in (1, 3)
    book_worker.HEARTBEAT_S, leases.STALE_S = STALE_S / 10, STALE_S
    main(sys.argv[2:])
