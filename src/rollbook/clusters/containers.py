"""The words before a command that put it into a container, for each runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollbook.clusters.profile import Part, Profile

SANDBOX = ("ROLLBOOK_SANDBOX", "NEMO_SKILLS_SANDBOX_HOST", "NEMO_SKILLS_SANDBOX_PORT")
"""What is exported of a sandbox beside a worker: our own name, with the token in it, and those of NeMo-Skills."""


def contained(profile: Profile, name: str, run: Path, names: Sequence[str] = ()) -> list[str]:
    """What stands before the command of a part: nothing where it runs in no image. `names`: variables it needs."""
    image = profile.image_of(name)
    if image is None:
        return []
    part: Part = getattr(profile, name)
    mounts = [*profile.mounts, *part.mounts, f"{run}:{run}"]
    if profile.container == "pyxis":
        return _pyxis(image, mounts, part.workdir, [*profile.secrets, *part.environment, *names])
    return _apptainer(image, mounts, part.workdir, bool(profile.gpus or profile.gres))


def _pyxis(image: str, mounts: Sequence[str], workdir: str | None, names: Sequence[str]) -> list[str]:
    words = ["srun", "--overlap", "--ntasks=1", "--no-container-mount-home", f"--container-image={image}"]
    words.append(f"--container-mounts={','.join(mounts)}")
    words += [f"--container-workdir={workdir}"] if workdir else []
    words += [f"--container-env={','.join(names)}"] if names else []
    return words


def _apptainer(image: str, mounts: Sequence[str], workdir: str | None, gpus: bool) -> list[str]:
    words = ["apptainer", "exec", *(["--nv"] if gpus else [])]
    for mount in mounts:
        words += ["--bind", mount]
    words += ["--pwd", workdir] if workdir else []
    return [*words, image]
