"""The folder in which Gym finds our server: `resources_servers/NAME`, with the `app.py` that every server of its has.

Gym starts each server of a configuration itself. Ours is started by that program, or found running already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rollbook.errors import UsageError

_APP = '''"""Starts `rollbook serve` for NeMo Gym; where it runs already, stays for as long as it does."""

import json
import os
import time
import urllib.request

URL = {url!r}
NAME = {name!r}
FOLDER = {folder!r}
COMMAND = {command!r}


def answers():
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({{}}))
    try:
        with opener.open(URL + "openapi.json", timeout=5) as answer:
            return json.load(answer)["info"]["title"] == NAME
    except (OSError, ValueError, LookupError, TypeError):
        return False


if answers():
    while answers():
        time.sleep(5)
else:
    os.chdir(FOLDER)
    os.environ.pop("PYTHONPATH", None)
    os.execv(COMMAND[0], COMMAND)
'''


def serve_command(*words: str) -> list[str]:
    """How `rollbook serve` is started from here, wherever that is done from."""
    return [sys.executable, "-m", "rollbook", "serve", *words]


def write_shim(root: Path, name: str, url: str, command: Sequence[str]) -> Path:
    """Write the folder beneath `root`; Gym must be started there, or be given it with --search-dir."""
    folder = root / "resources_servers" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "app.py").write_text(
            _APP.format(url=f"{url}/", name=name, folder=str(Path.cwd()), command=list(command))
        )
        (folder / "requirements.txt").write_text("# Nothing: rollbook runs where it is installed.\n")
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    return folder
