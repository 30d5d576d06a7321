"""The four servers as real processes on loopback, each with what its requests need: a token, names that exist."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

HERE = Path(__file__).parent
START_S = 60.0
TOKEN = "the-token-of-this-test"
ROW = {"responses_create_params": {"input": "What is 1 + 1?"}}
_open = build_opener(ProxyHandler({})).open


@dataclass(frozen=True)
class Target:
    """A part of a server's operations: which ones (a pattern of paths), and the parameters that are known to exist."""

    name: str
    paths: str
    headers: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, str | int] = field(default_factory=dict)
    likely: dict[str, list[str | int]] = field(default_factory=dict)
    """Values that are sent half of the time."""
    unchecked: tuple[str, ...] = ()
    """Checks of schemathesis that do not hold here."""


@dataclass(frozen=True)
class RunningServer:
    """A server that accepts requests."""

    url: str
    token: str
    targets: list[Target]


@contextmanager
def start_process(folder: Path, *words: str, **environ: str) -> Iterator[str]:
    """Start a command that prints its address; yield the address, and end the command."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environ}
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, *words], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield read_address(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def read_address(process: subprocess.Popen[str]) -> str:
    """Return the line that a server prints when it accepts requests."""
    assert process.stdout
    line = process.stdout.readline().strip()
    assert line, f"{process.args}: no address; see server.log"
    return line


def send(method: str, url: str, body: object = None, **headers: str) -> tuple[dict[str, str], object]:
    """Send one request that must succeed; return the headers and the JSON of the reply."""
    data = None if body is None else json.dumps(body).encode()
    with _open(Request(url, data, headers, method=method), timeout=START_S) as reply:
        return dict(reply.headers.items()), json.load(reply)


@contextmanager
def start_gateway(folder: Path) -> Iterator[RunningServer]:
    """The gateway, in front of an endpoint that answers everything."""
    with (
        start_process(folder, str(HERE.parent / "support" / "endpoint.py"), "--port", "0", "--mode", "ok") as line,
        start_process(
            folder,
            *("-m", "rollbook", "gateway", "--max-turns", "1000000"),
            *("-m", f"http://127.0.0.1:{json.loads(line)['port']}/v1"),
            ROLLBOOK_GATEWAY_KEY=TOKEN,
        ) as url,
    ):
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        _, opened = send("POST", f"{url}/rollout", {}, **bearer)
        assert isinstance(opened, dict)
        agents = Target("agents", r"/v1/", fixed={"path.rollout": opened["rollout"]}, likely={"path.name": ["mock"]})
        yield RunningServer(
            url, TOKEN, [agents, Target("management", r"^/(rollout(/{rollout})?|openapi.json)$", bearer)]
        )


@contextmanager
def start_resources(folder: Path) -> Iterator[RunningServer]:
    """A resources server with tools and a state, which is also the head server."""
    with start_process(folder, "-m", "rollbook", "serve", f"{HERE / 'environments.py'}:Desk", "--head") as url:

        def seed() -> dict[str, str]:
            return {"Cookie": send("POST", f"{url}/seed_session", ROW)[0]["Set-Cookie"].partition(";")[0]}

        tools = r"^/(add|echo|{tool})$"
        rest = r"^/((?!add$|echo$|{tool}$).*)$"
        # A tool answers the model also where its arguments are wrong.
        use = Target("tools", tools, seed(), unchecked=("negative_data_rejection",))
        yield RunningServer(url, "", [use, Target("rows", rest, seed())])


@contextmanager
def start_gymnasium(folder: Path) -> Iterator[RunningServer]:
    """A resources server whose environment replies."""
    words = ("-m", "rollbook", "serve", f"{HERE / 'environments.py'}:Guess", "--max-turns", "1000000")
    with start_process(folder, *words) as url:
        cookie = send("POST", f"{url}/reset", ROW)[0]["Set-Cookie"].partition(";")[0]
        steps = Target("steps", r"^/step$", {"Cookie": cookie})
        yield RunningServer(url, "", [steps, Target("episodes", r"^/(reset|step|close)$")])


@contextmanager
def start_agent(folder: Path) -> Iterator[RunningServer]:
    """An agent server, in front of an endpoint that answers everything."""
    with (
        start_process(folder, str(HERE.parent / "support" / "endpoint.py"), "--port", "0", "--mode", "ok") as line,
        start_process(
            folder,
            *("-m", "rollbook", "serve", f"{HERE / 'environments.py'}:Desk", "--as", "agent"),
            *("-m", f"http://127.0.0.1:{json.loads(line)['port']}/v1"),
        ) as url,
    ):
        yield RunningServer(url, "", [Target("agent", ".")])


@contextmanager
def start_sandbox(folder: Path) -> Iterator[RunningServer]:
    """The sandbox server."""
    words = ("-m", "rollbook", "sandbox", "serve", "-c", "2", "--seconds", "1")
    with start_process(folder, *words, ROLLBOOK_SANDBOX_TOKEN=TOKEN) as url:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        yield RunningServer(url, TOKEN, [Target("all", ".", bearer)])


@contextmanager
def start_viewer(folder: Path) -> Iterator[RunningServer]:
    """The viewer of three small runs."""
    from support.sample_runs import showcase

    runs = showcase(folder / "runs", tasks=4, samples=3)
    with start_process(folder, "-m", "rollbook", "view", str(runs), "--no-browser") as line:
        address = line.split()[-1]
        parts = urlsplit(address)
        token = parse_qs(parts.query)["token"][0]
        bearer = {"Authorization": f"Bearer {token}"}
        known = list_known_values(runs)
        chosen = {name: values[0] for name, values in known.items() if name in ("query.run", "query.a", "query.task")}
        # Not `live`: its stream does not end, and schemathesis reads replies to their end.
        targets = [
            Target("api", r"^/(api/(?!live)|openapi)", bearer, likely=known),
            Target("one run", r"^/api/(?!live)", bearer, chosen, {n: v for n, v in known.items() if n not in chosen}),
            Target("page", r"^/(index.html|app.css)?$", bearer),
        ]
        yield RunningServer(f"{parts.scheme}://{parts.netloc}", token, targets)


def list_known_values(runs: Path) -> dict[str, list[str | int]]:
    """Return names that exist in the sample runs."""
    names = ["baseline", "tuned", "stopped"]
    tasks = [json.loads(row)["id"] for row in (runs / "baseline" / "tasks.jsonl").read_text().splitlines()]
    media = [path.name for path in runs.glob("*/media/*")] or ["none.png"]
    numbers = [0, 1, 2]
    return {
        **dict.fromkeys(("query.run", "query.a", "query.b"), names),
        **dict.fromkeys(("query.sample", "query.sequence"), numbers),
        "query.task": tasks,
        "query.name": media,
        "query.keep": ["mean > 0", "n > 0 and mean < 1"],
        "query.sort": ["mean", "id"],
    }


SERVERS: dict[str, Callable[[Path], object]] = {
    "gateway": start_gateway,
    "gym-resources": start_resources,
    "gym-gymnasium": start_gymnasium,
    "gym-agent": start_agent,
    "sandbox": start_sandbox,
    "viewer": start_viewer,
}
