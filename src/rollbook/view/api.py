"""What the pages ask for, as JSON.

    GET /api/runs                                      every book of the folder
    GET /api/run?run=                                  the numbers and charts of one
    GET /api/tasks?run=&keep=&sort=&desc=&offset=&limit=   a piece of its table
    GET /api/task?run=&task=&offset=                   the samples of a task
    GET /api/rollout?run=&task=&sample=&attempt=       one rollout, or a failed try at it
    GET /api/tokens?run=&task=&sample=&attempt=&sequence=&offset=   its exact tokens
    GET /api/compare?a=&b=&common=&offset=&limit=      two runs
    GET /api/search?run=&text=                         a stream of progress and finds
    GET /api/live?run=                                 a stream that says when there is something new

A request that cannot be answered gets `{"error": one line}`, and no path ever comes from a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
from aiohttp import web

from rollbook.core.json import JSON, encode
from rollbook.errors import RollbookError, UsageError
from rollbook.view.folder import readable
from rollbook.view.guard import HEADERS, Handler, refusal
from rollbook.view.numbers import run_page
from rollbook.view.opened import Shelf
from rollbook.view.paired import compare_page
from rollbook.view.rollout import rollout_page, token_page
from rollbook.view.runs import Runs
from rollbook.view.search import Search
from rollbook.view.tasks import task_page, task_rows

PAGE = 50
MOST_ROWS = 500
FARTHEST = 1 << 40
EVERY_S = 1.0
LISTED = 3
"""The list of runs is looked at more rarely than one run: it is longer."""

STREAMS = 32
T = TypeVar("T")


class API:
    """Answers from the books of one shelf."""

    def __init__(self, shelf: Shelf, every_s: float = EVERY_S) -> None:
        self._shelf, self._runs, self._every_s = shelf, Runs(shelf), every_s
        self._streams = 0

    def add_to(self, app: web.Application, place: str) -> None:
        """Add the routes below a place."""
        answers: dict[str, Callable[[Query], JSON]] = {
            "runs": self._list,
            "run": lambda q: run_page(q.text("run"), self._shelf.look(q.text("run"))),
            "tasks": self._tasks,
            "task": self._task,
            "rollout": self._rollout,
            "tokens": self._tokens,
            "compare": self._compare,
        }
        for name, answer in answers.items():
            app.router.add_get(f"{place}api/{name}", answering(answer))
        app.router.add_get(f"{place}api/search", self._streaming(self._search), allow_head=False)
        app.router.add_get(f"{place}api/live", self._streaming(self._live), allow_head=False)

    def _list(self, query: Query) -> JSON:
        folder = self._shelf.folder
        return {"folder": folder.name, "single": folder.single, "runs": self._runs.rows()}

    def _tasks(self, query: Query) -> JSON:
        keep, sort = query.text("keep", ""), query.text("sort", "")
        offset, limit = query.whole("offset", 0), query.whole("limit", PAGE, MOST_ROWS)
        return task_rows(self._shelf.look(query.text("run")), keep, sort, query.flag("desc"), offset, limit)

    def _task(self, query: Query) -> JSON:
        snapshot = self._shelf.look(query.text("run"))
        return task_page(snapshot, snapshot.row(query.text("task")), query.whole("offset", 0))

    def _rollout(self, query: Query) -> JSON:
        snapshot = self._shelf.look(query.text("run"))
        row, sample = snapshot.row(query.text("task")), query.whole("sample")
        return rollout_page(snapshot, row, sample, query.maybe("attempt"))

    def _tokens(self, query: Query) -> JSON:
        snapshot = self._shelf.look(query.text("run"))
        row, sample = snapshot.row(query.text("task")), query.whole("sample")
        sequence, offset = query.whole("sequence", 0), query.whole("offset", 0)
        return token_page(snapshot, row, sample, query.maybe("attempt"), sequence, offset)

    def _compare(self, query: Query) -> JSON:
        a, b = self._shelf.look(query.text("a")), self._shelf.look(query.text("b"))
        offset, limit = query.whole("offset", 0), query.whole("limit", PAGE, MOST_ROWS)
        return compare_page(a, b, query.flag("common"), offset, limit)

    def _streaming(self, stream: Callable[[Query, web.StreamResponse], Awaitable[None]]) -> Handler:
        """A handler of server-sent events; there is room for so many at once."""

        async def answer(request: web.Request) -> web.StreamResponse:
            if self._streams >= STREAMS:
                return refusal(429, "too many pages are open: close some")
            response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            self._streams += 1
            try:
                await response.prepare(request)
                await stream(Query(request), response)
            except ConnectionError:
                pass  # the page was closed
            except (RollbookError, OSError, msgspec.DecodeError, UnicodeError) as error:
                await send(response, {"error": readable(str(error))})
            finally:
                self._streams -= 1
            return response

        return answer

    async def _search(self, query: Query, response: web.StreamResponse) -> None:
        search = await asyncio.to_thread(lambda: Search(self._shelf.look(query.text("run")), query.text("text")))
        steps = search.steps()
        while (step := await asyncio.to_thread(_next, steps)) is not None:
            await send(response, step)
        await send(response, {"end": True})

    async def _live(self, query: Query, response: web.StreamResponse) -> None:
        """Say when something has changed; the page then asks for what it shows."""
        single = bool(query.text("run", ""))
        look, every_s = (self._changes, self._every_s) if single else (self._listed, LISTED * self._every_s)
        held: JSON = None
        while True:
            now = await asyncio.to_thread(look, query)
            await (send(response, now) if now != held else response.write(b": still here\n\n"))
            held = now
            await asyncio.sleep(every_s)

    def _changes(self, query: Query) -> JSON:
        """What the page would be given now: whoever asks after this event gets no older run."""
        snapshot = self._shelf.look(query.text("run"))
        return {"version": snapshot.version, "state": snapshot.state}

    def _listed(self, query: Query) -> JSON:
        return {"runs": self._runs.rows()}


class Query:
    """The parameters of a request, each with its bounds."""

    def __init__(self, request: web.Request) -> None:
        self._given = request.query

    def text(self, name: str, default: str | None = None) -> str:
        """A parameter as it is; one without a default must be given."""
        value = self._given.get(name, default)
        if value is None:
            raise UsageError(f"the request does not say which {name}")
        return value

    def whole(self, name: str, default: int | None = None, most: int = FARTHEST) -> int:
        """A number from 0 up."""
        text = self.text(name, None if default is None else str(default))
        if not (text.isascii() and text.isdigit()) or len(text) > 15 or int(text) > most:
            raise UsageError(f"{name}={text[:40]}: write a number from 0 to {most}")
        return int(text)

    def maybe(self, name: str) -> int | None:
        """A number that need not be given."""
        return self.whole(name) if self._given.get(name) else None

    def flag(self, name: str) -> bool:
        """Whether something is wanted."""
        return self._given.get(name, "") in ("1", "true")


def answering(answer: Callable[[Query], JSON]) -> Handler:
    """A handler that works in a thread of its own and says in one line what cannot be answered."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            body = await asyncio.to_thread(lambda: encode(answer(Query(request))))
        except UsageError as error:
            return refusal(400, readable(str(error)))
        except (RollbookError, OSError, msgspec.DecodeError, UnicodeError) as error:
            return refusal(409, readable(str(error)))
        return web.Response(body=body, content_type="application/json", headers=HEADERS)

    return handle


async def send(response: web.StreamResponse, value: JSON) -> None:
    """One event."""
    await response.write(b"data: " + encode(value) + b"\n\n")


def _next(steps: Iterator[T]) -> T | None:
    return next(steps, None)
