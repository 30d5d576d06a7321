"""The files that a session begins with: a copy of a folder of the host's."""

from __future__ import annotations

import os
from pathlib import Path

from rollbook.trainers.nemo_rl.sample import Refused

FILES_MOST = 2048


def files_of(folder: str, most_bytes: int) -> dict[str, bytes]:
    """Every plain file below a folder, by its name there. Links are not followed; what is too much is refused."""
    if not os.path.isdir(folder):
        raise Refused(f"metadata working_dir={folder}: there is no such folder where the session lives")
    files: dict[str, bytes] = {}
    left = most_bytes
    for path in sorted(Path(folder).rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        left -= path.stat().st_size
        if left < 0 or len(files) >= FILES_MOST:
            raise Refused(f"metadata working_dir={folder}: it holds more than {most_bytes} bytes or {FILES_MOST} files")
        files[str(path.relative_to(folder))] = path.read_bytes()
    return files
