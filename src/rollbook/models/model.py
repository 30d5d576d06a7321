"""The interface of every model, how agents ask one during a rollout, and which model the targets of -m name.

A model never invents data: what the server did not report is None, or a RolloutFailed. `AbsentModel` is used where a
run has no model of its own, because its rollouts run elsewhere. A target is nothing (the embedded model),
scripted:FILE, PROVIDER/NAME (`providers.py`), or URLs of endpoints; URLs are checked and normalised here, and never
contain a secret. Model classes are imported only when they are opened.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NotRequired, Protocol, TypedDict, Unpack
from urllib.parse import parse_qsl, urlsplit

import msgspec

from rollbook.core import JSON, Message, ModelSpec, Sampling, Settings, Turn
from rollbook.errors import RolloutFailed, UsageError


class Completion(msgspec.Struct, frozen=True):
    """The model's message, and the turn that records the call."""

    message: Message
    turn: Turn


class ModelCall(TypedDict):
    """What identifies a call besides its messages and sampling.

    The turns of a rollout stay on one replica; so do the rollouts of a group (a task) while load allows.
    """

    seed: int
    rollout: str
    group: NotRequired[str]
    tools: NotRequired[Sequence[JSON]]


class Model(Protocol):
    """Answers conversations.

    `complete` raises RolloutFailed (with a kind of FAILURE_KINDS) when no answer came, ContextFull when the prompt does
    not fit, EndpointDown when no server answered for the whole outage allowance. `version` is recorded on every turn;
    code that changes the weights sets it.
    A subclass with nothing to open or close inherits `open` and `close`.
    """

    spec: ModelSpec
    version: str | None

    @property
    def wire_names(self) -> Mapping[str, str]:
        """The names under which parameters are sent, where the endpoint does not take the usual ones."""
        return {}

    async def open(self) -> None:
        """Connect, find the served name, and find out what the server can report."""
        return

    async def close(self) -> None:
        """Close every connection and process."""
        return

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Answer once."""
        ...

    def stop_waiting(self) -> None:
        """Let calls that wait for a server, now or later, raise EndpointDown at once."""
        return

    def describe_outage(self) -> str:
        """Return how long no server has answered, and why; empty while one does."""
        return ""


class AskModel(Protocol):
    """Ask the model once, with the rollout's own sampling and seed.

    ContextFull and LimitReached end the conversation and must not be caught: the part that exists is scored.
    """

    sampling: Sampling

    async def __call__(
        self, messages: Sequence[Message], *, tools: Sequence[JSON] = (), extra: Mapping[str, JSON] | None = None
    ) -> Completion:
        """Return one answer. `tools` are offered in the server's own fields, `extra` is further sampling."""
        ...


ENDPOINT_KINDS = ("chat", "anthropic")
"""Kinds of models that are reached by a URL."""
REMOTE_MODEL_SPEC = ModelSpec("remote", "remote")


class AbsentModel(Model):
    """The model of a run whose rollouts run elsewhere; it is never asked."""

    def __init__(self, spec: ModelSpec = REMOTE_MODEL_SPEC) -> None:
        self.spec = spec
        self.version: str | None = None

    async def complete(self, messages: Sequence[Message], sampling: Sampling, **call: Unpack[ModelCall]) -> Completion:
        """Fail: this run has no model."""
        raise RolloutFailed("agent_error", "model", "this run has no model: its rollouts run elsewhere")


_SECRET_NAME = re.compile(
    r"(?:^|[^a-z])(?:key|token|secret|sig|signature|password|passwd|pwd|auth|credentials?|code)s?$|apikey|authorization"
    r"|accesstoken",
    re.IGNORECASE,
)
_EXAMPLE = "give one like http://host:8000/v1"


def normalize_base_url(text: str) -> str:
    """Return an endpoint's base URL without its last slash; UsageError explains what is wrong with it.

    A query (Azure's api-version) is part of it and sent with every request; it must contain no secret. A missing /v1 is
    left missing: not every endpoint has one. `open` suggests it if the URL itself is not an endpoint.

    >>> normalize_base_url("http://host:8000/v1/")
    'http://host:8000/v1'
    """
    text = text.strip()
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise UsageError(f"-m {_without_secrets(text)}: not a URL ({error}); {_EXAMPLE}") from None
    if url.scheme not in ("http", "https") and "://" in text:
        raise UsageError(f"-m {_without_secrets(text)}: only http and https work; {_EXAMPLE}")
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or " " in text:
        raise UsageError(f"-m {_without_secrets(text)}: not a URL; {_EXAMPLE}")
    if "@" in url.netloc:
        raise UsageError(
            f"-m {_without_secrets(text)}: no user or password in the URL; the key goes into OPENAI_API_KEY"
        )
    if url.fragment:
        raise UsageError(f"-m {_without_secrets(text)}: the URL must have no #")
    for name, _ in parse_qsl(url.query, keep_blank_values=True):
        if _SECRET_NAME.search(name):
            advice = "send it as a header with --header NAME=ENV_VAR"
            raise UsageError(f"-m {_without_secrets(text)}: {name} in the query looks like a secret; {advice}")
    path, mark, query = text.partition("?")
    return path.rstrip("/") + (mark + query if query else "")


