"""The entry point: build the command that is called, run it, and turn every way in which it can end into an exit code.

An error of standard output is reported as such: a full disk in one line, a reader who has left (`| head`) not at all.
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
from rollbook.cli.help_pages import SectionedCommand, SectionedGroup
from rollbook.errors import RollbookError

READER_LEFT_EXIT = 141
"""The exit code that a shell reports for a program whose reader has left (`| head`)."""


class StdoutError(RollbookError):
    """Standard output cannot be written; the message is empty where its reader has left."""

    def __init__(self, error: OSError) -> None:
        reader_left = error.errno == errno.EPIPE
        self.exit_code = READER_LEFT_EXIT if reader_left else 2
        super().__init__("" if reader_left else f"standard output cannot be written: {error.strerror or error}")


class CheckedStdout:
    """Standard output whose errors are a StdoutError, so that they differ from errors of other files."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or raise StdoutError."""
        try:
            return self._stream.write(text)
        except OSError as error:
            raise self._discard_output(error) from None

    def flush(self) -> None:
        """Flush, or raise StdoutError."""
        try:
            self._stream.flush()
        except OSError as error:
            raise self._discard_output(error) from None

    def _discard_output(self, error: OSError) -> StdoutError:
        """Send what is still buffered to /dev/null, so that the exit does not fail once more."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        return StdoutError(error)


@contextmanager
def check_stdout() -> Iterator[None]:
    """Flush at the end what is printed inside, or raise StdoutError."""
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
            code = typer.main.get_command(build_app(find_wanted(words))).main(
                words, prog_name="rollbook", standalone_mode=False
            )
    except typer.TyperException as error:
        sys.exit(_print_error(_format_usage(error), error.exit_code))
    except RollbookError as error:
        from rollbook.core import choose_exit_code

        sys.exit(_print_error(str(error), choose_exit_code(error)))
    except OSError as error:
        if not (message := _describe_disk_error(error)):
            raise
        sys.exit(_print_error(message, RollbookError.exit_code))
    except KeyboardInterrupt:
        code = _TYPER_INTERRUPTED
    if code == _TYPER_INTERRUPTED:  # typer's own answer to Ctrl-C; ours says that the run can be resumed
        sys.exit(_print_error("interrupted", INTERRUPTED))
    sys.exit(code if isinstance(code, int) else 0)


def _describe_disk_error(error: OSError) -> str:
    """Return one line about a file that cannot be opened, read or written; empty for any other error.

    A read or write that fails names no file, unlike an open.
    """
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    from rollbook.book import advise_on_disk

    advice = advise_on_disk(error)
    return advice and f"a file cannot be read or written ({error.strerror}): {advice}, then repeat the command"


def _install_signal_handlers() -> None:
    """Let both signals interrupt at once, where asyncio would only record them; a running worker drains instead."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, _raise_interrupt)


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def build_app(wanted: str) -> typer.Typer:
    """Build the tree of commands; only the wanted one is imported, the others are names with a line of help."""
    app = _make_typer(help=ABOUT, epilog=NEXT_STEPS, add_completion=True)
    app.callback()(_global_options)
    for name, entry in COMMANDS.items():
        if name == wanted:
            _add_command(app, name, entry)
        else:
            app.command(name, cls=SectionedCommand, help=entry.help, rich_help_panel=entry.group)(_do_nothing)
    return app


ABOUT = (
    "Run a language model many times on the tasks of an environment, score every answer, and keep a record of each, "
    "for evaluation and reinforcement learning."
)
NEXT_STEPS = "Try: rollbook run gsm8k -n 20 -k 4. The options of a command: rollbook COMMAND -h."


def _make_typer(help: str, epilog: str | None = None, add_completion: bool = False) -> typer.Typer:
    return typer.Typer(
        cls=SectionedGroup,
        help=help,
        epilog=epilog,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=add_completion,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add_command(app: typer.Typer, name: str, entry: CommandEntry) -> None:
    command = getattr(import_module(entry.module), entry.attribute)
    if callable(command):
        app.command(name, cls=SectionedCommand, help=entry.help, rich_help_panel=entry.group)(command)
        return
    group = _make_typer(entry.help)
    group.callback()(_do_nothing)
    for function in command:
        group.command(cls=SectionedCommand)(function)
    app.add_typer(group, name=name)


def find_wanted(words: Sequence[str]) -> str:
    """Return the name of the command to import: the first word, or that of the line that a shell completes."""
    if COMPLETION_VARIABLE not in os.environ:
        return words[0]
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return next(iter(line.split()[1:]), "")


COMPLETION_VARIABLE = "_ROLLBOOK_COMPLETE"
"""Set by the scripts of --show-completion when a shell completes a line."""


def _do_nothing() -> None:
    """Replace a command that is not called."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from rollbook import __version__

        print(f"rollbook {__version__}")
        raise typer.Exit


def _global_options(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
    ),
) -> None:
    """Take the options that come before a command."""


PLAIN_WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "this is not a whole number",
    "Input should be a valid number, unable to parse string as a number": "this is not a number",
}
"""Messages of typer about a value, and what they mean."""


def _format_usage(error: typer.TyperException) -> str:
    """Return typer's message on one line, with the help command to use."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "rollbook"
    message = " ".join(error.format_message().split()).rstrip(".")
    for technical, plain in PLAIN_WORDS.items():
        message = message.replace(technical, plain)
    return f"{message}{'' if message.endswith('?') else ';'} see {command} --help"


def _print_error(message: str, code: int) -> int:
    if message:
        print("rollbook:", " ".join(message.split("\n")), file=sys.stderr)
    return code
