"""The artifacts of a rollout: copied out of its container, bounded, into the run directory."""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath

import msgspec

from rollbook.containers import (
    MAX_LEVELS,
    ContainerHandle,
    hash_folder,
    is_machine_error,
    is_too_deep,
    temporary_folder,
)
from rollbook.environments.harbor.task_files import Artifact, artifact_source
from rollbook.environments.harbor.verification import LOGS, KeptArtifact
from rollbook.errors import ContainerError, RolloutFailed

MAX_ARTIFACT_BYTES = 64 << 20
NAMED, NAME_CHARS = 3, 100
"""How much a note says of files that are left out."""

KEPT_FOLDER = "artifacts"
PUBLISHED = f"{LOGS}/artifacts"
"""The folder in which an agent may leave anything: always kept."""


class CollectedArtifacts(msgspec.Struct):
    """What was found, and a note for each that was not, or that is too large."""

    found: list[KeptArtifact] = []
    notes: list[str] = []
    missing: list[str] = []
    """The paths inside at which nothing was."""


class ArtifactsRecord(msgspec.Struct):
    """What the run directory keeps of a step: enough to run its separate tests again. A field of an outcome."""

    folder: str
    """The folder, relative to that of all artifacts of the run."""
    digest: str
    places: dict[str, str]
    """Where each artifact is in the folder, by its path inside; empty if there was nothing."""


def record_artifacts(collected: CollectedArtifacts, everything: Path, kept: Path) -> ArtifactsRecord:
    """Return the record of artifacts that are kept; one that was too large to be kept has no place in it."""
    folder = kept / KEPT_FOLDER
    places = {each.source: str(each.place.relative_to(folder)) for each in collected.found}
    places |= dict.fromkeys(collected.missing, "")
    return ArtifactsRecord(str(folder.relative_to(everything)), hash_folder(folder), places)


def find_recorded(record: ArtifactsRecord | None, wanted: list[str | Artifact], everything: Path) -> list[KeptArtifact]:
    """Return the artifacts that a run keeps of a step; RolloutFailed says which is not there as it was."""
    if record is None:
        raise RolloutFailed("verifier_error", "verify", "the run keeps no artifacts of this rollout")
    for artifact in [*wanted, PUBLISHED]:
        if artifact_source(artifact) not in record.places:
            why = f"the run does not keep the artifact {artifact_source(artifact)}, so the tests cannot run again"
            raise RolloutFailed("verifier_error", "verify", why)
    if not everything.is_dir():
        why = "this run keeps no artifacts; one that `rollbook reverify` made never does: reverify the first run again"
        raise RolloutFailed("verifier_error", "verify", why)
    folder = everything / record.folder
    if hash_folder(folder) != record.digest:
        raise RolloutFailed("verifier_error", "verify", f"the artifacts in {folder} were changed or removed")
    return [KeptArtifact(source, folder / place) for source, place in record.places.items() if place]


@asynccontextmanager
async def keep_artifacts(
    handle: ContainerHandle, artifacts: list[str | Artifact], kept: Path | None
) -> AsyncIterator[CollectedArtifacts]:
    """Copy artifacts to `kept`, or to a folder that lasts as long as the context without a run directory."""
    if kept:
        yield await _copy(handle, artifacts, kept / KEPT_FOLDER)
        return
    with temporary_folder("artifacts-") as temporary:
        yield await _copy(handle, artifacts, Path(temporary) / KEPT_FOLDER)


async def _copy(handle: ContainerHandle, artifacts: list[str | Artifact], folder: Path) -> CollectedArtifacts:
    collected = CollectedArtifacts()
    published = [] if any(artifact_source(each) == PUBLISHED for each in artifacts) else [PUBLISHED]
    for artifact in [*artifacts, *published]:
        source = artifact_source(artifact)
        wanted = artifact.destination if isinstance(artifact, Artifact) and artifact.destination else source
        place = folder / wanted.strip("/")
        try:
            left_out = await _copy_one(handle, source, place, renamed=wanted != source)
        except FileNotFoundError as error:
            collected.missing.append(source)
            collected.notes.append(f"artifact {source}: {str(error)[:200]}")
            continue
        except (OSError, ValueError, tarfile.TarError) as error:
            if is_machine_error(error):
                raise ContainerError(f"artifact {source} cannot be kept: {error}") from error
            collected.notes.append(f"artifact {source}: {str(error)[:200]}")
            continue
        if left_out:
            collected.notes.append(f"artifact {source}: {_describe_left_out(left_out)}")
        if place.exists():
            collected.found.append(KeptArtifact(source, place))
        else:
            collected.missing.append(source)
            collected.notes.append(f"artifact {source}: it is a link, or neither a file nor a folder")
    return collected


def _describe_left_out(names: list[str]) -> str:
    """Return a note about what was not kept, bounded.

    >>> _describe_left_out(["app/a", "app/b", "app/c", "app/d"])
    'links that lead elsewhere or special files are left out: app/a, app/b, app/c and 1 more'
    >>> _describe_left_out(["app/a", "a/" * 201])[:90]
    'links that lead elsewhere or special files are left out: app/a; what is deeper than 200 le'
    """
    deep = [name for name in names if is_too_deep(name)]
    others = [name for name in names if not is_too_deep(name)]
    notes = [f"links that lead elsewhere or special files are left out: {_shorten(others)}"] if others else []
    notes += [f"what is deeper than {MAX_LEVELS} levels is left out: {_shorten(deep)}"] if deep else []
    return "; ".join(notes)


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(ascii(name)[1:-1][:NAME_CHARS] for name in names[:NAMED]) + more


async def _copy_one(handle: ContainerHandle, source: str, place: Path, *, renamed: bool) -> list[str]:
    """Copy one artifact to its place, and return what is left out of it.

    FileExistsError if it would be renamed to one that is kept already.
    """
    if not renamed:
        return await handle.download(source, place.parent, max_bytes=MAX_ARTIFACT_BYTES)
    if place.exists():
        raise FileExistsError(f"another artifact is kept as {place.name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    # Beside its place and not in it: under its own name it could meet another artifact.
    with tempfile.TemporaryDirectory(prefix=".artifact-", dir=place.parent) as temporary:
        left_out = await handle.download(source, Path(temporary), max_bytes=MAX_ARTIFACT_BYTES)
        arrived = Path(temporary) / PurePosixPath(source).name
        if arrived.exists():
            arrived.rename(place)
    return left_out
