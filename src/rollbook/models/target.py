"""From what the user names to a model: no target, scripted:FILE, or URLs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rollbook.core.manifest import ModelSpec, Settings
from rollbook.errors import UsageError
from rollbook.models.address import base_url
from rollbook.models.model import Model

EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_SLOTS = 16
"""How many answers the embedded model writes at once; more rollouts than that would only wait for it."""
SCRIPTED = "scripted:"


def resolve_model(targets: Sequence[str], name: str = "") -> tuple[ModelSpec, list[str]]:
    """Who answers (which is part of a run's meaning), and where (which is not): the spec, and `Settings.urls`.

    An empty name of an endpoint is filled in by `open`, if the endpoint serves exactly one model.
    """
    if not targets:
        return _embedded(name), []
    if any(target.startswith(SCRIPTED) for target in targets):
        return _scripted(targets, name)
    urls = [base_url(target) for target in targets]
    if len(set(urls)) < len(urls):
        raise UsageError(f"-m {next(u for u in urls if urls.count(u) > 1)}: given twice; each replica has its own URL")
    return ModelSpec(name, "chat"), urls


def open_model(spec: ModelSpec, settings: Settings, *, say: Callable[[str], None] | None = None) -> Model:
    """The model of a spec, not yet opened. `say` is told, one line at a time, about anything that takes long."""
    if spec.kind == "chat":
        from rollbook.models.chat import ChatModel

        return ChatModel(spec, settings, say=say)
    if spec.kind == "scripted":
        from rollbook.models.scripted import ScriptedModel

        return ScriptedModel(spec, settings)
    if spec.kind == "embedded":
        from rollbook.models.embedded import EmbeddedModel

        return EmbeddedModel(spec, settings, say=say)
    if spec.kind == "remote":
        from rollbook.models.absent import AbsentModel

        return AbsentModel(spec)
    raise UsageError(f"model kind {spec.kind!r} is unknown; known: chat, embedded, remote, scripted")


def _embedded(name: str) -> ModelSpec:
    from rollbook.models.weights import SHA256

    if name and name != EMBEDDED_NAME:
        raise UsageError(f"--model-name {name}: without -m the embedded {EMBEDDED_NAME} answers; give -m URL as well")
    return ModelSpec(EMBEDDED_NAME, "embedded", SHA256)


def _scripted(targets: Sequence[str], name: str) -> tuple[ModelSpec, list[str]]:
    from rollbook.models.scripted import digest_of, read_script, script_path

    if len(targets) > 1:
        raise UsageError(f"-m {targets[0]} -m {targets[1]}: a script answers alone; give one -m")
    path = script_path(targets)
    read_script(path)
    return ModelSpec(name or path.name, "scripted", digest_of(path)), [f"{SCRIPTED}{path}"]
