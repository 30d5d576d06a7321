"""What the gateway costs: processor time per call, relative to a proxy of the same stack that only passes bytes on.

.venv/bin/python benchmarks/gateway.py            about two minutes on two cores
.venv/bin/python benchmarks/gateway.py --quick    a fifth of that

Both stand in front of the same endpoint, which answers as vLLM does, with the ids and logprobs of every token. Rollouts
are conversations of eight calls that grow. The gateway's time has everything in it: opening the rollout, reading and
checking each answer, telling branches apart, and handing out the record. The two are asked in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web
from mock import MODELS, Connection, response  # noqa: UP026 - our own

from engine import Figure, show

TICKS = os.sysconf("SC_CLK_TCK")
KEY = "benchmark"
CALLS = 8
CONCURRENCY = 16
MOST_MS = 1.0
SHAPES = {"short": (200, 50), "long": (8000, 500)}
"""Ids of the prompt and of the answer in each call."""


def completion(prompt: int, sampled: int) -> bytes:
    """A chat completion as vLLM gives it."""
    rows = [{"token": " word", "logprob": -0.5, "bytes": [32, 119], "top_logprobs": []} for _ in range(sampled)]
    choice = {"index": 0, "message": {"role": "assistant", "content": "word " * sampled}, "finish_reason": "stop"}
    choice |= {"logprobs": {"content": rows}, "token_ids": [1000] * sampled}
    usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    body = {"id": "c", "object": "chat.completion", "created": 0, "model": "mock", "choices": [choice], "usage": usage}
    return response(json.dumps({**body, "prompt_token_ids": [1000] * prompt}).encode())


class Fixed(Connection):
    """A connection on which every question has the same answer."""

    def __init__(self, reply: bytes) -> None:
        super().__init__(0.0)
        self._reply = reply

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (request := self.next_request()) is not None:
            self.write(response(LISTED) if request.startswith(b"GET") else self._reply)


LISTED = MODELS.replace(b'"object":"model"', b'"object":"model","owned_by":"vllm"')


async def serve_endpoint(shape: str) -> None:
    """An endpoint, until killed."""
    reply = completion(*SHAPES[shape])
    server = await asyncio.get_running_loop().create_server(lambda: Fixed(reply), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.Event().wait()


async def serve_bare(upstream: str) -> None:
    """The yardstick: aiohttp on both sides, and nothing in between."""
    session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def forward(request: web.Request) -> web.Response:
        headers = {"Content-Type": "application/json"}
        async with session.post(f"{upstream}/chat/completions", data=await request.read(), headers=headers) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")

    app = web.Application(client_max_size=1 << 25)
    app.router.add_post("/v1/chat/completions", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
    await asyncio.Event().wait()


@contextmanager
def served(*words: str) -> Iterator[tuple[str, int]]:
    """A server as a process: its address and its number."""
    environ = {**os.environ, "ROLLBOOK_GATEWAY_KEY": KEY}
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=environ) as child:
        try:
            assert child.stdout
            yield child.stdout.readline().strip(), child.pid
        finally:
            child.kill()


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / TICKS


async def converse(session: aiohttp.ClientSession, base: str, words: int) -> None:
    """Eight calls, each with all that was said before."""
    messages = [{"role": "user", "content": "word " * words}]
    for _ in range(CALLS):
        async with session.post(f"{base}/chat/completions", json={"model": "m", "messages": messages}) as answer:
            assert answer.status == 200, await answer.text()
            said = (await answer.json())["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]


async def through_bare(session: aiohttp.ClientSession, url: str, words: int) -> None:
    """A conversation that nobody records."""
    await converse(session, f"{url}/v1", words)


async def through_gateway(session: aiohttp.ClientSession, url: str, words: int) -> None:
    """A conversation from its opening to its record."""
    headers = {"Authorization": f"Bearer {KEY}"}
    async with session.post(f"{url}/rollout", headers=headers) as answer:
        place = await answer.json()
    await converse(session, place["openai_base_url"], words)
    async with session.delete(f"{url}/rollout/{place['rollout']}", headers=headers) as answer:
        record = await answer.json()
    assert len(record["branches"]) == 1, "the conversation forked"
    assert record["failure"] is None


def measured(through: object, url: str, pid: int, rollouts: int, words: int) -> float:
    """Milliseconds of the server's processor per call."""

    async def main() -> None:
        numbers = iter(range(rollouts))
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

            async def lane() -> None:
                for _ in numbers:
                    await through(session, url, words)

            await asyncio.gather(*(lane() for _ in range(CONCURRENCY)))

    before = cpu_s(pid)
    uvloop.run(main())
    return 1000 * (cpu_s(pid) - before) / (rollouts * CALLS)


def compare(shape: str, rollouts: int, rounds: int) -> Figure:
    """Gateway and bare proxy in turns, in front of the same endpoint."""
    prompt, sampled = SHAPES[shape]
    here = str(Path(__file__))
    with served(here, "--endpoint", shape) as (upstream, _), served(here, "--bare", upstream) as bare:
        command = ["-m", "rollbook", "gateway", "--model", upstream]
        with served(*command) as ours:
            measured(through_bare, *bare, CONCURRENCY, prompt // CALLS)
            measured(through_gateway, *ours, CONCURRENCY, prompt // CALLS)
            pairs = [
                (
                    measured(through_bare, *bare, rollouts, prompt // CALLS),
                    measured(through_gateway, *ours, rollouts, prompt // CALLS),
                )
                for _ in range(rounds)
            ]
    plain, recorded = (statistics.median(side) for side in zip(*pairs, strict=True))
    more = statistics.median(b - a for a, b in pairs)
    detail = f"{recorded:.2f} ms, bare proxy {plain:.2f} ms"
    what = f"a call of {prompt} + {sampled} tokens, above a bare proxy"
    return Figure(what, more, "ms", MOST_MS, detail=detail)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the size")
    parser.add_argument("--endpoint", help=argparse.SUPPRESS)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.endpoint or given.bare:
        uvloop.run(serve_endpoint(given.endpoint) if given.endpoint else serve_bare(given.bare))
        return 0
    figures = [compare(shape, 100 if given.quick else 500, 3) for shape in SHAPES]
    show(figures)
    return int(any("MISSED" in figure.verdict for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
