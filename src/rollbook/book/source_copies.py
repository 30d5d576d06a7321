"""source/: the user's own source that a run was planned with; `run.json` has the digest of each environment's files."""

from __future__ import annotations

import hashlib
from pathlib import Path

from rollbook.core import EnvironmentSpec


def list_source_files(folder: Path) -> dict[str, Path]:
    """Return the files of an environment's copy, by their names relative to its folder."""
    files = (file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    return {file.relative_to(folder).as_posix(): file for file in files}


def digest_source(folder: Path) -> str:
    """Return the sha256 over names and bytes of an environment's files, in the order of their names."""
    total, files = hashlib.sha256(), list_source_files(folder)
    for name in sorted(files):
        content = files[name].read_bytes()
        total.update(f"{len(name.encode())} {name} {len(content)} ".encode() + content)
    return total.hexdigest()


def is_source_edited(run: Path, spec: EnvironmentSpec) -> bool:
    """Whether the copy of an environment's source has changed since the run was planned."""
    return spec.snapshot is not None and digest_source(run / spec.snapshot) != spec.digest
