"""Remove folders of any depth."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rollbook.containers.removal import empty_deep_folder, is_deep, kill_first_process


def make_deep(folder: Path, levels: int, name: str = "a") -> None:
    """Make folders in folders with a file in each; a path to the last is longer than the kernel takes."""
    script = f"import os\nfor _ in range({levels}):\n open('f', 'w'); os.mkdir('{name}'); os.chdir('{name}')"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["python3", "-c", script], cwd=folder, check=True)


@pytest.mark.parametrize(("levels", "name"), [(3000, "a"), (40, "a" * 250)])
def test_a_deep_folder_is_emptied_and_links_are_not_followed(tmp_path: Path, levels: int, name: str) -> None:
    folder, other = tmp_path / "layer" / "diff", tmp_path / "other"
    make_deep(folder, levels, name)
    other.mkdir()
    (other / "kept").touch()
    (folder / "link").symlink_to(other)
    assert empty_deep_folder(str(folder), 60)
    assert list(folder.iterdir()) == []
    assert [path for path in (tmp_path / "layer").iterdir() if list(path.iterdir())] == []
    assert (other / "kept").exists()


def test_a_folder_that_is_not_deep_is_left_to_the_runtime(tmp_path: Path) -> None:
    make_deep(tmp_path / "diff", 20)
    assert empty_deep_folder(str(tmp_path / "diff"), 60)
    assert (tmp_path / "diff" / "f").exists()


def test_what_one_attempt_has_no_time_for_is_removed_by_the_next(tmp_path: Path) -> None:
    make_deep(tmp_path / "diff", 1000)
    make_deep(tmp_path / "rollbook-undone-x", 1000)  # what the agent made and a restart moved away
    assert not empty_deep_folder(str(tmp_path / "diff"), 0)
    assert is_deep(str(tmp_path / "diff"))
    assert empty_deep_folder(str(tmp_path / "diff"), 60)
    assert not any(list(path.iterdir()) for path in tmp_path.iterdir())


def test_a_process_that_is_no_containers_is_not_killed() -> None:
    process = subprocess.Popen(["sleep", "100"])
    try:
        kill_first_process(process.pid, "0" * 64)
        assert process.poll() is None
        with open(f"/proc/{process.pid}/cgroup") as file:
            kill_first_process(process.pid, file.read().strip())
        assert process.wait(10) == -9
    finally:
        process.kill()
        process.wait()
    kill_first_process(process.pid, "")
    assert not os.path.exists(f"/proc/{process.pid}")
