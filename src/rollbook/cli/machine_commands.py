"""`rollbook doctor`, `envs`, `local` and `sandbox`: this machine and what is installed on it.

`sandbox` runs untrusted code from the shell, and for other programs over HTTP.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.report_tables import show_json, show_table
from rollbook.core import JSON
from rollbook.errors import UsageError

EndpointUrl = Annotated[
    str | None, typer.Option("-m", "--model", metavar="URL", help="Look at this endpoint instead of the machine.")
]


@o.compose_options(key=o.API_KEY)
def doctor_command(
    model: EndpointUrl = None, model_name: o.ModelName = "", *, key: dict[str, JSON], json: o.Json = False
) -> None:
    from rollbook.cli.doctor_checks import check_endpoint, check_machine

    findings = check_endpoint(model, model_name, **key) if model else check_machine()
    if json:
        show_json(findings)
        return
    rows = [[finding.what, "yes" if finding.works else "no", finding.detail] for finding in findings]
    show_table(["", "works", "detail"], rows)


def envs_command(json: o.Json = False) -> None:
    from rollbook.environments import list_environments

    environments = list_environments()
    if json:
        show_json(environments)
        return
    show_table(["environment", "what it is"], [[env.name, env.description] for env in environments])
    print("\nalso: path/to/file.py:Class, package.module:Class")


def pull() -> None:
    """Download the weights (93 MB, once) and check them."""
    from rollbook.models import pull_weights

    path = pull_weights(lambda line: print(line, file=sys.stderr))
    if not sys.stdout.isatty():  # on a terminal the notes have just shown the path
        print(path)


LOCAL_COMMANDS = [pull]


TOKEN_VARIABLE = "ROLLBOOK_SANDBOX_TOKEN"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?i?b?", re.IGNORECASE).fullmatch
_IN_MB = {"k": 1 / 1024, "m": 1.0, "g": 1024.0}

Seconds = Annotated[float, typer.Option("--seconds", help="CPU seconds; the clock on the wall gets four times that.")]
Memory = Annotated[str, typer.Option("--memory", metavar="SIZE", help="Beyond the interpreter's own: 256MB, 1GB.")]
Package = Annotated[list[str] | None, typer.Option("--package", help="May be imported, and is loaded beforehand.")]
AllowWeaker = Annotated[
    bool, typer.Option("--allow-weaker", help="Where there are no namespaces, take the walls that there are.")
]


def run(
    file: Annotated[str, typer.Argument(help="A Python file; - for standard input.")],
    seconds: Seconds = 5.0,
    memory: Memory = "256MB",
    stdin: Annotated[
        str | None, typer.Option("--stdin", metavar="FILE", help="What the program reads; - for standard input.")
    ] = None,
    package: Package = None,
    provider: Annotated[
        str | None, typer.Option("--provider", help="built-in, bubblewrap, or http://HOST:PORT/TOKEN.")
    ] = None,
    allow_weaker: AllowWeaker = False,
    json: o.Json = False,
) -> None:
    """Run one file behind the walls; exits with 0 only if it ended well."""
    from rollbook.sandbox import Limits, Sandbox

    limits = Limits(seconds=seconds, memory_mb=parse_megabytes(memory))
    if file == stdin == "-":
        raise UsageError("--stdin -: standard input is the program already; give one of them as a file")
    code, input_text = _read_text(file), _read_text(stdin) if stdin else ""
    weaker = allow_weaker or None  # None: as the environment variable says
    with Sandbox(limits, packages=package or [], size=1, provider=provider, allow_weaker=weaker) as sandbox:
        result = sandbox.run_sync(code, stdin=input_text)
    if json:
        show_json(result)
    else:
        sys.stdout.write(result.stdout)
        sys.stderr.write(result.stderr + (result.error.traceback if result.error else ""))
        if result.value is not None:
            print(result.value)
        cost = f"{result.cpu_seconds:.3f} s of CPU, {result.peak_mb:.0f} MB"
        print(f"{result.status}: {cost}; {', '.join(result.isolation)}", file=sys.stderr)
    if result.status != "ok":
        raise typer.Exit(3)


def serve(
    port: Annotated[int, typer.Option("--port", help=o.PORT_HELP)] = 0,
    host: Annotated[str, typer.Option("--host", help="Beyond loopback only on purpose.")] = "127.0.0.1",
    seconds: Seconds = 5.0,
    memory: Memory = "256MB",
    package: Package = None,
    size: Annotated[int | None, typer.Option("--size", help="Runs at a time. [the number of cores]")] = None,
    room: Annotated[int, typer.Option("--room", help="Requests that may run or wait; more are refused (429).")] = 256,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Sessions that may be open; likewise.")] = 256,
    allow_weaker: AllowWeaker = False,
) -> None:
    """Answer over HTTP until interrupted; prints the address once it is up, with its token if nobody gave it one."""
    from rollbook.processes import run_event_loop, serve_app
    from rollbook.sandbox import Limits, Sandbox, SandboxServer

    limits = Limits(seconds=seconds, memory_mb=parse_megabytes(memory))
    given_token = os.environ.get(TOKEN_VARIABLE)
    token = given_token or secrets.token_urlsafe(24)
    sandbox = Sandbox(
        limits,
        packages=package or [],
        size=size,
        sessions=sessions,
        provider="built-in",
        allow_weaker=allow_weaker or None,
    )
    with sandbox:
        app = SandboxServer(sandbox, token, room).make_app()
        run_event_loop(
            lambda: serve_app(app, host, port, lambda url: print(url if given_token else f"{url}/{token}", flush=True))
        )


def parse_megabytes(text: str) -> int:
    """Parse a size such as 256MB or 1GB; a plain number is megabytes."""
    match = _SIZE(text.strip())
    size = float(match[1]) * _IN_MB[(match[2] or "m").lower()] if match else 0.0
    if size < 1:
        raise UsageError(f"--memory {text}: give a size of at least 1 MB, such as 256MB or 1GB")
    return int(size)


def _read_text(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{file}: {reason}") from None


SANDBOX_COMMANDS = [run, serve]
