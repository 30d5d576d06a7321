"""Images and sounds that an agent sends: they reach the model, and different ones are different questions."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

import rollbook
from rollbook.book import verify_run
from support.endpoint import Endpoint
from support.gateways import Gate
from support.pictures import PICTURES, data_url, make_png, make_wav, name_of, write_pictures

RED, BLUE, TONE = make_png(), make_png(0, 0, 255), make_wav()
TEXT = {"type": "text", "text": "What is 1 + 1?"}
SOUND = {"type": "input_audio", "input_audio": {"data": base64.b64encode(TONE).decode(), "format": "wav"}}


def show(data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def test_each_protocol_sends_images_to_the_model_and_records_them() -> None:
    anthropic = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(RED).decode()}
    asked = {
        "chat/completions": {"messages": [{"role": "user", "content": [TEXT, show(RED), SOUND]}]},
        "responses": {
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": TEXT["text"]},
                        {"type": "input_image", "image_url": data_url(RED)},
                    ],
                }
            ]
        },
        "messages": {
            "max_tokens": 9,
            "messages": [{"role": "user", "content": [TEXT, {"type": "image", "source": anthropic}]}],
        },
    }

    async def main() -> None:
        async with Endpoint(right=1.0) as endpoint, Gate(endpoint.url) as gateway:
            for path, body in asked.items():
                place = await gateway.open()
                status, answer = await gateway.post(place, path, json={"model": "any", **body})
                assert status == 200, answer
                sent = endpoint.bodies[-1]["messages"][0]["content"]
                assert sent[:2] == [TEXT, show(RED)], path
                record = await gateway.record(place)
                assert record.branches[0].messages[0].content == sent
            assert sent[2:] == []

    asyncio.run(main())


def test_the_same_question_about_another_image_is_another_branch() -> None:
    async def main() -> list[int]:
        async with Endpoint(right=1.0) as endpoint, Gate(endpoint.url) as gateway:
            place = await gateway.open()
            seeds = []
            for data in (RED, BLUE, RED):
                await gateway.chat(place, {"role": "user", "content": [TEXT, show(data)]})
                seeds.append(endpoint.bodies[-1]["seed"])
            assert len((await gateway.record(place)).branches) == 3
            return seeds

    seeds = asyncio.run(main())
    assert seeds[0] == seeds[1] != seeds[2]  # only the third repeats a question


def test_a_reference_to_what_is_not_of_the_task_is_refused() -> None:
    async def main() -> tuple[int, Any]:
        async with Endpoint() as endpoint, Gate(endpoint.url) as gateway:
            place = await gateway.open()
            stored = {"type": "image_url", "image_url": {"url": f"media:{name_of(RED)}"}}
            answer = await gateway.chat(place, {"role": "user", "content": [TEXT, stored]})
            assert not [body for body in endpoint.bodies if isinstance(body["messages"][0]["content"], list)]
            return answer

    status, body = asyncio.run(main())
    assert status == 400
    assert "the task has no such image or sound; send the data" in body["error"]["message"]


PROGRAM = """
import json, os, urllib.request

task = json.load(open(os.environ["ROLLBOOK_TASK"]))
image = {"type": "image_url", "image_url": {"url": "IMAGE"}}
messages = [*task["messages"], {"role": "user", "content": [{"type": "text", "text": "and 2 + 2?"}, image]}]
body = json.dumps({"model": "any", "messages": messages}).encode()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
opener.open(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)).read()
"""


def test_a_program_sends_the_references_of_its_task_and_images_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM.replace("IMAGE", data_url(BLUE)))

    async def main() -> tuple[Path, list[Any]]:
        async with Endpoint(right=1.0) as endpoint:
            result = await rollbook.run_async(
                write_pictures(tmp_path, PICTURES.replace("range(3)", "range(1)")),
                endpoint.url,
                agent=f"program:{sys.executable} {tmp_path / 'agent.py'}",
                out=tmp_path / "run",
                progress=False,
            )
            return result.path, endpoint.bodies[-1]["messages"]

    run, sent = asyncio.run(main())
    assert sent[0]["content"][1]["image_url"]["url"] == data_url(RED)
    assert sent[1]["content"][1] == show(BLUE)
    journal = "".join(path.read_text() for path in (run / "journals").glob("*.jsonl"))
    recorded = json.loads(journal)["messages"]
    assert [message["role"] for message in recorded] == ["user", "user", "assistant"]
    assert recorded[1]["content"][1]["image_url"]["url"] == f"media:{name_of(BLUE)}"
    assert verify_run(run).damage == []
