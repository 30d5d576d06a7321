"""The artifacts of a rollout: copied out of its container, bounded, into the run directory."""

from __future__ import annotations

import errno
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import msgspec

from rollbook.containers import ContainerHandle
from rollbook.environments.harbor.task_files import Artifact, artifact_source
from rollbook.environments.harbor.verification import LOGS, KeptArtifact

MAX_ARTIFACT_BYTES = 64 << 20
PUBLISHED = f"{LOGS}/artifacts"
"""The folder in which an agent may leave anything: always kept."""


class CollectedArtifacts(msgspec.Struct):
    """What was found, and a note for each that was not, or that is too large."""

    found: list[KeptArtifact] = []
    notes: list[str] = []


@asynccontextmanager
async def keep_artifacts(
    handle: ContainerHandle, artifacts: list[str | Artifact], kept: Path | None
) -> AsyncIterator[CollectedArtifacts]:
    """Copy artifacts to `kept`, or to a folder that lasts as long as the context without a run directory."""
    with tempfile.TemporaryDirectory(prefix="rollbook-artifacts-") as temporary:
        yield await _copy(handle, artifacts, (kept or Path(temporary)) / "artifacts")


async def _copy(handle: ContainerHandle, artifacts: list[str | Artifact], folder: Path) -> CollectedArtifacts:
    collected = CollectedArtifacts()
    published = [] if any(artifact_source(each) == PUBLISHED for each in artifacts) else [PUBLISHED]
    for artifact in [*artifacts, *published]:
        source = artifact_source(artifact)
        wanted = artifact.destination if isinstance(artifact, Artifact) and artifact.destination else source
        place = folder / wanted.strip("/")
        try:
            await _copy_one(handle, source, place, renamed=wanted != source)
        except (OSError, ValueError, tarfile.TarError) as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise
            collected.notes.append(f"artifact {source}: {str(error)[:200]}")
            continue
        if place.exists():
            collected.found.append(KeptArtifact(source, place))
    return collected


async def _copy_one(handle: ContainerHandle, source: str, place: Path, *, renamed: bool) -> None:
    """Copy one artifact to its place; FileExistsError if it would be renamed to one that is kept already."""
    if not renamed:
        await handle.download(source, place.parent, max_bytes=MAX_ARTIFACT_BYTES)
        return
    if place.exists():
        raise FileExistsError(f"another artifact is kept as {place.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place and not in it: under its own name it could meet another artifact.
    with tempfile.TemporaryDirectory(prefix=".artifact-", dir=place.parent) as temporary:
        await handle.download(source, Path(temporary), max_bytes=MAX_ARTIFACT_BYTES)
        arrived = Path(temporary) / PurePosixPath(source).name
        if arrived.exists():
            arrived.rename(place)
