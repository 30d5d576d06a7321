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
    if not source.is_dir():
        raise UsageError(f"--pack {folder}: not a folder")
    target = run / "jobs" / "pack" / source.name
    files = [path for path in files_of(source) if run.resolve() not in (source / path).resolve().parents]
    with writing(run):
        for path in files:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / path, target / path)
    changed = uncommitted(source)
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        say(f"packed as they are, not committed: {', '.join(changed[:SHOWN])}{more}")
    return Pack(source.name, digest_of(target), changed)


def check_pack(run: Path, pack: Pack) -> None:
    """Refuse a copy that was edited since: workers of one run run one code."""
    folder = run / "jobs" / "pack" / pack.name
    if not folder.is_dir() or digest_of(folder) != pack.digest:
        raise UsageError(f"{folder} is not what was packed: restore it from a copy of the run")


def files_of(source: Path) -> list[str]:
    """The files of a folder, relative to it, without what git ignores; without git, all but the usual clutter."""
    listed = _git(source, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        return sorted(path for path in set(listed.split("\0")) if path and (source / path).is_file())
    found = []
    for here, folders, files in os.walk(source):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        found += [os.path.relpath(os.path.join(here, name), source) for name in files]
    return sorted(found)


def uncommitted(source: Path) -> list[str]:
    """The files that differ from the last commit, or that it does not have; none where there is no git."""
    said = _git(source, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames", "--", ".")
    return sorted(entry[3:] for entry in (said or "").split("\0") if entry)


def digest_of(folder: Path) -> str:
    """The sha256 of all names and contents in a folder; what Python leaves there while it runs does not count."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            inner = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.relative_to(folder)}\0{inner}\n".encode())
    return total.hexdigest()


def _git(source: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(source), *words], capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None
