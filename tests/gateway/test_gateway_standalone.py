"""The gateway for everybody: opening, asking in, reading and ending rollouts over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import msgspec
import pytest

from rollbook.book import write_atomically
from rollbook.core import Limits, Message, Sampling
from rollbook.gateway import standalone as module
from rollbook.gateway.recorder import Record
from rollbook.gateway.standalone import RolloutDefaults
from rollbook.tokens import merge
from support.endpoint import Endpoint
from support.gateways import Gate, Place


def test_rollouts_are_apart_and_their_records_are_handed_out_once() -> None:
    async def main() -> None:
        async with Endpoint(vllm=True, right=1.0) as endpoint, Gate(endpoint.url) as gate:
            one, two = await gate.open(name="first", seed=9), await gate.open()
            assert one.rollout != two.rollout
            assert (await gate.chat(one, "1 + 1?"))[0] == 200
            assert (await gate.chat(two, "2 + 2?"))[0] == 200
            so_far = await gate.record(one)
            assert (so_far.open, so_far.name, so_far.seed) == (True, "first", 9)
            record = await gate.record(one, "DELETE")
            assert not record.open
            (branch,) = record.branches
            assert branch.messages == [Message("user", "1 + 1?"), Message("assistant", "The answer is 2.")]
            assert record.turns[0].ids == [*b"The answer is 2.", 256]
            assert endpoint.bodies[0]["seed"] == 9
            assert (await gate.manage("DELETE", f"/{one.rollout}"))[0] == 404
            status, body = await gate.chat(one, "1 + 1?")
            assert (status, body["error"]["message"]) == (404, "no such rollout, or it has ended")
            assert len((await gate.record(two)).branches[0].turns) == 1

    asyncio.run(main())


def test_sampling_is_the_agents_and_where_it_says_nothing_the_gateways() -> None:
    async def main() -> None:
        terms = RolloutDefaults(Sampling(0.7, 0.9, 99, {"top_k": 20, "min_p": 0.1}))
        async with Endpoint() as endpoint, Gate(endpoint.url, terms=terms) as gate:
            place = await gate.open(seed=4)
            await gate.chat(place, "hi")
            await gate.chat(place, "ho", temperature=0.2, max_tokens=5, top_k=3, stop=["X"], seed=8)
            first, second = endpoint.bodies
            fields = ("temperature", "top_p", "max_tokens", "top_k", "min_p", "seed", "stop")
            assert [first.get(name) for name in fields] == [0.7, 0.9, 99, 20, 0.1, 4, None]
            assert [second.get(name) for name in fields] == [0.2, 0.9, 5, 3, 0.1, 8, ["X"]]

    asyncio.run(main())


def test_agents_side_by_side_with_sub_agents_side_by_side_are_told_apart() -> None:
    async def conversation(gate: Gate, place: Place, system: str) -> None:
        messages: list = [{"role": "system", "content": system}]
        for number in range(3):
            messages.append({"role": "user", "content": f"{number} + {number}?"})
            status, body = await gate.chat(place, *messages)
            assert status == 200, body
            messages.append(body["choices"][0]["message"])

    async def agent(gate: Gate, number: int) -> Record:
        place = await gate.open(name=str(number))
        await asyncio.gather(*(conversation(gate, place, f"{number} {which}") for which in "abc"))
        return await gate.record(place, "DELETE")

    async def main() -> list[Record]:
        async with Endpoint(vllm=True, right=1.0) as endpoint, Gate(endpoint.url) as gate:
            return await asyncio.gather(*(agent(gate, number) for number in range(16)))

    for number, record in enumerate(asyncio.run(main())):
        assert sorted(branch.messages[0].text for branch in record.branches) == [f"{number} {c}" for c in "abc"]
        assert [len(branch.turns) for branch in record.branches] == [3, 3, 3]
        sequences = merge(record.turns)
        assert len(sequences) == 3
        assert sum(s.trained for s in sequences) == sum(len(turn.ids) for turn in record.turns)


def test_a_limit_ends_the_answers_and_is_named() -> None:
    async def main() -> None:
        terms = RolloutDefaults(limits=Limits(max_turns=2, max_tokens_total=100))
        async with Endpoint(delay_s=0.05) as endpoint, Gate(endpoint.url, terms=terms) as gate:
            place = await gate.open()
            answers = await asyncio.gather(*(gate.chat(place, str(n)) for n in range(4)))
            assert sorted(status for status, _ in answers) == [200, 200, 400, 400]
            record = await gate.record(place, "DELETE")
            assert (record.ended, record.failure, len(record.turns)) == ("max_turns", None, 2)
            assert all(body["max_tokens"] <= 100 for body in endpoint.bodies)

    asyncio.run(main())


def test_what_the_upstream_did_wrong_is_a_failure_in_the_record() -> None:
    async def main() -> None:
        async with Endpoint(vllm=True) as endpoint, Gate(endpoint.url) as gate:
            kinds = {"400": 400, "500": 503, "garbage": 502, "mismatch": 502, "null_logprob": 502}
            seen = {}
            for mode, wanted in kinds.items():
                place = await gate.open()
                await endpoint.switch(mode, models="ok", times=1)
                status, body = await gate.chat(place, "hi")
                assert status == wanted, body
                seen[mode] = (await gate.record(place, "DELETE")).failure
                assert body["error"]["code"] == seen[mode].kind
            assert [failure.kind for failure in seen.values()] == [
                "model_rejected",
                "model_unavailable",
                "bad_completion",
                "token_mismatch",
                "nonfinite_logprobs",
            ]

    asyncio.run(main())


def test_after_its_deadline_a_rollout_is_late_and_then_gone() -> None:
    async def main() -> None:
        terms = RolloutDefaults(limits=Limits(rollout_s=0.4))
        async with Endpoint() as endpoint, Gate(endpoint.url, terms=terms) as gate:
            place = await gate.open()
            await gate.chat(place, "hi")
            while (await gate.record(place)).open:
                await asyncio.sleep(0.02)
            assert (await gate.record(place)).failure.kind == "rollout_timeout"
            assert (await gate.chat(place, "ho"))[0] == 404
            while (await gate.manage("GET", f"/{place.rollout}"))[0] != 404:
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_only_so_many_are_open_at_once_and_only_for_whoever_has_the_key() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url, terms=RolloutDefaults(rollouts=1)) as gate:
            place = await gate.open()
            assert (await gate.manage("POST", json={}))[0] == 429
            for method, path in (("POST", ""), ("GET", f"/{place.rollout}"), ("DELETE", f"/{place.rollout}")):
                assert (await gate.manage(method, path, key="guessed"))[0] == 401
            await gate.record(place, "DELETE")
            assert (await gate.manage("POST", json={"name": 3}))[0] == 400
            assert (await gate.manage("POST", json={"seed": -1}))[0] == 400
            assert (await gate.manage("POST"))[0] == 200

    asyncio.run(main())


def test_records_are_written_when_rollouts_end_and_when_the_gateway_does(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with Endpoint(vllm=True) as endpoint, Gate(endpoint.url, out=tmp_path) as gate:
            one, two = await gate.open(), await gate.open()
            await gate.chat(one, "hi")
            await gate.chat(two, "hi")
            await gate.record(one, "DELETE")
            assert [path.stem for path in tmp_path.iterdir()] == [one.rollout]
            return [one.rollout, two.rollout]

    names = asyncio.run(main())
    records = [msgspec.json.decode((tmp_path / f"{name}.json").read_bytes(), type=Record) for name in names]
    assert [record.turns[0].ids for record in records] == [[*b"ok", 256]] * 2
    ended, cut = (json.loads((tmp_path / f"{name}.json").read_text()) for name in names)
    assert ended["failure"] is None
    assert (cut["failure"]["kind"], cut["failure"]["side"]) == ("worker_lost", "infra")
    assert "the gateway was stopped while it was open" in cut["failure"]["message"]


def test_a_disk_that_refuses_costs_nobody_the_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url, out=tmp_path / "gone") as gate:
            place = await gate.open()
            await gate.chat(place, "hi")
            assert len((await gate.record(place, "DELETE")).turns) == 1
            assert "No such file or directory" in gate.said[0]

    asyncio.run(main())


def test_one_that_is_ended_while_another_is_written_down_does_not_end_the_deadlines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, slow = threading.Event(), threading.Event()

    def write(path: Path, data: bytes) -> None:
        if not begun.is_set():
            begun.set()
            slow.wait(30)
        write_atomically(path, data)

    monkeypatch.setattr(module, "write_atomically", write)
    monkeypatch.setattr(module, "SWEEP_S", 0.01)

    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url, out=tmp_path) as gate:
            places = [await gate.open() for _ in range(2)]
            gate.age(*places)
            assert await asyncio.to_thread(begun.wait, 30)
            await gate.record(places[1], "DELETE")
            slow.set()
            late = await gate.open()
            gate.age(late)
            async with asyncio.timeout(30):
                while (await gate.manage("GET", f"/{late.rollout}"))[0] != 404:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(list(tmp_path.glob("*.json"))) == 3
