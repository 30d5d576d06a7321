"""The cost of the viewer: the first page of a big run, relative to an orjson pass over its lines; pages, filters, sort.

The first page is what the page of a run asks for: its numbers and charts, and the first rows of its table. The first
time nothing is kept in RUN/index; afterwards it is, both for a server just started and for one that has the book open.

.venv/bin/python benchmarks/view.py            100,000 rollouts (6,250 tasks x 16), about 200 MB: a minute
.venv/bin/python benchmarks/view.py --quick    a tenth of that, without the bounds of time, which do not hold there
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from bigbook import big_book

from engine import ROLLBOOK, Figure, show
from rollbook.viewer.export import WEB_FOLDER

ORJSON = """
import glob, sys, time, orjson
begun = time.perf_counter()
for path in glob.glob(f"{sys.argv[1]}/journals/*.jsonl"):
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
print(time.perf_counter() - begun)
"""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--remote-debugging-port=0"]
SAID = 1250
FIRST = ("/api/run?run={run}", "/api/tasks?run={run}&limit=50")
ASKED = {
    "sort by mean": "sort=mean&desc=1",
    "sort by majority, a text": "sort=majority",
    "filter by numbers": "keep=" + quote("0 < mean < 1 and n >= 8 and completion_tokens > 100"),
    "filter by a field, sort by std": "sort=std&desc=1&keep=" + quote("level == 2 and mean < 0.5"),
    "the last page": "sort=mean&offset=6200",
}


class Server:
    """`rollbook view` in a process of its own."""

    def __init__(self, run: Path) -> None:
        self._run = run

    def __enter__(self) -> Server:
        command = [*ROLLBOOK, "view", str(self._run), "--no-browser"]
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._child.stdout is not None
        self.address = self._child.stdout.readline().strip()
        return self

    def __exit__(self, *_: object) -> None:
        self._child.send_signal(signal.SIGINT)
        self._child.wait(30)

    def ask(self, path: str) -> float:
        """Seconds until an answer is there."""
        address = urlsplit(self.address)
        begun = time.perf_counter()
        connection = http.client.HTTPConnection(address.netloc, timeout=600)
        token = address.query.removeprefix("token=")
        connection.request("GET", path.format(run=self._run.name), headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(body.decode())
        return time.perf_counter() - begun

    def first_page(self) -> float:
        """Seconds for all that the page of a run shows."""
        return sum(map(self.ask, FIRST))


def pages(run: Path, rounds: int, bound: bool) -> Iterator[Figure]:
    """First and later opens relative to the pass of orjson, taken in turns; then single requests."""
    scan(run)  # so that the lines are in the page cache
    passes, first, second, again = [], [], [], []
    for _ in range(rounds):
        passes.append(scan(run))
        shutil.rmtree(run / "index", ignore_errors=True)
        with Server(run) as server:
            first.append(server.first_page())
            again.append(server.first_page())
        with Server(run) as server:
            second.append(server.first_page())
    ratio = statistics.median(ours / scanned for ours, scanned in zip(first, passes, strict=True))
    detail = f"{statistics.median(first):.2f} s, the pass {statistics.median(passes):.2f} s"
    yield Figure(
        "first page, first time, relative to an orjson pass", ratio, "x", 2.0 if bound else None, detail=detail
    )
    yield Figure("first page, of a server just started", 1000 * statistics.median(second), "ms", 300)
    yield Figure("first page, once more", 1000 * statistics.median(again), "ms", 300)
    with Server(run) as server:
        server.first_page()
        for what, query in ASKED.items():
            times = [server.ask(f"/api/tasks?run={{run}}&limit=50&{query}") for _ in range(rounds)]
            yield Figure(what, 1000 * statistics.median(times), "ms", 300)
        one = server.ask("/api/rollout?run={run}&task=sum-321&sample=7")
        yield Figure("one rollout by its place", 1000 * one, "ms", 300)
        yield from heap(server)


def scan(run: Path) -> float:
    """Seconds of one orjson pass over the journals."""
    return float(subprocess.check_output([sys.executable, "-c", ORJSON, str(run)]))


def heap(server: Server) -> Iterator[Figure]:
    """What the page holds in a real browser."""
    program = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if program is None:
        print("no chromium on the PATH: the heap of the browser was not measured", file=sys.stderr)
        return
    with chromium(program) as port:
        yield Figure("browser heap", asyncio.run(_heap(port, server.address)) / 1e6, "MB", 150)


@contextmanager
def chromium(program: str) -> Iterator[int]:
    """A browser; gives the port at which it can be asked."""
    with tempfile.TemporaryDirectory(prefix="rollbook-chromium-", ignore_cleanup_errors=True) as folder:
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert child.stderr is not None
        try:
            line = next(line for line in child.stderr if "DevTools listening on" in line)
            yield int(urlsplit(line.split()[-1]).port or 0)
        finally:
            child.terminate()
            child.communicate(timeout=30)


async def _heap(port: int, address: str) -> float:
    """Bytes in use after the page was opened and its table was sorted and turned."""
    async with aiohttp.ClientSession() as session:
        async with session.put(f"http://127.0.0.1:{port}/json/new?{address}") as answer:
            target = await answer.json(content_type=None)
        async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            asked = itertools.count(1)

            async def do(method: str, **given: object) -> dict[str, Any]:
                number = next(asked)
                await socket.send_json({"id": number, "method": method, "params": given})
                while (message := await socket.receive_json(timeout=60)).get("id") != number:
                    pass
                return dict(message.get("result", {}))  # none while the page is being loaded

            async def shown() -> bool:
                found = await do("Runtime.evaluate", expression="document.querySelectorAll('tr[data-open]').length")
                return bool(found.get("result", {}).get("value"))

            for more in ("", "?sort=mean&desc=1", "?page=3", "?page=9"):
                if more:
                    await do("Runtime.evaluate", expression=f"location.hash = location.hash.split('?')[0] + '{more}'")
                await asyncio.sleep(2)
                async with asyncio.timeout(60):
                    while not await shown():
                        await asyncio.sleep(0.2)
            await do("HeapProfiler.collectGarbage")
            return float((await do("Runtime.getHeapUsage"))["usedSize"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    parser.add_argument("--book", type=Path, help="a book made before; else one is made and thrown away")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as name:
        run = given.book or big_book(Path(name) / "big", 625 if given.quick else 6_250, 16, said=SAID).path
        figures = list(pages(run.absolute(), 1 if given.quick else 3, not given.quick))
    size = sum(path.stat().st_size for path in WEB_FOLDER.rglob("*") if path.is_file())
    figures.append(Figure("assets of the page", size / 1000, "KB", 600))
    show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
