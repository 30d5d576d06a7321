"""A viewer's server in a thread of its own, and plain requests to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from pathlib import Path

from aiohttp import web

from rollbook.viewer import RunCache, RunFolder
from rollbook.viewer.server import MAX_URL_BYTES, make_app

TOKEN = "the-token"


class Served:
    """Serves a folder for as long as the block."""

    def __init__(self, folder: Path) -> None:
        self._app = make_app(RunCache(RunFolder(folder)), TOKEN)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Served:
        self._thread.start()
        self.port = self._do(self._start())
        self.url = f"http://127.0.0.1:{self.port}/?token={TOKEN}"
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _start(self) -> int:
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.1, max_line_size=MAX_URL_BYTES)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        streams = asyncio.all_tasks() - {asyncio.current_task()}
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer, with the token unless other headers are given."""
        given = headers or {"Authorization": f"Bearer {TOKEN}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): value for name, value in given.items()})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> dict:
        """A JSON answer that must be a good one."""
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def events(self, path: str, count: int) -> list[dict]:
        """The first events of a stream."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer, found = connection.getresponse(), []
        while len(found) < count and (line := answer.readline()):
            if line.startswith(b"data: "):
                found.append(json.loads(line[6:]))
        connection.close()
        return found
