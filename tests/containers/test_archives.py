"""Unpack archives that code inside a container could have made."""

from __future__ import annotations

import errno
import io
import tarfile
import time
from pathlib import Path

import pytest

from rollbook.containers.archives import is_machine_error, open_archive, unpack


def pack(entries: dict[str, bytes | tuple[bytes, str] | None]) -> io.BytesIO:
    """Return an archive: a file has content, a link its type and target, a folder nothing."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            elif isinstance(content, tuple):
                entry.type, entry.linkname = content
            else:
                entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content) if isinstance(content, bytes) else None)
    file.seek(0)
    return file


def soft(target: str) -> tuple[bytes, str]:
    return tarfile.SYMTYPE, target


def hard(target: str) -> tuple[bytes, str]:
    return tarfile.LNKTYPE, target


FILES = {"app": None, "app/a": b"hello", "app/d": None, "app/d/f": b"deep", "app/..c": b"dots", "app/dl": soft("d")}


@pytest.mark.parametrize(
    ("link", "content"),
    [
        (soft("a"), b"hello"),
        (hard("app/a"), b"hello"),
        (soft("/app/a"), b"hello"),
        (soft("./d/../a"), b"hello"),
        (soft("dl/f"), b"deep"),
        (soft("/app/dl/../a"), b"hello"),
        (soft("..c"), b"dots"),
        (soft("../app/a"), b"hello"),
        (soft("d"), None),
        (soft("none"), None),
        (soft("link"), None),
        (soft("."), None),
        (soft("/etc/passwd"), None),
        (soft("/application/a"), None),
        (soft("../../../../../../../../etc/passwd"), None),
        (soft("dl/../../../etc/passwd"), None),
        (hard("../../etc/passwd"), None),
        (hard("/etc/passwd"), None),
        (hard("app/link"), None),
    ],
)
def test_a_link_to_a_file_of_the_archive_becomes_a_copy_and_others_are_left_out(
    tmp_path: Path, link: tuple[bytes, str], content: bytes | None
) -> None:
    left_out = unpack(pack({**FILES, "app/link": link}), tmp_path, "/app", 1000)
    assert left_out == ["app/dl", *(["app/link"] if content is None else [])]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))
    place = tmp_path / "app" / "link"
    assert (place.read_bytes() if place.exists() else None) == content


def test_links_to_a_large_file_cannot_fill_the_disk(tmp_path: Path) -> None:
    links = {f"app/{number}": soft("big") for number in range(10_000)}
    with pytest.raises(ValueError, match="larger than 100000 bytes: its links"):
        unpack(pack({"app/big": bytes(60_000), **links}), tmp_path, "/app", 100_000)
    assert list(tmp_path.rglob("*")) == []


def test_links_in_circles_are_left_out(tmp_path: Path) -> None:
    links = {f"app/{number}": soft(f"{(number + 1) % 3000}/../" * 9) for number in range(3000)}
    assert len(unpack(pack({"app": None, **links}), tmp_path, "/app", 1 << 20)) == 3000


def test_what_is_too_deep_or_has_too_long_a_path_is_left_out(tmp_path: Path) -> None:
    deep = ["app" + "/a" * levels for levels in range(1, 1200)]
    long = "app/" + "/".join(["b" * 200] * 11)
    entries = {"app": None, **dict.fromkeys(deep), deep[-1] + "/f": b"deep", long: b"long", "app/f": b"kept"}
    entries["app/link"] = soft(deep[-1].removeprefix("app/") + "/f")
    left_out = unpack(pack(entries), tmp_path, "/app", 1000)
    assert left_out == [*deep[199:], deep[-1] + "/f", long, "app/link"]
    assert sorted(path.name for path in (tmp_path / "app").iterdir()) == ["a", "f"]
    assert len(list(tmp_path.rglob("a"))) == 199


def test_many_files_in_a_deep_folder_are_unpacked_quickly(tmp_path: Path) -> None:
    folder = "app" + "/a" * 190
    began = time.monotonic()
    assert unpack(pack({f"{folder}/{number}": b"x" for number in range(5000)}), tmp_path, "/app", 10_000) == []
    assert time.monotonic() - began < 20  # 2 s; with `TarFile.extract` it is more than 10 times that
    assert len(list((tmp_path / folder).iterdir())) == 5000


@pytest.mark.parametrize("name", ["../x", "app/../../x", "link/x", "link"])
def test_no_entry_is_unpacked_outside_of_the_target(tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "link").symlink_to(tmp_path)
    with pytest.raises((OSError, ValueError)):
        unpack(pack({name: b"evil"}), target, "/app", 1000)
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("size", [0, 1, 512, 9_000, 10_240, 30_000])
def test_an_archive_ends_behind_its_last_file(size: int) -> None:
    file = io.BytesIO()
    with open_archive(file) as tar:
        entry = tarfile.TarInfo("data")
        entry.size = size
        tar.addfile(entry, io.BytesIO(bytes(size)))
    assert file.tell() == 0
    assert len(file.getvalue()) == 512 + -(-size // 512) * 512 + 1024
    with tarfile.open(fileobj=file) as tar:
        assert [(each.name, each.size) for each in tar] == [("data", size)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, ""), True),
        (OSError(errno.ENOSPC, ""), True),
        (OSError(errno.EMFILE, ""), True),
        (NotADirectoryError(errno.ENOTDIR, ""), False),
        (OSError(errno.ENAMETOOLONG, ""), False),
        (FileExistsError("a"), False),
        (ValueError("a"), False),
    ],
)
def test_errors_of_the_disk_are_of_this_machine_and_errors_of_names_are_not(error: Exception, expected: bool) -> None:
    assert is_machine_error(error) is expected
