"""The raw ceiling: an aiohttp client on uvloop that asks, reads the JSON and forgets it."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time

import aiohttp
import msgspec
import uvloop


async def ask_all(url: str, count: int, concurrency: int) -> float:
    """Seconds for so many questions at that concurrency."""
    connector = aiohttp.TCPConnector(limit=concurrency)
    decoder = msgspec.json.Decoder()
    numbers = iter(range(count))
    async with aiohttp.ClientSession(connector=connector) as session:

        async def worker() -> None:
            for number in numbers:
                messages = [{"role": "user", "content": f"What is {number} + {number + 1}?"}]
                body = msgspec.json.encode(
                    {"model": "mock", "messages": messages, "max_tokens": 64, "temperature": 1.0}
                )
                headers = {"Content-Type": "application/json"}
                async with session.post(f"{url}/chat/completions", data=body, headers=headers) as reply:
                    decoder.decode(await reply.read())

        begun = time.perf_counter()
        await asyncio.gather(*itertools.starmap(worker, [()] * concurrency))
        return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--concurrency", type=int, default=128)
    options = parser.parse_args()
    print(uvloop.run(ask_all(options.url, options.count, options.concurrency)))


if __name__ == "__main__":
    main()
