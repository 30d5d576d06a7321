from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rollbook.clusters.packing import check_pack, list_files, pack_folder
from rollbook.errors import UsageError


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a file that is committed, one that is changed, one that is new and one that is ignored."""
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / "kept.py").write_text("a = 1\n")
    (folder / "inner" / "changed.py").write_text("b = 1\n")
    (folder / ".gitignore").write_text("*.log\n")
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    (folder / "inner" / "changed.py").write_text("b = 2\n")
    (folder / "new name.py").write_text("c = 1\n")
    (folder / "big.log").write_text("x")
    return folder


def run_at(path: Path) -> Path:
    (path / "jobs").mkdir(parents=True)
    return path


def test_a_project_goes_along_without_what_git_ignores(project: Path, tmp_path: Path) -> None:
    said: list[str] = []
    run = run_at(tmp_path / "run")
    pack = pack_folder(project, run, said.append)
    copied = sorted(str(p.relative_to(run / "jobs/pack/project")) for p in run.rglob("*.*") if p.is_file())
    assert copied == [".gitignore", "inner/changed.py", "kept.py", "new name.py"]
    assert (run / "jobs/pack/project/inner/changed.py").read_text() == "b = 2\n"
    assert pack.uncommitted == ["inner/changed.py", "new name.py"]
    assert said == ["packed with uncommitted changes: inner/changed.py, new name.py"]
    check_pack(run, pack)


def test_the_digest_is_of_the_content(project: Path, tmp_path: Path) -> None:
    one = pack_folder(project, run_at(tmp_path / "one"), print)
    two = pack_folder(project, run_at(tmp_path / "two"), print)
    (project / "kept.py").write_text("a = 2\n")
    three = pack_folder(project, run_at(tmp_path / "three"), print)
    assert one == two
    assert one.digest != three.digest


def test_a_copy_that_was_edited_is_refused(project: Path, tmp_path: Path) -> None:
    run = run_at(tmp_path / "run")
    pack = pack_folder(project, run, print)
    (run / "jobs/pack/project/__pycache__").mkdir()
    (run / "jobs/pack/project/__pycache__/kept.pyc").write_bytes(b"0")
    check_pack(run, pack)
    (run / "jobs/pack/project/kept.py").write_text("a = 3\n")
    with pytest.raises(UsageError, match="was edited since it was packed"):
        check_pack(run, pack)


def test_without_git_all_but_the_clutter_goes_along(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "__pycache__").mkdir(parents=True)
    (folder / "__pycache__" / "a.pyc").write_bytes(b"0")
    (folder / "a.py").write_text("a = 1\n")
    run = run_at(folder / "runs" / "run")
    assert pack_folder(folder, run, print).uncommitted == []
    assert [p.name for p in (run / "jobs/pack/plain").rglob("*")] == ["a.py"]


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a folder"):
        pack_folder(tmp_path / "none", tmp_path, print)


def test_repositories_within_and_links_to_folders_go_along_with_what_they_hold(project: Path, tmp_path: Path) -> None:
    inner, far = project / "sub", tmp_path / "far"
    inner.mkdir()
    far.mkdir()
    subprocess.run(["git", "-C", str(inner), "init", "-q"], check=True)
    (inner / "own.py").write_text("d = 1\n")
    (far / "linked.py").write_text("e = 1\n")
    (project / "link").symlink_to(far)
    (project / "loop").symlink_to(project)
    (project / "dangling").symlink_to(tmp_path / "nothing")
    (project / os.fsdecode(b"odd\xff.py")).write_text("f = 1\n")
    files = list_files(project)
    assert {"sub/own.py", "link/linked.py", "kept.py", os.fsdecode(b"odd\xff.py")} <= set(files)
    assert "dangling" not in files
    run = run_at(tmp_path / "run")
    pack = pack_folder(project, run, print)
    check_pack(run, pack)
    assert "odd\ufffd.py" in pack.uncommitted


def test_a_repository_that_git_cannot_read_is_refused_for_it_may_ignore_secrets(project: Path) -> None:
    (project / ".git" / "index").write_bytes(b"broken")
    with pytest.raises(UsageError, match="git cannot list what it ignores"):
        list_files(project)


def test_a_repository_without_git_is_refused_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="git is not installed to list what it ignores"):
        list_files(project)


def test_without_git_what_is_no_file_stays_at_home(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.py").write_text("a = 1\n")
    (folder / "gone").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe")
    assert list_files(folder) == ["a.py"]
