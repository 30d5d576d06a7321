"""`rollbook view`: runs in a browser, on this machine alone; or one run as one file."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

Where = Annotated[
    Path, typer.Argument(metavar="RUNS_DIR_OR_RUN", help="A run, or a folder that holds some.", show_default=False)
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the address.")]
Tokenizer = Annotated[
    Path | None,
    typer.Option("--tokenizer", metavar="FILE", help="The model's tokenizer.json, to show the text of its tokens."),
]
Export = Annotated[
    Path | None, typer.Option("--export", metavar="FILE.html", help="Write the run as one file instead of serving it.")
]


def command(
    where: Where, port: Port = 0, no_browser: NoBrowser = False, tokenizer: Tokenizer = None, export: Export = None
) -> None:
    from rollbook.view.folder import Folder
    from rollbook.view.vocabulary import Vocabulary

    folder = Folder(where)
    vocabulary = None if tokenizer is None else Vocabulary(tokenizer)
    if export is not None:
        from rollbook.view.export import export_run

        print(export_run(folder, export, vocabulary))
        return
    from rollbook.view.opened import Shelf
    from rollbook.view.server import view

    view(Shelf(folder, vocabulary), port, lambda address: _ready(address, not no_browser))


def _ready(address: str, show: bool) -> None:
    print(address, flush=True)
    print("the address is good for this machine and this start only; Ctrl-C ends it", file=sys.stderr, flush=True)
    if show:
        webbrowser.open(address)
