"""A real MCP server, by the official package: over standard input and output, or over HTTP when given a port file.

python mcp_server.py [PORT_FILE]
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("desk", log_level="WARNING")
total = 0


@server.tool()
def add(a: int, b: int = 0) -> int:
    """Add two numbers to the total; gives the total."""
    global total
    total += a + b
    return total


@server.tool()
def whoami() -> str:
    """The process that serves."""
    return f"{os.getpid()} {os.environ.get('SHOWN', '')} {os.environ.get('SECRET', '')} {Path.cwd().name}"


@server.tool()
def refuse(why: str) -> str:
    """Refuse."""
    raise ToolError(why)


@server.tool()
async def hang() -> str:
    """Never come back."""
    await asyncio.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """End the process."""
    os._exit(3)


@server.tool()
def flood(size: int) -> str:
    """Say a lot."""
    return "x" * size


@server.tool()
def table() -> list[dict[str, int]]:
    """Two rows."""
    return [{"a": 1}, {"b": 2}]


if os.environ.get("EXTRA_TOOL"):

    @server.tool()
    def extra() -> str:
        """One more."""
        return "extra"


def serve_http(port_file: Path) -> None:
    """Serve on a port of its own and write that down."""
    import socket

    import uvicorn

    listener = socket.create_server(("127.0.0.1", 0))
    port_file.write_text(f"{listener.getsockname()[1]}\n")
    app = guarded(server.streamable_http_app(json_response="JSON" in os.environ), os.environ.get("TOKEN", ""))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def guarded(app: Any, token: str) -> Any:
    """The app, for those who have the token."""

    async def check(scope: Any, receive: Any, send: Any) -> None:
        known = dict(scope.get("headers", [])).get(b"authorization") == f"Bearer {token}".encode()
        if scope["type"] == "http" and token and not known:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return check


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_http(Path(sys.argv[1]))
    else:
        server.run("stdio")
