"""The command line: parse options, call the library, print.

`main` is the entry point and `commands` the table of commands. A command's module is imported only when the command is
called. This package may import anything; no package imports it.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.cli.commands import COMMANDS, CommandEntry
    from rollbook.cli.main import build_app
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["COMMANDS", "CommandEntry", "build_app"]