def join_url(base: str, path: str) -> str:
    """Return the address of a route below a base URL, with the query of the base.

    >>> join_url("https://host/openai/deployments/d?api-version=1", "chat/completions")
    'https://host/openai/deployments/d/chat/completions?api-version=1'
    """
    before, mark, query = base.partition("?")
    return f"{before}/{path}{mark}{query}"


def _without_secrets(text: str) -> str:
    # What precedes an @ or follows a ? may be a secret.
    scheme, mark, rest = text.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]


EMBEDDED_NAME = "SmolLM2-135M-Instruct"
EMBEDDED_SLOTS = 16
"""How many answers the embedded model writes at once; more rollouts than that would only wait for it."""
SCRIPTED_PREFIX = "scripted:"


def resolve_model(
    targets: Sequence[str],
    name: str = "",
    settings: Settings = Settings(),  # noqa: B008 - frozen
    *,
    kind: str = "chat",
    needs_key: bool = True,
) -> tuple[ModelSpec, Settings]:
    """Return the spec of a model (part of a run's meaning), and the settings with its addresses (not part of it).

    `kind` is how the endpoint of a plain URL is spoken to. Without `needs_key`, a provider's key may be missing here.
    An endpoint's empty name is filled in by `open`, if the endpoint serves exactly one model.
    """
    if not targets and not settings.base_urls:
        return _resolve_embedded(name), msgspec.structs.replace(settings, urls=[])
    if any(target.startswith(SCRIPTED_PREFIX) for target in targets):
        spec, urls = _resolve_scripted(targets, name)
        return spec, msgspec.structs.replace(settings, urls=urls)
    if settings.base_urls:
        name = _take_verbatim_name(targets, name, settings.base_urls)
        urls = _normalize_replicas(settings.base_urls)
        return ModelSpec(name, kind), msgspec.structs.replace(settings, urls=urls, base_urls=[])
    if not is_provider_target(targets):
        return ModelSpec(name, kind), msgspec.structs.replace(settings, urls=_normalize_replicas(targets))
    from rollbook.models.providers import resolve_provider

    return resolve_provider(targets, name, settings, needs_key)


def is_provider_target(targets: Sequence[str]) -> bool:
    """Return whether -m names a model of a provider, rather than URLs or addresses that are meant as URLs.

    >>> [is_provider_target([target]) for target in ("openai/gpt-5", "http://host/v1", "localhost:8000", "llama3:8b")]
    [True, False, False, True]
    """
    address = re.compile(r"\w+://|[\w.-]+:\d+(/|$)|localhost|scripted:|\s*$")
    return bool(targets) and not any(address.match(target) for target in targets)


def _normalize_replicas(targets: Sequence[str]) -> list[str]:
    urls = [normalize_base_url(target) for target in targets]
    if len(set(urls)) < len(urls):
        raise UsageError(f"-m {next(u for u in urls if urls.count(u) > 1)}: given twice; each replica has its own URL")
    return urls


def _take_verbatim_name(targets: Sequence[str], name: str, base_urls: Sequence[str]) -> str:
    """Return the name that -m gives next to --base-url."""
    if len(targets) > 1:
        raise UsageError(f"-m {targets[0]} -m {targets[1]}: with --base-url, -m is the name of one model")
    given = targets[0] if targets else name
    if "://" in given:
        raise UsageError(f"-m {_without_secrets(given)}: with --base-url {base_urls[0]}, -m is the model's name")
    if name and name != given:
        raise UsageError(f"--model-name {name}: -m {given} names another model; give one of them")
    return given


def open_model(
    spec: ModelSpec, settings: Settings, *, say: Callable[[str], None] | None = None, answered: bool = False
) -> Model:
    """Return the model of a spec, not yet opened. `say` gets one line about anything that takes long.

    `answered`: its endpoint was probed, and answered.
    """
    if spec.kind == "chat":
        from rollbook.models.chat import ChatModel

        return ChatModel(spec, settings, say=say, answered=answered)
    if spec.kind == "anthropic":
        from rollbook.models.anthropic import AnthropicModel

        return AnthropicModel(spec, settings, say=say, answered=answered)
    if spec.kind == "scripted":
        from rollbook.models.scripted import ScriptedModel

        return ScriptedModel(spec, settings)
    if spec.kind == "embedded":
        from rollbook.models.embedded import EmbeddedModel

        return EmbeddedModel(spec, settings, say=say)
    if spec.kind == "remote":
        return AbsentModel(spec)
    raise UsageError(f"model kind {spec.kind!r} is unknown; known: anthropic, chat, embedded, remote, scripted")


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
