"""`rollbook doctor`, `envs`, `local` and `sandbox`: this machine and what is installed on it.

`sandbox` runs untrusted code from the shell, and for other programs over HTTP.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollbook.cli import options as o
from rollbook.cli.report_tables import show_json, show_table, strip_control_characters
from rollbook.core import JSON, encode
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.environments import EnvironmentDescription, EnvironmentOption

EndpointUrl = Annotated[
    str | None, typer.Option("-m", "--model", metavar="URL", help="Check this endpoint instead of the machine.")
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


EnvironmentName = Annotated[
    str | None,
    typer.Argument(
        metavar="ENVIRONMENT",
        autocompletion=o.complete_environment,
        help="Describe this one, instead of listing all by name.",
    ),
]


Catalogue = Annotated[
    bool, typer.Option("--catalogue", help="List sets on the Hugging Face hub that can be run by name.")
]


def envs_command(
    environment: EnvironmentName = None,
    data: o.Data = None,
    prompt_template: o.PromptTemplate = None,
    catalogue: Catalogue = False,
    json: o.Json = False,
) -> None:
    from rollbook.environments import describe_environment, list_environments

    if catalogue:
        show_catalogue(environment, json)
        return
    if environment is not None:
        described = describe_environment(environment, data, prompt_template)
        show_json(described) if json else show_environment(described)
        return
    if data is not None or prompt_template is not None:
        raise UsageError("--data and --prompt-template: name the environment that they are for")
    known = list_environments()
    if json:
        show_json(known)
        return
    for kind, title in KIND_TITLES.items():
        rows = [[env.name, env.description] for env in known if env.kind == kind and not env.is_url_scheme]
        if rows:
            show_table([title, "what it is"], rows)
            print()
    rows = [[f"{env.name}://", env.description] for env in known if env.is_url_scheme]
    show_table(["URL of a server", "what it is"], rows)
    print("\nyour own: path/to/file.py:Class or package.module:Class\nin detail: rollbook envs ENVIRONMENT")
    print("sets on the Hugging Face hub: rollbook envs --catalogue")


def show_catalogue(environment: str | None, json: bool) -> None:
    """Print the sets of the catalogue: what each is, where its rows are, what scores it, its licence."""
    from rollbook.environments import read_catalogue

    if environment is not None:
        raise UsageError(f"--catalogue lists all sets; rollbook envs {environment} describes one")
    entries = read_catalogue()
    if json:
        show_json(entries)
        return
    rows = [[name, entry.about, entry.data, entry.environment, entry.licence] for name, entry in entries.items()]
    show_table(["set", "what it is", "rows", "scorer", "licence"], rows)
    print("\ntheir rows come from the hub when a run is planned: pip install 'rollbook[hf]'")


KIND_TITLES = {
    "benchmark": "benchmark, data included",
    "rows": "for your rows (--data)",
    "generated": "generated tasks",
    "adapter": "other packages' tasks",
    "": "other",
}
"""The order and the titles in which `rollbook envs` shows the kinds of environments."""


def show_environment(described: EnvironmentDescription) -> None:
    """Print what an environment is, its rows, options and scoring, and a task as the model sees it."""
    print(": ".join(filter(None, [described.name, described.description])))
    if described.about:
        print(f"\n{described.about}")
    if described.scoring:
        print(f"\nscoring: {described.scoring}")
    if described.judge:
        print(f"judge: {described.judge} (--judge URL)")
    if described.data:
        print(f"rows: {described.data}\nlicence: {described.licence}")
    if described.row_fields:
        print()
        show_table(["field of a row", "what it is"], [[name, text] for name, text in described.row_fields.items()])
    if described.options:
        print()
        show_table(["option", "default"], [[each.name, _format_default(each)] for each in described.options])
        named = next((each.name for each in described.options if not each.name.startswith("--")), None)
        if named:
            print(f"options go behind the name: '{described.name}?{named}=...'")
    if described.prompt_template:
        print("\nprompt template (copy it to a file, change it, give --prompt-template FILE):\n")
        print(textwrap.indent(described.prompt_template, "    "))
    show_example(described)


def _format_default(option: EnvironmentOption) -> str:
    if option.required:
        return "required"
    if option.default is None:
        return "none"
    return option.default if isinstance(option.default, str) else encode(option.default).decode()


def show_example(described: EnvironmentDescription) -> None:
    """Print the example task, or why there is none."""
    example = described.example
    if example is None:
        print(f"\nno example task: {described.no_example}")
        return
    if example.row is not None:
        print(f"\nan example row: {encode(example.row).decode()}")
    print(f"\na task as the model sees it ({example.id}):")
    for message in example.messages:
        text = message.content if isinstance(message.content, str) else encode(message.content).decode()
        print(f"\n[{message.role}]")
        print("\n".join(map(strip_control_characters, text.splitlines())))
    if example.tools:
        print(f"\ntools: {', '.join(tool['function']['name'] for tool in example.tools)}")


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

Seconds = Annotated[
    float, typer.Option("--seconds", metavar="S", help="CPU seconds of a run; its wall-clock limit is four times that.")
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Memory beyond the interpreter's own, such as 256MB or 1GB.")
]
Package = Annotated[
    list[str] | None, typer.Option("--package", metavar="NAME", help="A package that code may import; may be repeated.")
]
AllowWeaker = Annotated[
    bool, typer.Option("--allow-weaker", help="Accept weaker isolation where the kernel offers no namespaces.")
]


def run(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A Python file; - reads standard input.")],
    seconds: Seconds = 5.0,
    memory: Memory = "256MB",
    stdin: Annotated[
        str | None,
        typer.Option("--stdin", metavar="FILE", help="The input of the program; - passes on standard input."),
    ] = None,
    package: Package = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider", metavar="NAME|URL", help="The sandbox: built-in, bubblewrap, or http://HOST:PORT/TOKEN."
        ),
    ] = None,
    allow_weaker: AllowWeaker = False,
    json: o.Json = False,
) -> None:
    """Run one file in the sandbox; exit with 0 only if it succeeded."""
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
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help=o.PORT_HELP)] = 0,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="The address to listen on; 0.0.0.0 admits other machines.",
        ),
    ] = "127.0.0.1",
    seconds: Seconds = 5.0,
    memory: Memory = "256MB",
    package: Package = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            "-c",
            "--concurrency",
            metavar="N",
            min=1,
            help="How many programs run at the same time. [default: the number of cores]",
        ),
    ] = None,
    room: Annotated[
        int,
        typer.Option(
            "--room", metavar="N", min=1, help="Maximum number of running and waiting requests; more get HTTP 429."
        ),
    ] = 256,
    sessions: Annotated[
        int,
        typer.Option("--sessions", metavar="N", min=1, help="Maximum number of open sessions; more get HTTP 429."),
    ] = 256,
    allow_weaker: AllowWeaker = False,
) -> None:
    """Run programs for others over HTTP until interrupted; print the address, with a token if none was set."""
    from rollbook.processes import run_event_loop, serve_app
    from rollbook.sandbox import Limits, Sandbox, SandboxServer

    limits = Limits(seconds=seconds, memory_mb=parse_megabytes(memory))
    given_token = os.environ.get(TOKEN_VARIABLE)
    token = given_token or secrets.token_urlsafe(24)
    sandbox = Sandbox(
        limits,
        packages=package or [],
        size=concurrency,
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
