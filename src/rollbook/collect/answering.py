"""Who answers in a run: the model that was asked for, or nobody of ours where others play the rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.core.manifest import ModelSpec
from rollbook.environments.registry import Loaded
from rollbook.errors import UsageError
from rollbook.models.absent import REMOTE
from rollbook.models.target import resolve_model


def model_for(several: Sequence[Loaded], targets: Sequence[str], name: str = "") -> tuple[ModelSpec, list[str]]:
    """The model of a run of these environments, and its URLs; -m is refused where nobody would ask it."""
    if any(loaded.cls.needs_model for loaded in several):
        return resolve_model(targets, name)
    given = [*(f"-m {target}" for target in targets), *([f"--model-name {name}"] if name else [])]
    if given:
        who = several[0].spec.spec
        raise UsageError(f"{given[0]}: {who} plays its rollouts with a model of its own; leave it out")
    return REMOTE, []


def planned_model(planned: ModelSpec, urls: Sequence[str]) -> ModelSpec:
    """The model that a run goes on with, as these settings name it."""
    if planned.kind != REMOTE.kind:
        return resolve_model(urls, planned.name)[0]
    if urls:
        raise UsageError(f"-m {urls[0]}: this run is played elsewhere, with a model of its own; leave it out")
    return planned
