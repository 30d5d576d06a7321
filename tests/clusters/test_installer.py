"""What `--install` does on a node: real virtual environments, from a wheel that requires nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from rollbook.clusters import installer
from rollbook.clusters.job_files import PackedFolder
from rollbook.clusters.packing import ZIP_TIME, build_wheel, write_installer

OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
TELL = "import little, sys; print(little.WORD, sys.prefix)"


def little_wheel(path: Path, word: str = "hello") -> None:
    files = {
        "little.py": f"WORD = {word!r}\n",
        "little-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: little\nVersion: 1\n",
        "little-1.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "little-1.dist-info/RECORD": "little.py,,\nlittle-1.dist-info/METADATA,,\nlittle-1.dist-info/WHEEL,,\n",
    }
    with ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A submission of a run whose name has to be quoted."""
    made = tmp_path / "it's a run" / "jobs" / "0001"
    made.mkdir(parents=True)
    (made / "install.py").write_bytes(Path(installer.__file__).read_bytes())
    (made / "install.json").write_text(json.dumps({"wheel": "little-1-py3-none-any.whl", "requirements": None}))
    little_wheel(made / "little-1-py3-none-any.whl")
    return made


def start(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-P", str(folder / "install.py"), "-c", TELL]
    return subprocess.Popen(words, env=OFFLINE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = job.communicate(timeout=120)
    return job.returncode, out, err


@pytest.mark.slow
def test_one_installs_and_the_others_wait_for_it(folder: Path) -> None:
    home = (
        folder.parent / f"venv-{installer.hash_environment(folder, json.loads((folder / 'install.json').read_text()))}"
    )
    (home / "halfway").mkdir(parents=True)  # somebody was killed while they installed
    all_of_them = [ended(job) for job in [start(folder) for _ in range(3)]]
    assert [(code, out) for code, out, _ in all_of_them] == [(0, f"hello {home}\n")] * 3
    assert sum("installing into" in err for _, _, err in all_of_them) == 1
    assert not (home / "halfway").exists()


@pytest.mark.slow
def test_what_cannot_be_installed_is_said_once_and_not_tried_by_every_worker(folder: Path) -> None:
    project = folder.parent / "pack" / "my project"
    project.mkdir(parents=True)
    (project / "requirements.txt").write_text("no-such-thing==1\n")
    told = {"wheel": "little-1-py3-none-any.whl", "requirements": str(project / "requirements.txt")}
    (folder / "install.json").write_text(json.dumps(told))
    first, second = ended(start(folder)), ended(start(folder))
    assert first[0] == second[0] == 2
    assert "rollbook: --install: pip: No matching distribution found for no-such-thing==1" in first[2]
    assert first[2].splitlines()[-1] == second[2].splitlines()[-1]
    assert "installing into" not in second[2]


def test_the_wheel_is_rollbook_as_it_lies_here(tmp_path: Path) -> None:
    name, data = build_wheel(distribution("rollbook"))
    assert data == build_wheel(distribution("rollbook"))[1]
    (tmp_path / name).write_bytes(data)
    with ZipFile(tmp_path / name) as archive:
        assert archive.read("rollbook/clusters/installer.py") == Path(installer.__file__).read_bytes()
        assert archive.getinfo("rollbook/__init__.py").date_time == ZIP_TIME
        about = name.removesuffix("-py3-none-any.whl") + ".dist-info"
        assert b"Requires-Dist: aiohttp" in archive.read(f"{about}/METADATA")
        assert b"rollbook = rollbook.cli.main:main" in archive.read(f"{about}/entry_points.txt")
        assert not [path for path in archive.namelist() if "__pycache__" in path]


def test_what_the_packed_folder_requires_goes_along(tmp_path: Path) -> None:
    asked, folder = tmp_path / "jobs" / "pack" / "p" / "requirements.txt", tmp_path / "jobs" / "0001"
    asked.parent.mkdir(parents=True)
    folder.mkdir()
    write_installer(tmp_path, folder, PackedFolder("p", ""))
    assert json.loads((folder / "install.json").read_text())["requirements"] is None
    asked.write_text("numpy\n")
    write_installer(tmp_path, folder, PackedFolder("p", ""))
    assert json.loads((folder / "install.json").read_text())["requirements"] == str(asked)
