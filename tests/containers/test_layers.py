"""What an agent changed is read from the layer of its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollbook.containers.layers import is_replaced_file, is_replaced_folder, list_layer_changes, remove_conflict


def write(layer: Path, *paths: str) -> None:
    for path in paths:
        (layer / path).parent.mkdir(parents=True, exist_ok=True)
        (layer / path).write_text("x")


def test_changes_are_told_from_additions(tmp_path: Path) -> None:
    upper, middle, lowest = (tmp_path / name for name in ("upper", "middle", "lowest"))
    write(lowest, "etc/old", "etc/file", "opt/tool/a")
    write(middle, "etc/middle", "opt/tool")  # a file in place of the folder below
    write(upper, "etc/old", "etc/middle", "etc/new", "etc/file/in", "opt/tool/a")
    changes = list_layer_changes({"UpperDir": str(upper), "LowerDir": f"{middle}:{lowest}"})
    files = {path: kind for path, kind in changes.items() if (upper / path[1:]).is_file()}
    assert files == {"/etc/file/in": "A", "/etc/middle": "C", "/etc/new": "A", "/etc/old": "C", "/opt/tool/a": "A"}
    assert (changes["/etc"], changes["/etc/file"]) == ("C", "C")


def test_folders_too_deep_to_be_read_are_left_out(tmp_path: Path) -> None:
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        for _ in range(60):
            os.mkdir("a" * 100)
            os.chdir("a" * 100)
    finally:
        os.chdir(before)
    assert 10 < len(list_layer_changes({"UpperDir": str(tmp_path)})) < 60


def test_what_took_the_place_of_a_file_or_folder(tmp_path: Path) -> None:
    write(tmp_path, "file")
    (tmp_path / "link").symlink_to("link")
    (tmp_path / "folder").mkdir()
    assert [each for each in ("file", "link", "folder", "none") if is_replaced_folder(f"{tmp_path}/{each}")] == [
        "file",
        "link",
    ]
    assert [each for each in ("file", "link", "folder", "none") if is_replaced_file(f"{tmp_path}/{each}")] == [
        "link",
        "folder",
    ]


def test_what_is_in_the_way_is_removed_and_nothing_outside_the_layer(tmp_path: Path) -> None:
    upper, outside = tmp_path / "upper", tmp_path / "outside"
    write(upper, "etc/passwd/x", "etc/group")
    write(outside, "passwd/x")
    (upper / "link").symlink_to(outside)
    for path in ("/etc/passwd", "/etc/group", "/etc/none", "/link/passwd"):
        remove_conflict(str(upper), path, is_folder=False)
    assert sorted(path.name for path in (upper / "etc").iterdir()) == ["group"]
    assert (outside / "passwd" / "x").is_file()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hide what lower layers have")
def test_a_file_in_the_way_of_a_folder_is_replaced_by_an_empty_one(tmp_path: Path) -> None:
    write(tmp_path, "app")
    remove_conflict(str(tmp_path), "/app", is_folder=True)
    assert is_replaced_folder(str(tmp_path / "app"))
    assert list((tmp_path / "app").iterdir()) == []
