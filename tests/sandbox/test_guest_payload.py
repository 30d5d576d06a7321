"""Payloads of guests: the zygote does not read them, so that no later guest finds them in its initial memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbook.processes import find_members
from rollbook.sandbox import Sandbox
from rollbook.sandbox.grading import Grader
from rollbook.sandbox.guest import make_memory_file, make_payload, make_stdin
from rollbook.sandbox.isolation import PACKAGE_FOLDER

WORD = "quagmire-of-xylophones"


def find_words_in_memory(pid: int, words: list[bytes]) -> set[bytes]:
    """Return which of these words are in writable memory of a process."""
    found: set[bytes] = set()
    try:
        memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    except PermissionError:
        pytest.skip("ONLY ROOT MAY READ THE MEMORY OF A ZYGOTE")
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        if rights.startswith("rw"):
            first, last = (int(number, 16) for number in span.split("-"))
            block = os.pread(memory, last - first, first)
            found |= {word for word in words if word in block}
    os.close(memory)
    return found


def test_a_zygote_remembers_nothing_of_what_its_guests_were_given() -> None:
    tests = "".join(f"assert f({i}) == '{WORD}-{i}'\n" for i in range(20))
    with Sandbox(size=1) as box:
        (slot,) = box._launchers
        for size in (1, 50, 2000):
            ran = box.run_sync(f"'{WORD}'", stdin=WORD * size, files={"a.txt": WORD.encode() * size})
            assert ran.value == repr(WORD)
            assert not Grader(box).function_sync("def f(x): return 0", tests, "f").passed
        pids = [process.pid for process in find_members(slot._provider._child.pid)]  # type: ignore[attr-defined]
        told, known = [WORD.encode(), WORD.encode().hex().encode()], str(PACKAGE_FOLDER).encode()
        held = [find_words_in_memory(pid, [*told, known]) for pid in pids]
    assert {known} in held, "what it was told at its start is to be found: this test can see"
    assert all(words <= {known} for words in held)


def test_a_payload_is_read_from_its_beginning_whatever_its_size() -> None:
    for size in (1, 70_000, 3_000_000):
        handle = make_memory_file("payload", b"x" * size)
        assert os.fstat(handle).st_size == size
        assert len(os.read(handle, size)) == size
        os.close(handle)
    payload = make_payload("print('\ud800')", {"a": b"\x00"}, {"core": 1})
    assert os.read(payload, 1000) == b"""{"core": 1, "code": "print('?')", "files": {"a": "00"}}"""
    nothing = make_stdin(b"")
    assert os.read(nothing, 1) == b""
    os.close(payload)
    os.close(nothing)
