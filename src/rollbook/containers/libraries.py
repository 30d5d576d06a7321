"""Find the libraries that programs of an image load: ELF files name those that they need.

The folders of the system are searched, those of the loader's cache, and those that a file names itself. Libraries that
a program loads while it runs are in no such list.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rollbook.containers.layers import Layers

MAX_ELF_BYTES = 64 << 20

_LOAD, _DYNAMIC, _INTERPRETER = 1, 2, 3
_END, _NEEDED, _TEXTS, _FOLDERS, _LATER_FOLDERS = 0, 1, 5, 15, 29


class Needs(NamedTuple):
    """What an ELF file names."""

    names: list[str]
    """The libraries that it needs, and the loader; one with a slash is a path."""
    folders: list[str]
    """Where they are, before the folders of the system; `$ORIGIN` is the folder of the file."""


class LoadedLibraries(NamedTuple):
    """What the loader reads for some programs."""

    paths: set[str]
    """Where they are in the image: files, and links that lead to them."""
    own_folders: dict[str, set[str]]
    """Folders that the programs and libraries themselves name, and the libraries that they look for there."""

    @property
    def names(self) -> set[str]:
        """The names of the libraries, with those of the files that links of these names lead to."""
        return {posixpath.basename(path) for path in self.paths}


def find_libraries(layers: Layers, files: Iterable[str], folders: Sequence[str]) -> LoadedLibraries:
    """Return the libraries of the image that files load, also by other libraries, from folders and those they name."""
    owners = _list_owners(layers, folders)
    loaded = LoadedLibraries(set(), {})
    left, seen = [layers.resolve_in_image(each) for each in files], set[str]()
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        needs = _read_needs(layers, file)
        own = [_expand_origin(folder, file) for folder in needs.folders]
        names = [posixpath.basename(each) for each in needs.names]
        for folder in own:
            loaded.own_folders.setdefault(folder, set()).update(names)
        paths = [f"{folder}/{name}" for name in names for folder in (*own, *owners.get(name, ()))]
        paths += [each for each in needs.names if each.startswith("/")]
        left += [place for path in paths for place in _add_library(layers, path, loaded)]
    return loaded


def _expand_origin(folder: str, file: str) -> str:
    """Return a folder that a file names, without the variable for the folder of the file."""
    origin = posixpath.dirname(file)
    return posixpath.normpath(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def _list_owners(layers: Layers, folders: Iterable[str]) -> dict[str, list[str]]:
    """Return the folders that have each name in the image."""
    owners: dict[str, list[str]] = {}
    for folder in dict.fromkeys(layers.resolve_in_image(each) for each in folders):
        for name in layers.list_in_image([folder]):
            owners.setdefault(name, []).append(folder)
    return owners


def _add_library(layers: Layers, path: str, loaded: LoadedLibraries) -> list[str]:
    """Add a library that is at a path of the image; return its place."""
    *links, place = layers.trace_in_image(path)
    if not layers.find_in_image(place):
        return []
    chain = [each for each in links if layers.resolve_in_image(each) == place]  # others lead to folders
    loaded.paths.update((path, *chain, place))
    return [place]


def _read_needs(layers: Layers, file: str) -> Needs:
    try:
        return read_needs(layers.read(file, MAX_ELF_BYTES, image=True))
    except ValueError:  # a script, or no regular file
        return Needs([], [])


def read_needs(data: bytes) -> Needs:
    """Return what an ELF file names; ValueError if it is none.

    >>> read_needs(b"#!/bin/sh")
    Traceback (most recent call last):
    ValueError: no ELF file
    """
    if data[:4] != b"\x7fELF":
        raise ValueError("no ELF file")
    try:
        return _Elf(data).read_needs()
    except (struct.error, IndexError):
        raise ValueError("the ELF file is cut off") from None


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


class _Elf:
    def __init__(self, data: bytes) -> None:
        self._data, self._is_64 = data, data[4] == 2
        self._order = "<" if data[5] == 1 else ">"
        self._segments = list(self._read_segments())

    def _unpack(self, layout: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + layout, self._data, offset)

    def _read_segments(self) -> Iterator[_Segment]:
        (start,) = self._unpack("Q", 32) if self._is_64 else self._unpack("I", 28)
        size, count = self._unpack("HH", 54 if self._is_64 else 42)
        for at in range(start, start + size * count, size or 1):
            if self._is_64:
                kind, _, offset, address, _, length = self._unpack("IIQQQQ", at)
            else:
                kind, offset, address, _, length = self._unpack("IIIII", at)
            yield _Segment(kind, offset, address, length)

    def read_needs(self) -> Needs:
        """Return what the file names."""
        loaders = [self._text(each.offset) for each in self._segments if each.kind == _INTERPRETER]
        entries = [entry for each in self._segments if each.kind == _DYNAMIC for entry in self._read_entries(each)]
        texts = [self._find(value) for tag, value in entries if tag == _TEXTS]
        names = [self._text(texts[0] + value) for tag, value in entries if tag == _NEEDED]
        paths = [self._text(texts[0] + value) for tag, value in entries if tag in (_FOLDERS, _LATER_FOLDERS)]
        return Needs([*names, *loaders], [folder for path in paths for folder in path.split(":") if folder])

    def _read_entries(self, dynamic: _Segment) -> Iterator[tuple[int, int]]:
        layout, size = ("QQ", 16) if self._is_64 else ("II", 8)
        for at in range(dynamic.offset, dynamic.offset + dynamic.size, size):
            tag, value = self._unpack(layout, at)
            if tag == _END:
                return
            yield tag, value

    def _find(self, address: int) -> int:
        """Return where in the file an address is."""
        for each in self._segments:
            if each.kind == _LOAD and each.address <= address < each.address + each.size:
                return address - each.address + each.offset
        raise IndexError(address)

    def _text(self, offset: int) -> str:
        return self._data[offset : self._data.index(b"\0", offset)].decode(errors="surrogateescape")
