"""Limits of untrusted code, and checks of the arguments that users pass.

Every limit applies to the code alone, never to the start of the interpreter. Arguments (code, stdin, files, sizes) are
checked before anything is started with them: a user's mistake is a UsageError, not a failure of the sandbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import UnionType

import msgspec

from rollbook.errors import UsageError

MAX_THREADS = 64
MAX_SECONDS, MAX_LIMIT = 1_000_000_000, 1_000_000
"""Larger than any real use, and small enough for the kernel's number formats."""


class Limits(msgspec.Struct, frozen=True):
    """CPU seconds, memory beyond the interpreter's own, printed and written bytes, processes."""

    seconds: float = 5.0
    """CPU time of the code. `wall_seconds` limits the elapsed time."""
    memory_mb: int = 256
    output_kb: int = 64
    """How much is kept of each of stdout, stderr and the value; the rest is read and dropped."""
    processes: int = 1
    """1 forbids other processes; more at a time than this are killed. Threads are always allowed."""
    files_mb: int = 16
    wall_seconds: float | None = None
    """Limit of the elapsed time; max(1, 4 x seconds) by default."""

    def __post_init__(self) -> None:
        for name in ("seconds", "wall_seconds"):
            value = getattr(self, name)
            if not (_is_number(value, int | float, MAX_SECONDS) or (value is None and name == "wall_seconds")):
                raise UsageError(f"limit {name}={value!r}: give a positive, finite number, at most {MAX_SECONDS}")
        for name in ("memory_mb", "output_kb", "processes", "files_mb"):
            value = getattr(self, name)
            if not _is_number(value, int, MAX_LIMIT):
                raise UsageError(
                    f"limit {name}={value!r}: give a positive, finite number, whole and at most {MAX_LIMIT}"
                )

    @property
    def wall_s(self) -> float:
        """The limit of the elapsed time."""
        return self.wall_seconds or max(1.0, 4 * self.seconds)

    @property
    def keep_bytes(self) -> int:
        """How much is kept of each of stdout, stderr and the value."""
        return self.output_kb << 10

    def to_request(self) -> dict[str, float | int]:
        """Return the limits as they are sent to the zygote."""
        return {
            "seconds": self.seconds,
            "memory_mb": self.memory_mb,
            "files_mb": self.files_mb,
            "processes": self.processes,
            "threads": MAX_THREADS + self.processes,
            "keep": self.keep_bytes,
        }


def _is_number(value: object, kind: type | UnionType, maximum: int) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and 0 < value <= maximum  # type: ignore[operator]


MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 4000
MAX_FILES = 4000
PAGE = 4096


def check_text(what: str, value: object) -> None:
    """Raise UsageError unless a value (code, tests, a name) is a text."""
    if not isinstance(value, str):
        raise UsageError(f"{what}: give a text (str), not {type(value).__name__}")


def encode_stdin(stdin: str | bytes) -> bytes:
    """Return the stdin of a program as bytes."""
    if isinstance(stdin, str):
        return stdin.encode(errors="replace")
    if not isinstance(stdin, bytes):
        raise UsageError(f"stdin: give a text or bytes, not {type(stdin).__name__}")
    return stdin


def choose_limits(limits: Limits | None, default: Limits) -> Limits:
    """Return the given limits, or the default ones."""
    if limits is not None and not isinstance(limits, Limits):
        raise UsageError(f"limits: give Limits(...), not {type(limits).__name__}")
    return limits or default


def check_size(size: int | None) -> None:
    """Raise UsageError unless this is a number of concurrent runs."""
    if size is not None and (not isinstance(size, int) or size < 1):
        raise UsageError(f"size={size!r}: give a whole number of runs at a time, at least 1")


def check_files(files: Mapping[str, bytes], limits: Limits) -> None:
    """Raise UsageError unless the files of a run have names inside its folder and fit into it."""
    if not isinstance(files, Mapping):
        raise UsageError(f"files: give names and contents, {{'a.txt': b'...'}}, not {type(files).__name__}")
    check_names(files)
    for name, data in files.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise UsageError(f"file {name!r}: give its content as bytes, not {type(data).__name__}")
    size = sum(PAGE * -(-len(data) // PAGE) for data in files.values())
    if size > limits.files_mb << 20 or len(files) > MAX_FILES:
        room = f"the folder holds at most files_mb={limits.files_mb} and {MAX_FILES} files"
        raise UsageError(f"files: {len(files)} of {size / (1 << 20):.1f} MB; {room}")


def check_names(names: Iterable[str]) -> None:
    """Raise UsageError unless these are names of files, none of which is also the folder of another."""
    folders = set()
    for name in names:
        check_text("file name", name)
        parts = name.split("/")
        if name.startswith("/") or {"", ".", ".."} & {*parts} or "\0" in name:
            raise UsageError(f"file name {name!r}: give a relative one that stays in the folder")
        if len(_encode_name(name)) > MAX_PATH_BYTES or any(len(_encode_name(part)) > MAX_NAME_BYTES for part in parts):
            raise UsageError(
                f"file name {name[:40]!r}...: at most {MAX_NAME_BYTES} bytes a name and {MAX_PATH_BYTES} in all"
            )
        folders |= {"/".join(parts[:end]) for end in range(1, len(parts))}
    if both := sorted(folders & {*names}):
        raise UsageError(f"file name {both[0]!r}: it is also the folder of another file")


def _encode_name(name: str) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise UsageError(f"file name {name!r}: it cannot be written as UTF-8") from None
