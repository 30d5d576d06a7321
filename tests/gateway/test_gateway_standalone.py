"""The standalone gateway: opening, calling, reading and ending rollouts over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import msgspec
import pytest

from rollbook.book import write_atomically
from rollbook.core import Limits, Message, Sampling
from rollbook.errors import UsageError
from rollbook.gateway import standalone as module
from rollbook.gateway.recorder import Record
from rollbook.gateway.standalone import RolloutDefaults
from rollbook.processes import expiring_sessions
from rollbook.tokens import merge
from support.endpoint import Endpoint
from support.gateways import Gate, Place


def test_rollouts_are_apart_and_their_records_are_handed_out_once() -> None:
    async def main() -> None:
        async with Endpoint(vllm=True, right=1.0) as endpoint, Gate(endpoint.url) as gateway:
            one, two = await gateway.open(name="first", seed=9), await gateway.open()
            assert one.rollout != two.rollout
            assert (await gateway.chat(one, "1 + 1?"))[0] == 200
            assert (await gateway.chat(two, "2 + 2?"))[0] == 200
            so_far = await gateway.record(one)
            assert (so_far.open, so_far.name, so_far.seed) == (True, "first", 9)
            record = await gateway.record(one, "DELETE")
            assert not record.open
            (branch,) = record.branches
            assert branch.messages == [Message("user", "1 + 1?"), Message("assistant", "The answer is 2.")]
            assert record.turns[0].ids == [*b"The answer is 2.", 256]
            assert endpoint.bodies[0]["seed"] == 9
            assert (await gateway.manage("DELETE", f"/{one.rollout}"))[0] == 404
            status, body = await gateway.chat(one, "1 + 1?")
            assert (status, body["error"]["message"]) == (404, "no such rollout, or it has ended")
            assert len((await gateway.record(two)).branches[0].turns) == 1

    asyncio.run(main())


def test_sampling_is_the_agents_and_where_it_says_nothing_the_gateways() -> None:
    async def main() -> None:
        defaults = RolloutDefaults(Sampling(0.7, 0.9, 99, {"top_k": 20, "min_p": 0.1}))
        async with Endpoint() as endpoint, Gate(endpoint.url, defaults=defaults) as gateway:
            place = await gateway.open(seed=4)
            await gateway.chat(place, "hi")
            await gateway.chat(place, "ho", temperature=0.2, max_tokens=5, top_k=3, stop=["X"], seed=8)
            first, second = endpoint.bodies
            fields = ("temperature", "top_p", "max_tokens", "top_k", "min_p", "seed", "stop")
            assert [first.get(name) for name in fields] == [0.7, 0.9, 99, 20, 0.1, 4, None]
            assert [second.get(name) for name in fields] == [0.2, 0.9, 5, 3, 0.1, 8, ["X"]]

    asyncio.run(main())


def test_agents_side_by_side_with_sub_agents_side_by_side_are_told_apart() -> None:
    async def conversation(gateway: Gate, place: Place, system: str) -> None:
        messages: list = [{"role": "system", "content": system}]
        for number in range(3):
            messages.append({"role": "user", "content": f"{number} + {number}?"})
            status, body = await gateway.chat(place, *messages)
            assert status == 200, body
            messages.append(body["choices"][0]["message"])

    async def agent(gateway: Gate, number: int) -> Record:
        place = await gateway.open(name=str(number))
        await asyncio.gather(*(conversation(gateway, place, f"{number} {which}") for which in "abc"))
        return await gateway.record(place, "DELETE")

    async def main() -> list[Record]:
        async with Endpoint(vllm=True, right=1.0) as endpoint, Gate(endpoint.url) as gateway:
            return await asyncio.gather(*(agent(gateway, number) for number in range(16)))

    for number, record in enumerate(asyncio.run(main())):
        assert sorted(branch.messages[0].text for branch in record.branches) == [f"{number} {c}" for c in "abc"]
        assert [len(branch.turns) for branch in record.branches] == [3, 3, 3]
        sequences = merge(record.turns)
        assert len(sequences) == 3
        assert sum(s.trained for s in sequences) == sum(len(turn.ids) for turn in record.turns)


@pytest.mark.parametrize("continue_tokens", [True, False])
def test_later_turns_go_on_in_the_very_ids_if_that_is_wanted(continue_tokens: bool) -> None:
    async def main() -> Record:
        defaults = RolloutDefaults(continue_tokens=continue_tokens)
        async with (
            Endpoint(vllm=True, right=1.0, odd=True) as endpoint,
            Gate(endpoint.url, defaults=defaults) as gateway,
        ):
            place = await gateway.open()
            messages: list = []
            for number in range(3):
                messages.append({"role": "user", "content": f"{number} + {number}?"})
                _, body = await gateway.chat(place, *messages)
                messages.append(body["choices"][0]["message"])
            return await gateway.record(place, "DELETE")

    assert len(merge(asyncio.run(main()).turns)) == (1 if continue_tokens else 3)


def test_a_model_that_cannot_go_on_in_ids_is_refused_at_the_start() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url, defaults=RolloutDefaults(continue_tokens=True)):
            pass

    with pytest.raises(UsageError, match="--continue-tokens: the endpoint does not report token ids"):
        asyncio.run(main())


def test_a_limit_ends_the_answers_and_is_named() -> None:
    async def main() -> None:
        defaults = RolloutDefaults(limits=Limits(max_turns=2, max_tokens_total=100))
        async with Endpoint(delay_s=0.05) as endpoint, Gate(endpoint.url, defaults=defaults) as gateway:
            place = await gateway.open()
            answers = await asyncio.gather(*(gateway.chat(place, str(n)) for n in range(4)))
            assert sorted(status for status, _ in answers) == [200, 200, 400, 400]
            record = await gateway.record(place, "DELETE")
            assert (record.ended, record.failure, len(record.turns)) == ("max_turns", None, 2)
            assert all(body["max_tokens"] <= 100 for body in endpoint.bodies)

    asyncio.run(main())


def test_what_the_upstream_did_wrong_is_a_failure_in_the_record() -> None:
    async def main() -> None:
        async with Endpoint(vllm=True) as endpoint, Gate(endpoint.url) as gateway:
            kinds = {"400": 400, "500": 503, "garbage": 502, "mismatch": 502, "null_logprob": 502}
            seen = {}
            for mode, wanted in kinds.items():
                place = await gateway.open()
                await endpoint.switch(mode, models="ok", times=1)
                status, body = await gateway.chat(place, "hi")
                assert status == wanted, body
                seen[mode] = (await gateway.record(place, "DELETE")).failure
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
        defaults = RolloutDefaults(limits=Limits(rollout_s=0.4))
        async with Endpoint() as endpoint, Gate(endpoint.url, defaults=defaults) as gateway:
            place = await gateway.open()
            await gateway.chat(place, "hi")
            while (await gateway.record(place)).open:
                await asyncio.sleep(0.02)
            assert (await gateway.record(place)).failure.kind == "rollout_timeout"
            assert (await gateway.chat(place, "ho"))[0] == 404
            while (await gateway.manage("GET", f"/{place.rollout}"))[0] != 404:
                await asyncio.sleep(0.02)

    asyncio.run(main())


def test_only_so_many_are_open_at_once_and_only_for_whoever_has_the_key() -> None:
    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url, defaults=RolloutDefaults(rollouts=1)) as gateway:
            place = await gateway.open()
            assert (await gateway.manage("POST", json={}))[0] == 429
            for method, path in (("POST", ""), ("GET", f"/{place.rollout}"), ("DELETE", f"/{place.rollout}")):
                assert (await gateway.manage(method, path, key="guessed"))[0] == 401
            await gateway.record(place, "DELETE")
            assert (await gateway.manage("POST", json={"name": 3}))[0] == 400
            assert (await gateway.manage("POST", json={"seed": -1}))[0] == 400
            assert (await gateway.manage("POST"))[0] == 200

    asyncio.run(main())


def test_records_are_written_when_rollouts_end_and_when_the_gateway_does(tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with Endpoint(vllm=True) as endpoint, Gate(endpoint.url, out=tmp_path) as gateway:
            one, two = await gateway.open(), await gateway.open()
            await gateway.chat(one, "hi")
            await gateway.chat(two, "hi")
            await gateway.record(one, "DELETE")
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
        async with Endpoint() as endpoint, Gate(endpoint.url, out=tmp_path / "gone") as gateway:
            place = await gateway.open()
            await gateway.chat(place, "hi")
            assert len((await gateway.record(place, "DELETE")).turns) == 1
            assert "No such file or directory" in gateway.said[0]

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
    monkeypatch.setattr(expiring_sessions, "SWEEP_INTERVAL_S", 0.01)

    async def main() -> None:
        async with Endpoint() as endpoint, Gate(endpoint.url, out=tmp_path) as gateway:
            places = [await gateway.open() for _ in range(2)]
            gateway.age(*places)
            assert await asyncio.to_thread(begun.wait, 30)
            await gateway.record(places[1], "DELETE")
            slow.set()
            late = await gateway.open()
            gateway.age(late)
            async with asyncio.timeout(30):
                while (await gateway.manage("GET", f"/{late.rollout}"))[0] != 404:
                    await asyncio.sleep(0.01)

    asyncio.run(main())
    assert len(list(tmp_path.glob("*.json"))) == 3


def test_rollouts_of_a_group_go_to_one_replica() -> None:
    async def main() -> None:
        async with Endpoint() as a, Endpoint() as b, Gate(a.url, b.url) as gateway:
            for group in range(6):
                before = a.counts["chat"], b.counts["chat"]
                for sample in range(4):
                    place = await gateway.open(name=f"{group}-{sample}", group=str(group))
                    assert (await gateway.chat(place, "1 + 1?"))[0] == 200
                assert sorted((a.counts["chat"] - before[0], b.counts["chat"] - before[1])) == [0, 4]
            assert min(a.counts["chat"], b.counts["chat"]) > 0
            status, body = await gateway.manage("POST", json={"group": 7})
            assert (status, "group is not a text" in body["error"]["message"]) == (400, True)

    asyncio.run(main())
