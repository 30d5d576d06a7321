"""Images and sounds in the results of MCP tools: the model sees them, and they are stored once."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import rollbook
from rollbook.book import Book, rollouts, verify_run
from support.endpoint import Endpoint
from support.pictures import data_url, make_png, make_wav, name_of

RED, TONE = make_png(), make_wav()
SERVER = f"""
from mcp.server import MCPServer
from mcp_types import AudioContent, ImageContent, TextContent

server = MCPServer("camera", log_level="WARNING")


@server.tool()
def add(a: int, b: int = 0) -> list:
    "Look."
    return [
        TextContent(type="text", text="seen"),
        ImageContent(type="image", data={base64.b64encode(RED).decode()!r}, mime_type="image/png"),
        AudioContent(type="audio", data={base64.b64encode(TONE).decode()!r}, mime_type="audio/wav"),
        ImageContent(type="image", data="AAAA", mime_type="image/x-odd"),
    ]


server.run("stdio")
"""
ENVIRONMENT = """
import sys
from rollbook import Environment, McpServer, Task


class Camera(Environment):
    mcp = [McpServer(command=[sys.executable, SERVER])]

    def tasks(self):
        yield Task(id="t", prompt="What is 1 + 1?")

    def verify(self, task, rollout):
        return True
"""


def test_images_of_a_tool_follow_its_result_in_a_message_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "camera.py").write_text(ENVIRONMENT.replace("SERVER", repr(str(tmp_path / "server.py"))))

    async def main() -> tuple[Path, list[Any]]:
        async with Endpoint(right=1.0) as endpoint:
            env = f"{tmp_path / 'camera.py'}:Camera"
            result = await rollbook.run_async(env, endpoint.url, out=tmp_path / "run", progress=False)
            return result.path, endpoint.bodies[-1]["messages"]

    run, sent = asyncio.run(main())
    tool, shown = sent[-2:]
    assert tool["role"] == "tool"
    assert tool["content"].startswith("seen\n[image 1]\n[audio 2]\n[image: data of the type image/x-odd; known are")
    assert shown["role"] == "user"
    sound = {"data": base64.b64encode(TONE).decode(), "format": "wav"}
    assert shown["content"] == [
        {"type": "text", "text": "The tools returned:"},
        {"type": "image_url", "image_url": {"url": data_url(RED)}},
        {"type": "input_audio", "input_audio": sound},
    ]
    assert sorted(path.name for path in (run / "media").iterdir()) == sorted([name_of(RED), name_of(TONE, "wav")])
    recorded = next(iter(rollouts(Book(run)))).messages
    assert [message.role for message in recorded] == ["user", "assistant", "tool", "user", "assistant"]
    assert verify_run(run).damage == []
