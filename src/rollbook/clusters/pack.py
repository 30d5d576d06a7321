"""A project folder that travels with a run: copied into RUN/jobs/pack without what git ignores, and named by digest."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from rollbook.book.durable import writing
from rollbook.clusters.order import Pack
from rollbook.errors import UsageError

SHOWN = 5
LEFT_OUT = frozenset((".git", "__pycache__", ".venv", "node_modules"))
"""What stays at home where no .gitignore says so."""


def packed(folder: Path, run: Path, say: Callable[[str], None]) -> Pack:
    """Copy a folder; what was not committed goes along, and is named."""
    source = folder.resolve()
    target = run / "jobs" / "pack" / source.name
    files = [path for path in checked_files(folder) if run.resolve() not in (source / path).resolve().parents]
    with writing(run):
        for path in files:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, target / path)
    changed = uncommitted(source)
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        say(f"packed as they are, not committed: {', '.join(changed[:SHOWN])}{more}")
    return Pack(source.name, digest_of(target), changed)


def checked_files(folder: Path) -> list[str]:
    """The files of a folder that can be packed; UsageError if it is none, or git does not say what it ignores."""
    if not folder.is_dir():
        raise UsageError(f"--pack {folder}: not a folder")
    return sorted(_files(folder.resolve(), set()))


def check_pack(run: Path, pack: Pack) -> None:
    """Refuse a copy that was edited since: workers of one run run one code."""
    folder = run / "jobs" / "pack" / pack.name
    if not folder.is_dir() or digest_of(folder) != pack.digest:
        raise UsageError(f"{folder} is not what was packed: restore it from a copy of the run")


def _files(source: Path, seen: set[Path]) -> set[str]:
    """The files of a folder, relative to it, without what git ignores; without git, all but the usual clutter.

    What git knows as one name, a repository within or a link to a folder, is packed with the files that it has.
    """
    if source.resolve() in seen:
        return set()
    seen.add(source.resolve())
    listed = _git(source, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    found = _walked(source) if listed is None else {path for path in listed.split("\0") if path}
    folders = {path for path in found if (source / path).is_dir()}
    inner = {os.path.join(path, name) for path in sorted(folders) for name in _files(source / path, seen)}
    return {path for path in found - folders if (source / path).is_file()} | inner


def _walked(source: Path) -> set[str]:
    found = set()
    for here, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found |= {os.path.relpath(os.path.join(here, name), source) for name in files}
    return found


def uncommitted(source: Path) -> list[str]:
    """The files that differ from the last commit, or that it does not have; none where there is no git."""
    said = _git(source, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    return sorted(os.fsencode(entry[3:]).decode(errors="replace") for entry in (said or "").split("\0") if entry)


def digest_of(folder: Path) -> str:
    """The sha256 of all names and contents in a folder; what Python leaves there while it runs does not count."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            inner = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(os.fsencode(path.relative_to(folder)) + f"\0{inner}\n".encode())
    return total.hexdigest()


def _git(source: Path, *words: str) -> str | None:
    """What git says; None where there is no repository. One that git cannot read is refused, for it ignores secrets."""
    try:
        done = subprocess.run(["git", "-C", str(source), *words], capture_output=True, timeout=60)
    except FileNotFoundError:
        if any((folder / ".git").exists() for folder in (source, *source.parents)):
            raise UsageError(f"--pack {source}: a git repository, and git is not here to say what it ignores") from None
        return None
    said = " ".join(done.stderr.decode(errors="replace").split())
    if done.returncode and "not a git repository" in said:
        return None
    if done.returncode:
        raise UsageError(f"--pack {source}: git cannot say what it ignores: {said.removeprefix('fatal: ')[:200]}")
    return os.fsdecode(done.stdout)
