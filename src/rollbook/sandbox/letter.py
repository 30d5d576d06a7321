"""What a guest is given to read: bytes in the kernel's keeping, which are nobody's memory until the guest reads them.

A zygote hands such a letter on and never opens it. Whatever a zygote has once read lies in its memory until something
else is written there, and every later guest begins with a copy of that memory: tests would be found by the next
candidate, and one run's files by another.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from rollbook.core.json import JSON


def sealed(code: str, files: Mapping[str, bytes] | None, request: Mapping[str, JSON] | None) -> int:
    """The letter that tells a guest what to do."""
    told = {name: data.hex() for name, data in (files or {}).items()}
    text = json.dumps({**(request or {}), "code": code, "files": told}, ensure_ascii=False)
    return holding("letter", text.encode(errors="replace"))  # code may hold halves of characters


def given(stdin: bytes) -> int:
    """What a guest reads as its stdin."""
    return holding("stdin", stdin) if stdin else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)


def holding(name: str, data: bytes) -> int:
    """A descriptor to read these bytes from, which no disk sees."""
    handle = os.memfd_create(name)
    try:
        while data:
            data = data[os.write(handle, data) :]
    except BaseException:
        os.close(handle)
        raise
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
