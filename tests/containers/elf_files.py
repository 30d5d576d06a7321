"""ELF files that name libraries, and have no code."""

from __future__ import annotations

import struct
from collections.abc import Sequence

LOADER = "/lib64/ld-linux-x86-64.so.2"


def make_elf(
    needed: Sequence[str] = (),
    folders: str = "",
    *,
    loader: str = "",
    tag: int = 29,
    is_64: bool = True,
    order: str = "<",
    start: int = 0x1000,
) -> bytes:
    """Return an ELF file that needs libraries, and says in which folders they are (by DT_RUNPATH or another tag).

    `start` is the address of its first byte.
    """
    texts, offsets = b"\0", list[int]()
    for text in (*needed, folders, loader):
        offsets.append(len(texts))
        texts += text.encode() + b"\0"
    head, segment, entry = (64, 56, "QQ") if is_64 else (52, 32, "II")
    texts_at = head + 3 * segment
    entries = [*((1, offset) for offset in offsets[: len(needed)]), *([(tag, offsets[-2])] if folders else [])]
    pairs = [*entries, (5, start + texts_at), (0, 0), (1, 9999)]
    dynamic = b"".join(struct.pack(order + entry, *pair) for pair in pairs)
    size = texts_at + len(texts) + len(dynamic)
    segments = [(1, 0, size), (2, texts_at + len(texts), len(dynamic)), (3 if loader else 4, texts_at + offsets[-1], 1)]
    data = _make_header(head, segment, is_64=is_64, order=order)
    for kind, offset, length in segments:
        fields = (offset, start + offset, 0, length, length)
        data += (
            struct.pack(f"{order}II5QQ", kind, 4, *fields, 1)
            if is_64
            else struct.pack(f"{order}I5III", kind, *fields, 4, 1)
        )
    return data + texts + dynamic


def _make_header(head: int, segment: int, *, is_64: bool, order: str) -> bytes:
    identity = b"\x7fELF" + bytes([2 if is_64 else 1, 1 if order == "<" else 2, 1]).ljust(12, b"\0")
    layout = f"{order}HHIQQQIHHHHHH" if is_64 else f"{order}HHIIIIIHHHHHH"
    return identity + struct.pack(layout, 3, 62, 1, 0, head, 0, 0, head, segment, 3, 0, 0, 0)
