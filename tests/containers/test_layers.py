"""What an agent changed is undone in the layer of its container."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from rollbook.containers.layers import Layers, read_unlinked, remove_conflict


def write(layer: Path, *paths: str) -> None:
    for path in paths:
        (layer / path).parent.mkdir(parents=True, exist_ok=True)
        (layer / path).write_text(layer.name)


def remove(layer: Path, path: str) -> None:
    """Mark a path as removed, as the overlay file system does."""
    (layer / path).parent.mkdir(parents=True, exist_ok=True)
    os.mknod(layer / path, stat.S_IFCHR, 0)


@pytest.fixture
def container(tmp_path: Path) -> tuple[Layers, Path, Path]:
    upper, lower = tmp_path / "container" / "upper", tmp_path / "lower"
    upper.mkdir(parents=True)
    lower.mkdir()
    return Layers({"UpperDir": str(upper), "LowerDir": f"{lower}:{tmp_path / 'lowest'}"}), upper, lower


def test_a_change_or_an_addition_leaves_the_layer(container: tuple[Layers, Path, Path]) -> None:
    layers, upper, lower = container
    write(lower, "etc/old")
    write(upper, "etc/old", "etc/new/in", "etc/kept")
    for path in ("/etc/old", "/etc/new", "/etc/missing", "/none/at/all"):
        layers.put_back(path)
    assert [each.name for each in (upper / "etc").iterdir()] == ["kept"]
    assert layers.undone == ["/etc/old", "/etc/new"]


def test_folders_on_the_way_are_put_back_but_not_what_the_agent_made_in_them(
    container: tuple[Layers, Path, Path],
) -> None:
    layers, upper, lower = container
    write(lower, "usr/local/bin/cat")
    write(upper, "evil/bin/cat", "usr/other")
    (upper / "usr/local").symlink_to("/evil")
    layers.put_back("/usr/local/bin/cat")
    assert sorted(os.listdir(upper / "usr")) == ["other"]


def test_folders_on_the_way_get_their_permissions_back_but_keep_what_the_agent_made(
    container: tuple[Layers, Path, Path],
) -> None:
    layers, upper, lower = container
    write(lower, "opt/venv/bin/python", "opt/venv/other/x", "evil/x")
    write(upper, "opt/venv/bin/new", "opt/venv/other/x", "evil/x")
    for folder in ("opt", "opt/venv", "opt/venv/other"):
        (upper / folder).chmod(0o700)
    (upper / "evil").chmod(0o700)
    layers.put_back("/evil/not-of-the-image")
    layers.walk_changes(lambda path, _: path == "/opt/venv/other/x")
    layers.put_back("/opt/venv/bin/python")
    modes = {
        path: stat.S_IMODE((upper / path).stat().st_mode) for path in ("opt", "opt/venv", "opt/venv/other", "evil")
    }
    image = stat.S_IMODE((lower / "opt").stat().st_mode)
    assert modes == {"opt": image, "opt/venv": image, "opt/venv/other": 0o700, "evil": 0o700}
    assert os.listdir(upper / "opt/venv/bin") == ["new"]


def test_links_of_the_image_are_followed(container: tuple[Layers, Path, Path]) -> None:
    layers, upper, lower = container
    write(lower, "usr/bin/mawk", "etc/alternatives/x")
    (lower / "usr/bin/awk").symlink_to("/etc/alternatives/awk")
    (lower / "etc/alternatives/awk").symlink_to("../../usr/bin/mawk")
    write(upper, "usr/bin/mawk", "evil/awk")
    (upper / "etc").mkdir()
    (upper / "etc/alternatives").symlink_to("/evil")
    layers.put_back("/usr/bin/awk")
    assert sorted(layers.undone) == ["/etc/alternatives", "/usr/bin/mawk"]


def test_no_link_leads_out_of_the_layers(container: tuple[Layers, Path, Path], tmp_path: Path) -> None:
    layers, upper, _ = container
    write(tmp_path, "outside/cat")
    (upper / "opt").symlink_to(tmp_path / "outside")
    layers.undo("/opt/cat")
    layers.put_back("/opt/cat")
    assert (tmp_path / "outside/cat").read_text() == tmp_path.name
    assert layers.resolve("/opt/cat") == f"{tmp_path}/outside/cat"


def test_links_through_folders_of_the_kernel_are_undone(container: tuple[Layers, Path, Path]) -> None:
    layers, upper, lower = container
    write(lower, "root/.profile")
    (upper / "root").symlink_to("/proc/self/root/evil")
    (upper / "loop").symlink_to("loop")
    assert layers.resolve("/root") == "/root"
    assert layers.undone == ["/root"]
    assert layers.resolve("/loop") == "/loop"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mark a folder as the overlay file system does")
def test_what_was_removed_or_made_afresh_shows_the_image_again(container: tuple[Layers, Path, Path]) -> None:
    layers, upper, lower = container
    write(lower, "usr/bin/cat", "etc/passwd")
    write(upper, "usr/bin/new")
    os.setxattr(upper / "usr/bin", "trusted.overlay.opaque", b"y")
    (upper / "usr/bin").chmod(0o700)
    remove(upper, "etc/passwd")
    assert not layers.has_program("/usr/bin/cat")
    for path in ("/usr/bin", "/etc/passwd"):
        layers.undo(path)
    assert layers.read("/usr/bin/cat", 100) == layers.read("/etc/passwd", 100) == b"lower"
    assert stat.S_IMODE((upper / "usr/bin").stat().st_mode) == stat.S_IMODE((lower / "usr/bin").stat().st_mode)
    assert os.listdir(upper / "usr/bin") == ["new"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mark a file as removed")
def test_what_a_layer_of_the_image_removed_is_not_in_the_image(tmp_path: Path) -> None:
    write(tmp_path / "lowest", "opt/tool/a", "etc/file")
    write(tmp_path / "lower", "opt/tool")  # a file in place of the folder below
    remove(tmp_path / "lower", "etc/file")
    (tmp_path / "upper").mkdir()
    layers = Layers({"UpperDir": str(tmp_path / "upper"), "LowerDir": f"{tmp_path}/lower:{tmp_path}/lowest"})
    assert [layers.find_in_image(path) for path in ("/opt/tool/a", "/etc/file")] == [None, None]
    assert layers.find_in_image("/opt/tool")


def make_deep_link(upper: Path, name: str, levels: int) -> None:
    """Make nested folders with a link in the last one, whose path may be too long for this machine."""
    before = Path.cwd()
    os.chdir(upper)
    try:
        for _ in range(levels):
            os.mkdir(name)
            os.chdir(name)
        os.symlink("/tests/expected.txt", "link")
    finally:
        os.chdir(before)


@pytest.mark.parametrize(("levels", "seen"), [(20, 21), (21, 21), (22, 21), (40, 21), (60, 21)])
def test_what_is_in_folders_with_long_paths_is_undone(
    container: tuple[Layers, Path, Path], levels: int, seen: int
) -> None:
    layers, upper, _ = container
    make_deep_link(upper, "a" * 100, levels)
    paths: list[str] = []
    links = layers.walk_changes(lambda path, _: bool(paths.append(path)))
    assert len(paths) == seen
    assert [*layers.undone, *links] == ["/" + "/".join(["a" * 100] * min(levels, 21)) + "/link" * (levels == 20)]
    layers.put_back("/" + "a" * 100)
    assert os.listdir(upper) == []


def test_a_folder_of_the_image_with_a_long_path_loses_what_the_agent_made(
    container: tuple[Layers, Path, Path],
) -> None:
    layers, upper, lower = container
    for layer in (upper, lower):
        make_deep_link(layer, "a" * 100, 21)
    assert layers.walk_changes(lambda *_: False) == []
    assert layers.undone_count == 1
    deep = "/" + "/".join(["a" * 100] * 20)
    assert os.listdir(f"{upper}{deep}") == []
    assert layers.list_in_image([deep]) == {"a" * 100}


def test_kept_folders_with_long_paths_stay(container: tuple[Layers, Path, Path]) -> None:
    _, upper, lower = container
    make_deep_link(upper, "a" * 100, 30)
    layers = Layers({"UpperDir": str(upper), "LowerDir": str(lower)}, ["/" + "a" * 100])
    assert layers.walk_changes(lambda *_: False) == []
    assert layers.undone_count == 0


def test_what_cannot_be_listed_is_an_error(
    container: tuple[Layers, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, upper, _ = container
    write(upper, "app/x")

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    for name in ("scandir", "lstat"):
        with monkeypatch.context() as patch:
            patch.setattr(f"rollbook.containers.layers.os.{name}", fail)
            with pytest.raises(OSError, match="Input/output"):
                layers.walk_changes(lambda path, _: layers.has_program(path))


def test_what_is_in_a_folder_besides_the_image_is_moved_aside(container: tuple[Layers, Path, Path]) -> None:
    layers, upper, lower = container
    write(lower, "tests/data")
    write(upper, "tests/data", "tests/new/deep", "logs/verifier/reward.txt", "logs/kept", "evil/verifier")
    (upper / "linked").symlink_to("/evil")
    for path in ("/tests", "/logs/verifier", "/linked/verifier", "/none", "/none/at/all"):
        layers.move_aside(path)
    assert sorted(os.listdir(upper)) == ["evil", "linked", "logs"]
    assert os.listdir(upper / "logs") == ["kept"]
    assert os.listdir(upper / "evil") == ["verifier"]
    assert [layers.is_folder(path) for path in ("/logs", "/tests", "/linked", "/none")] == [True, True, False, False]
    assert layers.undone == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mark a folder as removed")
def test_folders_on_the_way_to_one_are_lost_from_the_first_that_leads_to_none(
    container: tuple[Layers, Path, Path], tmp_path: Path
) -> None:
    layers, upper, lower = container
    write(lower, "srv/a/inner/x", "moved/a/inner/x", "proc/x")
    (lower / "linked").symlink_to("/srv")
    way = ["/srv", "/srv/a", "/srv/a/inner"]
    assert layers.find_lost_folders("/srv/a/inner") == layers.find_lost_folders("/linked/a/inner") == []
    (tmp_path / "outside/a/inner").mkdir(parents=True)
    for target in ("/moved", f"{tmp_path}/outside", "srv", "/proc", "/none"):
        (upper / "srv").symlink_to(target)
        assert layers.find_lost_folders("/srv/a/inner") == way
        (upper / "srv").unlink()
    write(upper, "srv/a")
    assert layers.find_lost_folders("/srv/a/inner") == layers.find_lost_folders("/linked/a/inner") == way[1:]
    (upper / "srv/a").unlink()
    (upper / "srv").rmdir()
    remove(upper, "srv")
    assert layers.find_lost_folders("/srv/a/inner") == way


def test_attributes_that_no_archive_can_hold_are_removed(container: tuple[Layers, Path, Path]) -> None:
    layers, upper, lower = container
    write(upper, "app/a/word", "other", "app/single")
    (upper / "linked").symlink_to("/app")
    (upper / "app/link").symlink_to("/other")
    write(lower, "app/image")
    try:
        for path in ("app", "app/a", "app/a/word", "other"):
            for name in ("user.a=b", "user.ab"):
                os.setxattr(upper / path, name, b"1")
    except OSError:
        pytest.skip("this file system has no attributes")
    assert not layers.remove_odd_attributes("/app/single")
    assert not layers.remove_odd_attributes("/none")
    assert layers.remove_odd_attributes("/linked")
    assert not layers.remove_odd_attributes("/app")
    assert {os.listxattr(upper / path)[0] for path in ("app", "app/a", "app/a/word")} == {"user.ab"}
    assert sorted(os.listxattr(upper / "other")) == ["user.a=b", "user.ab"]
    assert layers.remove_odd_attributes("/")


def test_links_that_lead_into_folders_are_found_whatever_is_on_their_way(
    container: tuple[Layers, Path, Path], tmp_path: Path
) -> None:
    layers, upper, lower = container
    write(lower, "app/tests/x", "deep/a/b/x")
    (lower / "mounts").symlink_to("/proc/self/mounts")
    write(tmp_path, "outside/x")
    (tmp_path / "outside/in").symlink_to("/tests")
    found = {
        "direct": "/tests/x", "around": "/", "relative": "../tests", "chain": "/direct", "loop": "loop",
        "of-image": "/mounts", "tests": "/elsewhere", "through": "/tests/../none", "folder": "/deep/a/b",
        "after-a-link": "folder/../../../tests", "far": "/app/tests", "similar": "/tests2", "to-nothing": "/none",
        "outside": f"{tmp_path}/outside", "in-outside": "/outside/in", "up": "folder/../../tests",
    }  # fmt: skip
    for name, target in {**found, "long": "/" + "long/" * 500 + "link"}.items():
        (upper / name).symlink_to(target)
    links = layers.walk_changes(lambda *_: False)
    assert sorted(links) == sorted(f"/{name}" for name in [*found, "long"])
    into = ["after-a-link", "around", "chain", "direct", "long", "of-image", "relative", "tests", "through"]
    assert sorted(layers.find_links_into(links, ["/tests", "/proc"])) == [f"/{name}" for name in into]


def test_more_links_than_can_be_followed_are_undone(
    container: tuple[Layers, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, upper, _ = container
    for number in range(10):
        (upper / str(number)).symlink_to("/app")
    monkeypatch.setattr("rollbook.containers.layers.MAX_FOLLOWED", 8)
    links = layers.walk_changes(lambda *_: False)
    assert len(links) == 8
    assert layers.undone_count == len(layers.undone) == 2
    monkeypatch.setattr("rollbook.containers.layers.MAX_STEPS", 6)
    assert layers.find_links_into(links, ["/tests"]) == links[2:]


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
    assert os.getxattr(tmp_path / "app", "trusted.overlay.opaque") == b"y"
    assert list((tmp_path / "app").iterdir()) == []


def test_a_file_is_read_only_if_no_link_is_on_the_way(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "logs/agent/answer.txt")
    write(tmp_path, "secret")
    (root / "linked").symlink_to(tmp_path)
    (root / "logs" / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "logs" / "pipe")
    assert read_unlinked(str(root), "/logs/agent/answer.txt", 4) == b"root"
    with pytest.raises(ValueError, match="larger than 3 bytes"):
        read_unlinked(str(root), "/logs/agent/answer.txt", 3)
    for path in ("/linked/secret", "/logs/link", "/logs/pipe", "/logs/agent", "/logs/none", "/none/at/all"):
        with pytest.raises(FileNotFoundError):
            read_unlinked(str(root), path, 1000)
