"""From what the user names with -m to a model: no target (embedded), scripted:FILE, or URLs of endpoints.

URLs are checked and normalised here, and never contain a secret. Model classes are imported only when they are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from rollbook.core import ModelSpec, Settings
from rollbook.errors import UsageError
from rollbook.models.model import Model

_EXAMPLE = "give one like http://host:8000/v1"


def normalize_base_url(text: str) -> str:
    """An endpoint's base URL without its last slash; a UsageError that says what is wrong with it.

    A missing /v1 is left missing: not every endpoint has one. `open` looks there when the URL itself leads nowhere.

    >>> normalize_base_url("http://host:8000/v1/")
    'http://host:8000/v1'
    """
    text = text.strip()
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise UsageError(f"-m {_without_secrets(text)}: not a URL ({error}); {_EXAMPLE}") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or " " in text:
        raise UsageError(f"-m {_without_secrets(text)}: not a URL; {_EXAMPLE}")
    if "@" in url.netloc:
        raise UsageError(
            f"-m {_without_secrets(text)}: no user or password in the URL; the key goes into OPENAI_API_KEY"
        )
    if url.query or url.fragment:
        raise UsageError(f"-m {_without_secrets(text)}: the URL must end at its path, without ? or #")
    return text.rstrip("/")


def _without_secrets(text: str) -> str:
    # What stands before an @ or behind a ? may be a secret.
    scheme, mark, rest = text.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]


EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_SLOTS = 16
"""How many answers the embedded model writes at once; more rollouts than that would only wait for it."""
SCRIPTED_PREFIX = "scripted:"


def resolve_model(targets: Sequence[str], name: str = "") -> tuple[ModelSpec, list[str]]:
    """Who answers (which is part of a run's meaning), and where (which is not): the spec, and `Settings.urls`.

    An empty name of an endpoint is filled in by `open`, if the endpoint serves exactly one model.
    """
    if not targets:
        return _resolve_embedded(name), []
    if any(target.startswith(SCRIPTED_PREFIX) for target in targets):
        return _resolve_scripted(targets, name)
    urls = [normalize_base_url(target) for target in targets]
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
        from rollbook.models.model import AbsentModel

        return AbsentModel(spec)
    raise UsageError(f"model kind {spec.kind!r} is unknown; known: chat, embedded, remote, scripted")


def _resolve_embedded(name: str) -> ModelSpec:
    from rollbook.models.weights import SHA256

    if name and name != EMBEDDED_NAME:
        raise UsageError(f"--model-name {name}: without -m the embedded {EMBEDDED_NAME} answers; give -m URL as well")
    return ModelSpec(EMBEDDED_NAME, "embedded", SHA256)


def _resolve_scripted(targets: Sequence[str], name: str) -> tuple[ModelSpec, list[str]]:
    from rollbook.models.scripted import hash_script, parse_script_path, read_script

    if len(targets) > 1:
        raise UsageError(f"-m {targets[0]} -m {targets[1]}: a script answers alone; give one -m")
    path = parse_script_path(targets)
    read_script(path)
    return ModelSpec(name or path.name, "scripted", hash_script(path)), [f"{SCRIPTED_PREFIX}{path}"]
