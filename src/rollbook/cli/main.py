"""The entry point: builds the one command that was asked for, and turns every way it can end into an exit code.

Standard output reports its own errors: a full disk is one line, a reader who has left (`| head`) is none.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO, cast

import typer

from rollbook.cli.commands import COMMANDS, CommandEntry
from rollbook.errors import RollbookError

READER_LEFT_EXIT = 141
"""What a shell reports of a program whose reader has left (`| head`)."""


class StdoutError(RollbookError):
    """Standard output takes no more; nothing is said where it has no reader."""

    def __init__(self, error: OSError) -> None:
        left = error.errno == errno.EPIPE
        self.exit_code = READER_LEFT_EXIT if left else 2
        super().__init__("" if left else f"standard output cannot be written: {error.strerror or error}")


class CheckedStdout:
    """A stream whose failures are told from those of every other file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or say why not."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._discard_output(error) from None

    def flush(self) -> None:
        """See to it that all is out."""
        try:
            self._stream.flush()
        except OSError as error:
            raise self._discard_output(error) from None

    def _discard_output(self, error: OSError) -> StdoutError:
        """What is still held goes nowhere, so that leaving does not fail once more."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        return StdoutError(error)


@contextmanager
def check_stdout() -> Iterator[None]:
    """All that is printed within is out at its end, or an Unprinted tells why not."""
    stream, sys.stdout = sys.stdout, cast(TextIO, CheckedStdout(sys.stdout))
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout = stream


INTERRUPTED = 75
_TYPER_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 all scored, 2 usage, 3 shortfall, 75 resume me, 1 our bug."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    _install_signal_handlers()
    try:
        with check_stdout():
            code = typer.main.get_command(build_app(words[0])).main(words, prog_name="rollbook", standalone_mode=False)
    except typer.TyperException as error:
        sys.exit(_print_error(_format_usage(error), error.exit_code))
    except RollbookError as error:
        sys.exit(_print_error(str(error), error.exit_code))
    except KeyboardInterrupt:
        code = _TYPER_INTERRUPTED
    if code == _TYPER_INTERRUPTED:  # typer's own answer to Ctrl-C; ours says that the run can be resumed
        sys.exit(_print_error("interrupted", INTERRUPTED))
    sys.exit(code if isinstance(code, int) else 0)


def _install_signal_handlers() -> None:
    """Before and after a worker drains on them, both signals interrupt: at once, where asyncio only takes note."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _raise_interrupt)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def build_app(wanted: str) -> typer.Typer:
    """The whole tree, of which only the wanted command is imported; the others are names with a line of help."""
    app = _make_typer(help="Every rollout is called, every rollout is marked.")
    app.callback()(_global_options)
    for name, entry in COMMANDS.items():
        if name == wanted:
            _add_command(app, name, entry)
        else:
            app.command(name, help=entry.help)(_do_nothing)
    return app


def _make_typer(help: str) -> typer.Typer:
    return typer.Typer(help=help, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


def _add_command(app: typer.Typer, name: str, entry: CommandEntry) -> None:
    found = getattr(import_module(entry.module), entry.attribute)
    if callable(found):
        app.command(name, help=entry.help)(found)
        return
    group = _make_typer(entry.help)
    group.callback()(_do_nothing)
    for function in found:
        group.command()(function)
    app.add_typer(group, name=name)


def _do_nothing() -> None:
    """A command that was not asked for."""


def _show_version(asked: bool) -> None:
    if asked:
        from rollbook import __version__

        print(f"rollbook {__version__}")
        raise typer.Exit


def _global_options(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_show_version, help="Show the version."),
) -> None:
    """What stands before a command."""


def _format_usage(error: typer.TyperException) -> str:
    """Typer's message on one line, with the help to read."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "rollbook"
    said = " ".join(error.format_message().split()).rstrip(".")
    return f"{said}{'' if said.endswith('?') else ';'} see {where} --help"


def _print_error(message: str, code: int) -> int:
    if message:
        print("rollbook:", " ".join(message.split("\n")), file=sys.stderr)
    return code
