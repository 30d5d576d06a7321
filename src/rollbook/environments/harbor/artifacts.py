"""The artifacts of a rollout: copied out of its container, bounded, into the run directory."""

from __future__ import annotations

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
        place = folder / wanted.lstrip("/")
        try:
            await handle.download(source, place.parent, max_bytes=MAX_ARTIFACT_BYTES)
        except (FileNotFoundError, ValueError) as error:
            collected.notes.append(f"artifact {source}: {str(error)[:200]}")
            continue
        arrived = place.parent / PurePosixPath(source).name
        if arrived != place:
            arrived.rename(place)
        if place.exists():
            collected.found.append(KeptArtifact(source, place))
    return collected
