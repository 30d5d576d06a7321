"""RUN/jobs/NNNN/install.py, a copy of this file: `python install.py WORDS...` installs, then runs `python WORDS...`.

The first job makes a virtual environment next to the submissions, under a lock; the others wait for it, and later ones
use it. This runs where Rollbook is not installed yet: the standard library and nothing else.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

MIN_PYTHON = (3, 11)
TIMEOUT_S = 1800.0
POLL_S = 1.0


class InstallError(Exception):
    """An installation that failed, with the reason on one line."""


def ensure_environment(folder: Path) -> str:
    """Make the environment of a submission if it is not there; return its Python."""
    settings = json.loads((folder / "install.json").read_text())
    home = folder.parent / f"venv-{hash_environment(folder, settings)}"
    handle = _lock(home.with_suffix(".lock"))
    try:
        if not (home / "ready").exists():
            _create_once(folder, home, settings)
    finally:
        os.close(handle)
    return str(home / "bin" / "python")


def hash_environment(folder: Path, settings: dict[str, str | None]) -> str:
    """Return a digest of an environment's contents and its Python: another of either is another environment."""
    parts = [sys.version.encode(), sys.executable.encode(), (folder / str(settings["wheel"])).read_bytes()]
    parts += [Path(settings["requirements"]).read_bytes()] if settings["requirements"] else []
    return hashlib.sha256(b"\0".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:12]


def _lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    end = time.monotonic() + TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() > end:
                raise InstallError(f"{path}: held by another job for {TIMEOUT_S:g} s") from None
            time.sleep(POLL_S)
        except OSError as error:
            raise InstallError(f"{path}: this file system does not support locks ({error.strerror})") from None


def _create_once(folder: Path, home: Path, settings: dict[str, str | None]) -> None:
    """Make the environment. A failure is recorded, so that other workers of this submission do not try again."""
    failed = folder / f"failed-{home.name}.txt"
    if failed.exists():
        raise InstallError(failed.read_text().strip())
    _log(f"installing into {home}")
    shutil.rmtree(home, ignore_errors=True)
    try:
        _create_environment(folder, home, settings)
    except InstallError as error:
        failed.write_text(f"{error}\n")
        raise
    (home / "ready").touch()


def _create_environment(folder: Path, home: Path, settings: dict[str, str | None]) -> None:
    try:
        venv.create(home, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise InstallError(f"{sys.executable} cannot make a virtual environment: {error}") from None
    words = [str(folder / str(settings["wheel"]))]
    words += ["-r", settings["requirements"]] if settings["requirements"] else []
    cwd = Path(settings["requirements"]).parent if settings["requirements"] else folder
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *words]
    try:
        done = subprocess.run(pip, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise InstallError(f"pip did not finish within {TIMEOUT_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr.strip()]
        raise InstallError(f"pip: {lines[-1].removeprefix('ERROR: ')}")


def _log(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stderr.flush()


def main(words: list[str]) -> int:
    """Install, then become the command; return only if that is impossible."""
    why = _install_and_exec(words)
    sys.stderr.write(f"rollbook: --install: {why}\n")
    return 2


def _install_and_exec(words: list[str]) -> str:
    if sys.version_info < MIN_PYTHON:
        return f"{sys.executable} is too old: set `python:` in the profile to Python 3.11 or newer"
    try:
        python = ensure_environment(Path(__file__).absolute().parent)
        os.execv(python, [python, "-P", *words])
    except (InstallError, OSError) as error:
        return str(error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
