"""The books under a folder, named by where they lie in it. Nothing outside the folder is ever opened."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from rollbook.errors import BookError, UsageError

DEEPEST = 4
MOST = 5000
SCANNED = ("", "journals", "rounds", "workers", "leases", "done", "index")
_HALVES = re.compile("[\ud800-\udfff]")


def readable(text: str) -> str:
    """Text that can be shown and sent: what stands in it for bytes that are no UTF-8 is replaced.

    >>> readable("caf\\udce9")
    'caf\ufffd'
    """
    return _HALVES.sub("\ufffd", text)


class Folder:
    """A folder of runs, or one run. A run's name is its path within the folder, written with slashes."""

    def __init__(self, path: str | Path) -> None:
        self.root = Path(path).resolve()
        if not self.root.is_dir():
            raise UsageError(f"{path} is not a folder: name a run directory, or a folder that holds some")
        self.name = readable(self.root.name)
        self.single = (self.root / "run.json").is_file()
        if not self.single and not next(self.names(), None):
            raise UsageError(f"{path} holds no run: no folder in it has a run.json; make one with `rollbook run`")

    def names(self) -> Iterator[str]:
        """Every run, in the order of the alphabet; symbolic links are not followed."""
        if self.single:
            yield self.name
            return
        found = 0
        for at, folders, files in os.walk(self.root):
            depth = len(Path(at).relative_to(self.root).parts)
            if "run.json" in files:
                folders.clear()
                found += 1
                yield Path(at).relative_to(self.root).as_posix()
            elif depth >= DEEPEST:
                folders.clear()
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            if found >= MOST:
                return

    def path(self, name: str) -> Path:
        """Where a run lies; a UsageError for whatever is not the name of one."""
        path = self._place(name)
        if path is None:
            raise UsageError(f"no run is called {name[:200]!r} here")
        self.check_links(path)
        return path

    def _place(self, name: str) -> Path | None:
        if self.single:
            return self.root if name == self.name else None
        parts = name.split("/")
        if len(parts) > DEEPEST or any(not part or part.startswith(".") for part in parts):
            return None
        path = self.root.joinpath(*parts)
        try:
            return path if path.resolve() == path and (path / "run.json").is_file() else None
        except (OSError, ValueError):
            return None

    def check_links(self, run: Path) -> None:
        """A file of a run that is a link must not lead out of the folder."""
        for folder in SCANNED:
            if not (run / folder).is_dir():
                continue
            for entry in os.scandir(run / folder):
                if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(self.root):
                    raise BookError(f"{Path(entry.path).relative_to(self.root)} is a link that leads out of the folder")
