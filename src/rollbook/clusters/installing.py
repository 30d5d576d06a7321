"""What `--install` leaves in a submission's folder: Rollbook as it is here, as a wheel, and what installs it."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from io import BytesIO
from pathlib import Path

from rollbook.book.durable import write_whole, writing
from rollbook.clusters import installer
from rollbook.clusters.order import Pack
from rollbook.core.json import pretty
from rollbook.errors import UsageError

PACKAGE = Path(installer.__file__).parents[1]
INSTALLER = "install.py"
REQUIREMENTS = "requirements.txt"
WHEEL = "Wheel-Version: 1.0\nGenerator: rollbook\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
LONG_AGO = (1980, 1, 1, 0, 0, 0)


def write_installer(run: Path, folder: Path, pack: Pack | None) -> None:
    """Write the wheel, the installer, and what else is to be installed: what the packed folder says it requires."""
    name, wheel = wheel_of(_found())
    asked = run / "jobs" / "pack" / pack.name / REQUIREMENTS if pack else None
    told = {"wheel": name, "requirements": str(asked) if asked and asked.exists() else None}
    with writing(run):
        write_whole(folder / name, wheel)
        write_whole(folder / INSTALLER, Path(installer.__file__).read_bytes())
        write_whole(folder / "install.json", pretty(told))


def _found() -> Distribution:
    try:
        return distribution("rollbook")
    except PackageNotFoundError:
        raise UsageError("--install: Rollbook is not installed here, so nobody knows what it requires") from None


def wheel_of(found: Distribution) -> tuple[str, bytes]:
    """A wheel of the package as it lies here, and its name. The same files make the same bytes."""
    about = f"rollbook-{found.version}.dist-info"
    files = {f"rollbook/{path}": data for path, data in _files(PACKAGE).items()}
    files |= {f"{about}/METADATA": (found.read_text("METADATA") or "").encode(), f"{about}/WHEEL": WHEEL.encode()}
    files[f"{about}/entry_points.txt"] = (found.read_text("entry_points.txt") or "").encode()
    record = "".join(f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items())
    files[f"{about}/RECORD"] = f"{record}{about}/RECORD,,\n".encode()
    held = BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, LONG_AGO), data, zipfile.ZIP_DEFLATED)
    return f"rollbook-{found.version}-py3-none-any.whl", held.getvalue()


def _files(package: Path) -> dict[str, bytes]:
    paths = sorted(path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
