"""The files of an image that commands run: programs, scripts, their interpreters, and what the scripts name in turn.

They run next to the tests of a task, so they have to be those of the image, not what an agent put in their place.
"""

from __future__ import annotations

import posixpath
import re
import stat
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rollbook.containers.layers import Layers, is_in

MAX_SCRIPT_BYTES = 1 << 20
MAX_NAMED_FILES = 1000

SCRIPT_FOLDER_ENDING = ".d"
"""Ending of folders whose scripts are all run, in the order of their names."""

SCRIPT_ENDINGS = (".sh", ".bash", ".envsh", ".py", ".pl", ".rb", ".js", ".mjs", ".php", ".lua")
"""Endings of scripts in such a folder."""

_PATH = re.compile(r"(?:(?<![\w.$@/-])|(?<=:-))/[\w./@+-]+")
_NAME = re.compile(r"(?<![\w./$@+-])[\w\[][\w.+-]*")
_RUN = re.compile(
    r"(?:(?:^|[;&|({\s])(?:\.|source)|\b(?:(?:ba|da|k|mk|z)?sh|python[\d.]*|perl|ruby|node|php|lua|java[ \t]+-jar))"
    r"(?=[ \t]+(?:-[\w=-]*[ \t]+)*[\"']?(?:\$\{\w+:?-)?(/[\w./@+-]+))",
    re.MULTILINE,
)
"""A file that a shell reads or an interpreter runs: code, whatever its name and its permissions."""


class CommandFiles(NamedTuple):
    """What commands run."""

    paths: list[str]
    """Programs and scripts that the image has."""
    programs: set[str]
    """The names of programs that are looked for in the search path."""
    folders: set[str]
    """Folders whose scripts are all run."""


def find_command_files(
    layers: Layers, commands: Iterable[Sequence[str]], search_path: Sequence[str], workdir: str
) -> CommandFiles:
    """Return the files of the image that commands name, and those that its scripts name in turn.

    A command is a list of words. What is no code stays, and so does what scripts and the text of a shell command name
    in the working folder: both may be work of the agent.
    """
    finder = _Finder(layers, search_path)
    for command in commands:
        finder.add_command(command)
    seen = set[str]()
    while finder.left and len(seen) < MAX_NAMED_FILES:
        path = finder.left.pop()
        if path not in seen and (path in finder.words or workdir == "/" or not is_in(path, [workdir])):
            seen.add(path)
            finder.read(path)
    return CommandFiles(finder.paths, finder.programs, finder.folders)


class _Finder:
    def __init__(self, layers: Layers, search_path: Sequence[str]) -> None:
        self._layers, self._search_path = layers, search_path
        self.left: list[str] = []
        self.words: set[str] = set()
        """Paths that are a word of a command."""
        self.paths: list[str] = []
        self.programs: set[str] = set()
        self.folders: set[str] = set()
        self._run: set[str] = set()

    def add_command(self, words: Sequence[str]) -> None:
        """Add the paths that a command names, and the programs that the image has for its other words."""
        self.words |= {posixpath.normpath(word) for word in words if word.startswith("/")}
        self.left += self.words
        self._add_script(" ".join(words))
        for name in {name for word in words for name in (word, *_NAME.findall(word)) if "/" not in name}:
            places = [f"{folder}/{name}" for folder in self._search_path if self._is_file(f"{folder}/{name}")]
            self.words |= set(places)
            self.left += places
            self.programs |= {name} if places else set()

    def _add_script(self, text: str) -> None:
        """Add the paths that the text of a script names, and those that it runs."""
        run = [posixpath.normpath(path) for path in _RUN.findall(text)]
        run += [f"{path}/__main__.py" for path in run]  # of a folder that Python runs
        self._run |= set(run)
        self.left += [*find_paths(text), *run]

    def read(self, path: str) -> None:
        """Add what is at a path of the image, if that is code, and what this names."""
        place = self._layers.resolve_in_image(path)
        found = self._layers.find_in_image(place)
        if found and stat.S_ISDIR(found.status.st_mode) and path.endswith(SCRIPT_FOLDER_ENDING):
            self.folders.add(self._layers.resolve(path))
            self.left += [f"{path}/{name}" for name in self._layers.list_in_image([path])]
        elif (text := read_code(self._layers, path, is_run=path in self._run)) is not None:
            self.paths.append(path)
            self._add_script(text)
            if text.startswith("#!"):
                self.add_command(text[2:].partition("\n")[0].split())

    def _is_file(self, path: str) -> bool:
        found = self._layers.find_in_image(self._layers.resolve_in_image(path))
        return found is not None and stat.S_ISREG(found.status.st_mode)


def find_paths(text: str) -> list[str]:
    """Return the absolute paths that a script or a word of a command line names.

    >>> find_paths("/start.sh; python3 /opt/serve.py & wait; run-parts /start.d/")
    ['/start.sh', '/opt/serve.py', '/start.d']
    """
    return [posixpath.normpath(path) for path in _PATH.findall(text)]


def read_code(layers: Layers, path: str, *, is_run: bool = False) -> str | None:
    """Return the text of a script of the image, nothing for a program, and None for what is no code."""
    place = layers.resolve_in_image(path)
    found = layers.find_in_image(place)
    if not found or not stat.S_ISREG(found.status.st_mode):
        return None
    try:
        text = layers.read(place, MAX_SCRIPT_BYTES, image=True)
    except ValueError:
        text = b""
    if not (is_run or text.startswith(b"#!") or found.status.st_mode & 0o111):
        return None
    return "" if b"\0" in text else text.decode(errors="surrogateescape")


def is_script(path: str, mode: int) -> bool:
    """Return whether a file or link in a folder of scripts may be run, by its permissions and its name."""
    return bool(stat.S_ISREG(mode) and mode & 0o111) or path.endswith(SCRIPT_ENDINGS)
