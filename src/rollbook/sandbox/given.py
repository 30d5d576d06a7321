"""What users hand over, looked at before anything is started with it: their mistakes are not the sandbox's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rollbook.errors import UsageError
from rollbook.sandbox.limits import Limits

NAME_MOST, PATH_MOST = 255, 4000
FILES_MOST = 4000
PAGE = 4096


def check_text(what: str, value: object) -> None:
    """Code, tests, names: all of them are texts."""
    if not isinstance(value, str):
        raise UsageError(f"{what}: give a text (str), not {type(value).__name__}")


def stdin_of(given: str | bytes) -> bytes:
    """What a program reads."""
    if isinstance(given, str):
        return given.encode(errors="replace")
    if not isinstance(given, bytes):
        raise UsageError(f"stdin: give a text or bytes, not {type(given).__name__}")
    return given


def limits_of(given: Limits | None, usual: Limits) -> Limits:
    """The limits of this one, or the usual ones."""
    if given is not None and not isinstance(given, Limits):
        raise UsageError(f"limits: give Limits(...), not {type(given).__name__}")
    return given or usual


def check_size(size: int | None) -> None:
    """How many runs there are at a time."""
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UsageError(f"size={size!r}: give a whole number of runs at a time, at least 1")


def check_files(files: Mapping[str, bytes], limits: Limits) -> None:
    """A run's files lie in its own folder, and fit into it."""
    if not isinstance(files, Mapping):
        raise UsageError(f"files: give names and contents, {{'a.txt': b'...'}}, not {type(files).__name__}")
    check_names(files)
    for name, data in files.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"file {name!r}: give its content as bytes, not {type(data).__name__}")
    size = sum(PAGE * -(-len(data) // PAGE) for data in files.values())
    if size > limits.files_mb << 20 or len(files) > FILES_MOST:
        room = f"the folder takes files_mb={limits.files_mb} and {FILES_MOST} files"
        raise UsageError(f"files: {len(files)} of {size / (1 << 20):.1f} MB; {room}")


def check_names(names: Iterable[str]) -> None:
    """Names of files, none of which is the folder of another."""
    folders = set()
    for name in names:
        check_text("file name", name)
        parts = name.split("/")
        if name.startswith("/") or {"", ".", ".."} & {*parts} or "\0" in name:
            raise UsageError(f"file name {name!r}: give a relative one that stays in the folder")
        if len(_bytes(name)) > PATH_MOST or any(len(_bytes(part)) > NAME_MOST for part in parts):
            raise UsageError(f"file name {name[:40]!r}...: at most {NAME_MOST} bytes a name and {PATH_MOST} in all")
        folders |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    if both := sorted(folders & {*names}):
        raise UsageError(f"file name {both[0]!r}: another file lies in it as in a folder")


def _bytes(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"file name {name!r}: it cannot be written as UTF-8") from None
