"""The entry point: builds the one command that was asked for, and turns every way it can end into an exit code."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

import typer

from rollbook.cli.commands import COMMANDS, Entry
from rollbook.cli.printed import printing
from rollbook.errors import RollbookError

INTERRUPTED = 75
_TYPER_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 all scored, 2 usage, 3 shortfall, 75 resume me, 1 our bug."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _heed_signals()
    try:
        with printing():
            code = typer.main.get_command(build(words[0])).main(words, prog_name="rollbook", standalone_mode=False)
    except typer.TyperException as error:
        sys.exit(_say(_usage(error), error.exit_code))
    except RollbookError as error:
        sys.exit(_say(str(error), error.exit_code))
    except KeyboardInterrupt:
        code = _TYPER_INTERRUPTED
    if code == _TYPER_INTERRUPTED:  # typer's own answer to Ctrl-C; ours says that the run can be resumed
        sys.exit(_say("interrupted", INTERRUPTED))
    sys.exit(code if isinstance(code, int) else 0)


def _heed_signals() -> None:
    """Before and after a worker drains on them, both signals interrupt: at once, where asyncio only takes note."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _interrupt)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def build(wanted: str) -> typer.Typer:
    """The whole tree, of which only the wanted command is imported; the others are names with a line of help."""
    app = _plain(help="Every rollout is called, every rollout is marked.")
    app.callback()(_options)
    for name, entry in COMMANDS.items():
        if name == wanted:
            _add(app, name, entry)
        else:
            app.command(name, help=entry.help)(_never)
    return app


def _plain(help: str) -> typer.Typer:
    return typer.Typer(help=help, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def _add(app: typer.Typer, name: str, entry: Entry) -> None:
    module = import_module(entry.module)
    if hasattr(module, "command"):
        app.command(name, help=entry.help)(module.command)
        return
    group = _plain(entry.help)
    group.callback()(_never)
    for function in module.SUBCOMMANDS:
        group.command()(function)
    app.add_typer(group, name=name)


def _never() -> None:
    """A command that was not asked for."""


def _show_version(asked: bool) -> None:
    if asked:
        from rollbook import __version__

        print(f"rollbook {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_show_version, help="Show the version."),
) -> None:
    """What stands before a command."""


def _usage(error: typer.TyperException) -> str:
    """Typer's message on one line, with the help to read."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "rollbook"
    said = " ".join(error.format_message().split()).rstrip(".")
    return f"{said}{'' if said.endswith('?') else ';'} see {where} --help"


def _say(message: str, code: int) -> int:
    if message:
        print("rollbook:", " ".join(message.split("\n")), file=sys.stderr)
    return code
