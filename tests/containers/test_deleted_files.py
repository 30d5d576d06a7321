"""Deleted files that are still open or mapped are counted, each once."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from rollbook.containers.deleted_files import sum_deleted_files

MB = 1 << 20


def count(folder: Path) -> int:
    return sum_deleted_files([os.getpid(), os.getpid()], folder.stat().st_dev)


def test_deleted_files_that_are_open_are_counted_once(tmp_path: Path) -> None:
    before = count(tmp_path)
    with (tmp_path / "file").open("wb") as file, (tmp_path / "file").open("rb"):
        file.write(b"a" * MB)
        file.flush()
        assert count(tmp_path) == before  # it has a name, and is counted with its folder
        (tmp_path / "file").unlink()
        assert count(tmp_path) - before >= MB
        assert count(tmp_path) - before < 2 * MB
        assert sum_deleted_files([os.getpid()], -1) == 0
    assert count(tmp_path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at mapped files")
def test_deleted_files_that_are_only_mapped_are_counted(tmp_path: Path) -> None:
    before = count(tmp_path)
    (tmp_path / "file").write_bytes(b"a" * MB)
    libc = ctypes.CDLL(None)  # a mapping of Python's own module keeps the file open
    libc.mmap.restype = ctypes.c_void_p
    with (tmp_path / "file").open("rb") as file:
        size, start = ctypes.c_size_t(MB), ctypes.c_long(0)
        mapped = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), start))
    (tmp_path / "file").unlink()
    assert MB <= count(tmp_path) - before < 2 * MB
    libc.munmap(mapped, size)
    assert count(tmp_path) == before


def test_a_process_that_has_ended_has_no_files(tmp_path: Path) -> None:
    assert sum_deleted_files([1 << 30], tmp_path.stat().st_dev) == 0
