"""media/: the images and sounds of a run, each stored once under the SHA-256 of its content.

A file is durable before any task or journal line refers to it. Every read checks the content against the name,
so that a damaged file is an error and never another prompt.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rollbook.book.durable_files import sync_folder, write_atomically
from rollbook.core import (
    FILE_PREFIX,
    MAX_MEDIA_BYTES,
    ContentPart,
    Media,
    Message,
    check_media_size,
    check_source,
    choose_suffix,
    decode_part,
    encode_media,
    has_media,
    has_own_data,
    has_references,
    is_media_name,
    list_sources,
    map_parts,
    read_reference,
    read_source,
    replace_source,
)
from rollbook.errors import BookError, UsageError

MEDIA_FOLDER = "media"
MAX_CACHED_BYTES = 64 << 20
"""How much is kept in memory: the samples of a task are run one after another, with the same images."""


class MediaStore:
    """The images and sounds of one run directory. Several threads and processes may use it at once."""

    def __init__(self, run: Path) -> None:
        self._run, self._folder = run, run / MEDIA_FOLDER
        self._cache: dict[str, bytes] = {}
        self._stored: set[str] = set()

    def put(self, media: Media) -> str:
        """Store an image or a sound, durably, and return the reference to it."""
        check_media_size(len(media.data))
        if media.name not in self._stored:
            if not self._folder.is_dir():
                self._folder.mkdir(exist_ok=True)
                sync_folder(self._run)
            if not self._holds(media):
                write_atomically(self._folder / media.name, media.data)
            else:
                sync_folder(self._folder)  # its writer may not have come so far
            self._stored.add(media.name)
        return media.reference

    def _holds(self, media: Media) -> bool:
        try:
            return (self._folder / media.name).read_bytes() == media.data
        except FileNotFoundError:
            return False

    def read(self, name: str) -> Media:
        """Return a stored image or sound; a BookError names a file that is missing or damaged."""
        if not is_media_name(name):
            raise BookError(f"{self._folder}: {name[:80]!r} is not the name of a stored image or sound")
        suffix = name.rpartition(".")[2]
        data = self._cache.get(name)
        if data is None:
            data, problem = _read_checked(self._folder / name)
            if problem:
                raise BookError(f"{self._folder / name} {problem}: restore it from a copy of the run")
            self._keep(name, data)
        return Media(data, suffix)

    def _keep(self, name: str, data: bytes) -> None:
        if sum(map(len, self._cache.values())) + len(data) > MAX_CACHED_BYTES:
            self._cache = {}
        self._cache = {**self._cache, name: data}

    def store_parts(self, messages: Sequence[Message], roots: Sequence[Path] = ()) -> Sequence[Message]:
        """Return messages in which data, and paths below `roots`, are references to what is stored now.

        Addresses stay as they are: the model's server reads them. A UsageError names what no model could be sent: a
        path that cannot be read, data that is broken or too large, a reference to what is not stored.
        """
        if not has_media(messages):
            return messages
        return map_parts(messages, lambda part: self._store_part(part, roots))

    def _store_part(self, part: ContentPart, roots: Sequence[Path]) -> ContentPart:
        source = check_source(part)
        name = read_reference(source)
        if name is not None and not (is_media_name(name) and (self._folder / name).is_file()):
            raise UsageError(f"{source[:80]}: the run has stored no such file; give a file, data or an address")
        media = read_file_part(part, roots) if source.startswith(FILE_PREFIX) else decode_part(part)
        return part if media is None else self._refer_to(part, media)

    def _refer_to(self, part: ContentPart, media: Media) -> ContentPart:
        return replace_source(part, self.put(media), media.suffix, media.media_type)

    def store_answered(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages of a rollout with references; data that cannot be stored apart stays in them."""
        return map_parts(messages, self._store_if_possible) if has_own_data(messages) else messages

    def _store_if_possible(self, part: ContentPart) -> ContentPart:
        try:
            media = decode_part(part)
        except UsageError:
            return part
        return part if media is None else self._refer_to(part, media)

    def expand(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages with the data of what they refer to, as the model is sent them."""
        return map_parts(messages, self._expand_part) if has_references(messages) else messages

    def _expand_part(self, part: ContentPart) -> ContentPart:
        name = read_reference(read_source(part))
        return part if name is None else encode_media(part, self.read(name))

    def copy_from(self, other: Path) -> None:
        """Copy everything that another run directory has stored, after checking it."""
        source = MediaStore(other)
        for path in list_media(other):
            self.put(source.read(path.name))

    def find_damage(self, messages: Iterable[Message]) -> Iterator[str]:
        """Yield what is wrong with the files that messages refer to."""
        for name in filter(None, map(read_reference, list_sources(messages))):
            if not is_media_name(name):
                yield f"{MEDIA_FOLDER}: {name[:80]!r} is not the name of a stored image or sound"
            elif problem := find_media_damage(self._folder / name):
                yield f"{MEDIA_FOLDER}/{name} {problem}"


def put_media_in(messages: Sequence[Message], store: MediaStore | None) -> Sequence[Message]:
    """Return messages as a model is sent them, with the data of stored images and sounds.

    A UsageError names what cannot be sent: a file, which only tasks may name, and data that cannot be read.
    """

    def check(part: ContentPart) -> ContentPart:
        source = check_source(part)
        if source.startswith(FILE_PREFIX):
            raise UsageError(f"{source[:80]}: only tasks may name files; give the data in a reply")
        if store is None and read_reference(source) is not None:
            raise UsageError(f"{source[:80]}: nothing is stored here; give the data")
        return part

    checked = map_parts(messages, check)
    return checked if store is None else store.expand(checked)


def list_media(run: Path) -> list[Path]:
    """Return the stored files of a run directory; temporary ones of a writer that was killed are left out."""
    folder = run / MEDIA_FOLDER
    return sorted(path for path in folder.iterdir() if is_media_name(path.name)) if folder.is_dir() else []


def find_media_damage(path: Path) -> str:
    """Return what is wrong with a stored file; empty if its content is what its name says."""
    return _read_checked(path)[1]


def _read_checked(path: Path) -> tuple[bytes, str]:
    """Return the content of a stored file, and what is wrong with it."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return b"", "is not a plain file"
        data = path.read_bytes()
    except FileNotFoundError:
        return b"", "is missing"
    return data, "" if Media(data, path.suffix.removeprefix(".")).name == path.name else "is not what was stored"


def read_file_part(part: ContentPart, roots: Sequence[Path]) -> Media:
    """Return the file that a part names, which must be in one of the folders `roots`, links included."""
    text = check_source(part).removeprefix(FILE_PREFIX)
    text = text.removeprefix("//") if text.startswith("///") else text
    suffix = choose_suffix(part, text)
    path = _find_file(text, roots)
    if path.is_dir():  # a folder can be opened, but not as a file
        raise UsageError(f"{text}: this is not a file")
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{text}: this is not a file")
        if not found.st_size:
            raise UsageError(f"{text}: the file is empty")
        if found.st_size > MAX_MEDIA_BYTES:
            raise UsageError(f"{text}: {found.st_size:,} bytes; an image or a sound may have {MAX_MEDIA_BYTES:,}")
        return Media(file.read(), suffix)


def _find_file(text: str, roots: Sequence[Path]) -> Path:
    """Return the real path of a file below one of the roots; a path or a link that leads out of them is refused."""
    places = [root.resolve() for root in roots]
    shown = " and ".join(map(str, places)) or "none"
    leads_out = False
    for place in places:
        try:
            path = (place / text).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            continue
        if any(path.is_relative_to(each) for each in places):
            return path
        leads_out = True
    if leads_out:
        raise UsageError(f"{text}: it is outside of the environment's folder ({shown}); copy it there")
    raise UsageError(f"{text}: no such file in the environment's folder ({shown})")


def read_files_into(messages: Sequence[Message], roots: Sequence[Path]) -> list[Message]:
    """Return messages with the data of the files that they name, where nothing is stored apart."""

    def read(part: ContentPart) -> ContentPart:
        named = check_source(part).startswith(FILE_PREFIX)
        return encode_media(part, read_file_part(part, roots)) if named else part

    return map_parts(messages, read)
