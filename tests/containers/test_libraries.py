"""The libraries that programs of an image load are found by what ELF files name."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from elf_files import LOADER, make_elf

from rollbook.containers.layers import Layers
from rollbook.containers.libraries import Needs, find_libraries, read_needs


@pytest.mark.parametrize("is_64", [True, False])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("tag", [15, 29])
def test_an_elf_file_names_its_libraries_its_loader_and_their_folders(is_64: bool, order: str, tag: int) -> None:
    data = make_elf(
        ["libz.so.1", "/opt/libc.so.6"], "$ORIGIN/x:/opt/lib", loader=LOADER, tag=tag, is_64=is_64, order=order
    )
    needs = Needs(["libz.so.1", "/opt/libc.so.6", LOADER], ["$ORIGIN/x", "/opt/lib"])
    assert read_needs(data) == needs
    assert read_needs(make_elf(is_64=is_64, order=order)) == Needs([], [])


def test_what_is_no_elf_file_or_cut_off_is_an_error() -> None:
    data = make_elf(["libz.so.1"], loader=LOADER)
    for text in (b"", b"#!/bin/sh\n", b"\x7fELF", data[:40], data[:100], data[:-30], make_elf(["a"], start=0)[:60]):
        with pytest.raises(ValueError, match="ELF"):
            read_needs(text)


def write(root: Path, path: str, data: bytes) -> None:
    (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
    (root / path[1:]).write_bytes(data)


@pytest.fixture
def image(tmp_path: Path) -> tuple[Layers, Path]:
    (tmp_path / "container/upper").mkdir(parents=True)
    layers = Layers({"UpperDir": str(tmp_path / "container/upper"), "LowerDir": str(tmp_path / "lower")})
    return layers, tmp_path / "lower"


def test_libraries_of_libraries_are_found_with_the_files_that_links_lead_to(image: tuple[Layers, Path]) -> None:
    layers, root = image
    write(root, "/usr/bin/cksum", make_elf(["libcrypto.so.3", "libnone.so.1"], loader=LOADER))
    write(root, "/usr/lib/libcrypto.so.3", make_elf(["libz.so.1"]))
    write(root, "/usr/lib/libz.so.1.3.1", make_elf(["libcrypto.so.3"]))
    write(root, "/usr/lib/libother.so.1", make_elf())
    write(root, "/usr/lib64/ld-linux-x86-64.so.2", make_elf())
    (root / "usr/lib/libz.so.1").symlink_to("libz.so.1.3.1")
    (root / "lib").symlink_to("usr/lib")
    found = find_libraries(layers, ["/usr/bin/cksum", "/usr/bin/none"], ["/lib", "/usr/lib", "/usr/lib64"])
    assert found.names == {"libcrypto.so.3", "libz.so.1", "libz.so.1.3.1", "ld-linux-x86-64.so.2"}
    assert "/usr/lib/libz.so.1.3.1" in found.paths
    assert found.own_folders == {}


def test_libraries_in_folders_that_a_file_names_are_found(image: tuple[Layers, Path]) -> None:
    layers, root = image
    write(root, "/usr/bin/sudo", make_elf(["libsudo.so.0"], "/usr/libexec/sudo:${ORIGIN}/../lib"))
    write(root, "/usr/libexec/sudo/libsudo.so.0", make_elf(["libin.so"], "$ORIGIN/in"))
    write(root, "/usr/libexec/sudo/in/libin.so", make_elf())
    found = find_libraries(layers, ["/usr/bin/sudo"], [])
    assert found.paths == {"/usr/libexec/sudo/libsudo.so.0", "/usr/libexec/sudo/in/libin.so"}
    names = {"libsudo.so.0"}
    assert found.own_folders == {"/usr/libexec/sudo": names, "/usr/lib": names, "/usr/libexec/sudo/in": {"libin.so"}}


def test_the_libraries_of_a_program_of_this_machine_are_those_that_the_loader_lists(tmp_path: Path) -> None:
    program = shutil.which("ls")
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
    paths = [word for line in listed.splitlines() for word in line.split() if word.startswith("/")]
    if not program or not paths:
        pytest.skip("this machine has no `ldd`, or a static `ls`")
    (tmp_path / "upper").mkdir()
    layers = Layers({"UpperDir": str(tmp_path / "upper"), "LowerDir": ""})
    layers.lowers = [""]  # this machine
    found = find_libraries(layers, [program], sorted({os.path.dirname(path) for path in paths}))
    assert {os.path.basename(path) for path in paths} <= found.names


def test_libraries_and_loaders_with_a_path_are_found_there(image: tuple[Layers, Path]) -> None:
    layers, root = image
    write(root, "/store/bin/bash", make_elf(["/store/libc.so.6", "/store/none.so"], loader="/store/ld.so"))
    for path in ("/store/libc.so.6", "/store/ld.so"):
        write(root, path, make_elf())
    assert find_libraries(layers, ["/store/bin/bash"], ["/lib"]).paths == {"/store/libc.so.6", "/store/ld.so"}
