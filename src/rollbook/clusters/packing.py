"""What is copied into a run for its jobs: a project folder (--pack), and Rollbook itself as a wheel (--install).

The folder is copied into RUN/jobs/pack without what git ignores, and identified by its digest. The wheel is built from
the package that is installed here, and put into the submission's folder next to its installer.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path

from rollbook.book import explain_disk_errors, write_atomically
from rollbook.clusters import installer
from rollbook.clusters.job_files import PackedFolder
from rollbook.core import encode_pretty
from rollbook.errors import UsageError

MAX_SHOWN = 5
IGNORED_FOLDERS = frozenset((".git", "__pycache__", ".venv", "node_modules"))
"""What is not packed where there is no git."""


def pack_folder(folder: Path, run: Path, say: Callable[[str], None]) -> PackedFolder:
    """Copy a folder into the run, including files that are not committed, which are named to the user."""
    source = folder.resolve()
    target = run / "jobs" / "pack" / source.name
    files = [path for path in list_files(folder) if run.resolve() not in (source / path).resolve().parents]
    with explain_disk_errors(run):
        for path in files:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, target / path)
    changed = list_uncommitted(source)
    if changed:
        more = f" and {len(changed) - MAX_SHOWN} more" if len(changed) > MAX_SHOWN else ""
        say(f"packed with uncommitted changes: {', '.join(changed[:MAX_SHOWN])}{more}")
    return PackedFolder(source.name, hash_folder(target), changed)


def list_files(folder: Path) -> list[str]:
    """Return the files of a folder to pack; UsageError if it is not a folder, or git cannot list what it ignores."""
    if not folder.is_dir():
        raise UsageError(f"--pack {folder}: not a folder")
    return sorted(_list_tracked(folder.resolve(), set()))


def check_pack(run: Path, pack: PackedFolder) -> None:
    """Refuse a copy that was edited since: all workers of a run execute the same code."""
    folder = run / "jobs" / "pack" / pack.name
    if not folder.is_dir() or hash_folder(folder) != pack.digest:
        raise UsageError(f"{folder} was edited since it was packed: restore it from a copy of the run")


def _list_tracked(source: Path, seen: set[Path]) -> set[str]:
    """Return the files of a folder, relative to it, without what git ignores; without git, all but the usual clutter.

    What git lists as one name, an inner repository or a link to a folder, is packed with all its files.
    """
    if source.resolve() in seen:
        return set()
    seen.add(source.resolve())
    listed = _run_git(source, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    paths = _walk_files(source) if listed is None else {path for path in listed.split("\0") if path}
    folders = {path for path in paths if (source / path).is_dir()}
    inner = {os.path.join(path, name) for path in sorted(folders) for name in _list_tracked(source / path, seen)}
    return {path for path in paths - folders if (source / path).is_file()} | inner


def _walk_files(source: Path) -> set[str]:
    paths = set()
    for here, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in IGNORED_FOLDERS]
        paths |= {os.path.relpath(os.path.join(here, name), source) for name in files}
    return paths


def list_uncommitted(source: Path) -> list[str]:
    """Return the files that differ from the last commit, or are not in it; none where there is no git."""
    status = _run_git(source, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    return sorted(os.fsencode(entry[3:]).decode(errors="replace") for entry in (status or "").split("\0") if entry)


def hash_folder(folder: Path) -> str:
    """Return the sha256 of all names and contents in a folder, without the caches that Python writes there."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            inner = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(os.fsencode(path.relative_to(folder)) + f"\0{inner}\n".encode())
    return total.hexdigest()


def _run_git(source: Path, *words: str) -> str | None:
    """Return git's output; None without a repository. One that git cannot read is refused: it may ignore secrets."""
    try:
        done = subprocess.run(["git", "-C", str(source), *words], capture_output=True, timeout=60)
    except FileNotFoundError:
        if any((folder / ".git").exists() for folder in (source, *source.parents)):
            raise UsageError(
                f"--pack {source}: a git repository, and git is not installed to list what it ignores"
            ) from None
        return None
    message = " ".join(done.stderr.decode(errors="replace").split())
    if done.returncode and "not a git repository" in message:
        return None
    if done.returncode:
        raise UsageError(f"--pack {source}: git cannot list what it ignores: {message.removeprefix('fatal: ')[:200]}")
    return os.fsdecode(done.stdout)


PACKAGE_FOLDER = Path(installer.__file__).parents[1]
INSTALLER_NAME = "install.py"
REQUIREMENTS_NAME = "requirements.txt"
WHEEL_METADATA = "Wheel-Version: 1.0\nGenerator: rollbook\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def write_installer(run: Path, folder: Path, pack: PackedFolder | None) -> None:
    """Write the wheel, the installer, and its settings: the requirements of the packed folder are installed too."""
    name, wheel = build_wheel(_find_distribution())
    listed = run / "jobs" / "pack" / pack.name / REQUIREMENTS_NAME if pack else None
    settings = {"wheel": name, "requirements": str(listed) if listed and listed.exists() else None}
    with explain_disk_errors(run):
        write_atomically(folder / name, wheel)
        write_atomically(folder / INSTALLER_NAME, Path(installer.__file__).read_bytes())
        write_atomically(folder / "install.json", encode_pretty(settings))


def _find_distribution() -> Distribution:
    try:
        return distribution("rollbook")
    except PackageNotFoundError:
        raise UsageError("--install: Rollbook is not installed here, so its requirements are unknown") from None


def build_wheel(dist: Distribution) -> tuple[str, bytes]:
    """Build a wheel of the installed package; return its name and bytes. The same files make the same bytes."""
    about = f"rollbook-{dist.version}.dist-info"
    files = {f"rollbook/{path}": data for path, data in _read_package_files(PACKAGE_FOLDER).items()}
    files |= {
        f"{about}/METADATA": (dist.read_text("METADATA") or "").encode(),
        f"{about}/WHEEL": WHEEL_METADATA.encode(),
    }
    files[f"{about}/entry_points.txt"] = (dist.read_text("entry_points.txt") or "").encode()
    record = "".join(f"{path},sha256={_hash_record(data)},{len(data)}\n" for path, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, ZIP_TIME), data, zipfile.ZIP_DEFLATED)
    return f"rollbook-{dist.version}-py3-none-any.whl", buffer.getvalue()


def _read_package_files(package: Path) -> dict[str, bytes]:
    paths = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}


def _hash_record(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
