"""Providers of models: the table of their base URLs, key variables, headers and quirks, and headers in general.

A preset only fills in settings (URLs, key variable, headers, names of parameters). Nothing later depends on it, so that
a run continues from its stored settings alone. Values of keys and headers are read from the environment when a model is
opened; only the names of their variables are stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from shlex import quote

import msgspec

from rollbook.core import ModelSpec, Settings, default_key_variable
from rollbook.errors import UsageError
from rollbook.models.model import normalize_base_url
from rollbook.models.server_errors import MAX_COMPLETION_TOKENS

KEY_HEADERS = ("api-key", "x-api-key", "authorization")
"""Headers that carry a key, in lower case."""


OWN_HEADERS = ("content-type", "content-length", "host", "accept", "accept-encoding")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_|~-]+")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_headers(headers: Mapping[str, str]) -> None:
    """Refuse what is not the name of a header with the name of a variable, before it is stored anywhere."""
    for name, variable in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise UsageError("--header: write NAME=ENV_VAR, as in --header api-key=AZURE_OPENAI_API_KEY")
        if not _VARIABLE_NAME.fullmatch(variable):
            # the value may be the secret itself: it is not repeated
            raise UsageError(f"--header {name}=...: give the name of the variable that holds the value, not the value")
        if name.lower() in OWN_HEADERS:
            raise UsageError(f"--header {name}={variable}: {name} is set by Rollbook")


def read_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with their values from the environment; UsageError names a variable that cannot be used."""
    check_headers(headers)
    found = {}
    for name, variable in headers.items():
        value = os.environ.get(variable, "").strip()
        if not value:
            raise UsageError(f"--header {name}={variable}: {variable} is not set; export it first")
        if not (value.isascii() and value.isprintable()):
            raise UsageError(f"--header {name}={variable}: {variable} is not valid in a header: use printable ASCII")
        found[name] = value
    return found


def find_key_variable(settings: Settings) -> str:
    """Return the variable that holds the endpoint's key: that of a header which carries it, else the usual one."""
    for name, variable in settings.headers.items():
        if name.lower() in KEY_HEADERS:
            return variable
    return settings.api_key_env


def has_key_header(settings: Settings) -> bool:
    """Return whether a header of the settings carries the key."""
    return any(name.lower() in KEY_HEADERS for name in settings.headers)


def advise_on_key(settings: Settings) -> str:
    """Return what to do about a key that an endpoint refuses, with the variable that holds it."""
    variable = find_key_variable(settings)
    if not os.environ.get(variable, "").strip():
        return f"set {variable} to the key, or name another variable with --api-key-env"
    option = "--api-key-env" if variable == settings.api_key_env else "--header"
    return f"the key in {variable} was not accepted ({option} names another variable)"


def list_secrets(settings: Settings) -> list[str]:
    """Return the variables whose values are secrets of the model, the judge or another role."""
    names = [settings.api_key_env, settings.judge_key_env, *settings.headers.values(), *settings.judge_headers.values()]
    for role, given in settings.roles.items():
        names += [given.key_env or default_key_variable(role), *given.headers.values()]
    return [*dict.fromkeys(names)]


class ModelProvider(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table.

    `base_env` is the variable that holds another base URL, or the only one. `key_header` carries the key where that is
    not `Authorization: Bearer`; kinds of models other than chat know their own. `wire_names` are the names of
    parameters to begin with. `models` are beginnings of names by which a model is recognised without its prefix.
    """

    base_url: str
    base_env: str
    key_env: str
    needs_key: bool = True
    key_header: str = ""
    kind: str = "chat"
    wire_names: dict[str, str] = {}
    models: tuple[str, ...] = ()


PROVIDERS: Mapping[str, ModelProvider] = {
    "openai": ModelProvider(
        base_url="https://api.openai.com/v1",
        base_env="OPENAI_BASE_URL",
        key_env="OPENAI_API_KEY",
        # all of its models take the newer name; the newer models take no other
        wire_names={"max_tokens": MAX_COMPLETION_TOKENS},
        models=("gpt-", "o1", "o3", "o4", "chatgpt-"),
    ),
    "anthropic": ModelProvider(
        base_url="https://api.anthropic.com/v1",
        base_env="ANTHROPIC_BASE_URL",
        key_env="ANTHROPIC_API_KEY",
        kind="anthropic",
        models=("claude-",),
    ),
    "gemini": ModelProvider(
        base_url="https://generativelanguage.googleapis.com/v1beta/openai",
        base_env="GEMINI_BASE_URL",
        key_env="GEMINI_API_KEY",
        models=("gemini-",),
    ),
    "openrouter": ModelProvider(
        base_url="https://openrouter.ai/api/v1", base_env="OPENROUTER_BASE_URL", key_env="OPENROUTER_API_KEY"
    ),
    "together": ModelProvider(
        base_url="https://api.together.xyz/v1", base_env="TOGETHER_BASE_URL", key_env="TOGETHER_API_KEY"
    ),
    "azure": ModelProvider(
        base_url="", base_env="AZURE_OPENAI_ENDPOINT", key_env="AZURE_OPENAI_API_KEY", key_header="api-key"
    ),
    "ollama": ModelProvider(
        base_url="http://localhost:11434/v1", base_env="OLLAMA_BASE_URL", key_env="OLLAMA_API_KEY", needs_key=False
    ),
    "vllm": ModelProvider(
        base_url="http://localhost:8000/v1", base_env="VLLM_BASE_URL", key_env="VLLM_API_KEY", needs_key=False
    ),
    "sglang": ModelProvider(
        base_url="http://localhost:30000/v1", base_env="SGLANG_BASE_URL", key_env="SGLANG_API_KEY", needs_key=False
    ),
}
AZURE_VERSION_ENV = "OPENAI_API_VERSION"
"""Azure's older URLs name the deployment and an api-version; with this variable they are used, as by its own client."""
_USUAL_KEYS = (Settings().api_key_env, Settings().judge_key_env)


def resolve_provider(
    targets: Sequence[str], model_name: str, settings: Settings, needs_key: bool = True
) -> tuple[ModelSpec, Settings]:
    """Return the model that PROVIDER/NAME names, and the settings to reach it with."""
    target = targets[0]
    if len(targets) > 1:
        raise UsageError(f"-m {target} -m {targets[1]}: one model only; replicas are given by their URLs")
    prefix, _, name = target.partition("/")
    if prefix not in PROVIDERS or not name:
        raise UsageError(f"-m {target}: {_suggest_target(target)}")
    if model_name and model_name != name:
        raise UsageError(f"--model-name {model_name}: -m {target} names another model; give one of them")
    provider = PROVIDERS[prefix]
    key_env = provider.key_env if settings.api_key_env in _USUAL_KEYS else settings.api_key_env
    own_key = has_key_header(settings)
    if needs_key and provider.needs_key and not own_key and not os.environ.get(key_env, "").strip():
        raise UsageError(f"-m {target}: {key_env} is not set; set it to the key, or give --api-key-env NAME")
    own_header = {provider.key_header: key_env} if provider.key_header and not own_key else {}
    return ModelSpec(name, provider.kind), msgspec.structs.replace(
        settings,
        urls=[_find_base_url(target, provider, name)],
        api_key_env=key_env,
        headers={**own_header, **settings.headers},
        wire_names=dict(provider.wire_names),
    )


def _find_base_url(target: str, provider: ModelProvider, name: str) -> str:
    base = os.environ.get(provider.base_env, "").strip().rstrip("/") or provider.base_url
    if not base:
        raise UsageError(f"-m {target}: {provider.base_env} is not set; set it to https://RESOURCE.openai.azure.com")
    try:
        base = normalize_base_url(base)
    except UsageError as error:
        raise UsageError(f"{provider.base_env}: {str(error).removeprefix('-m ')}") from None
    if provider.kind == "anthropic" and not base.endswith("/v1"):
        return f"{base}/v1"  # the variable is that of Anthropic's own client, which adds it
    if provider.base_env == "AZURE_OPENAI_ENDPOINT" and "/openai" not in base:
        version = os.environ.get(AZURE_VERSION_ENV, "").strip()
        return f"{base}/openai/deployments/{name}?api-version={version}" if version else f"{base}/openai/v1"
    return base


def _suggest_target(target: str) -> str:
    """Return what is wrong with a target that names no provider, and what may be meant."""
    prefix, slash, name = target.partition("/")
    known = " ".join(f"{each}/" for each in PROVIDERS)
    owner = next((each for each, row in PROVIDERS.items() if row.models and target.startswith(row.models)), None)
    close = get_close_matches(prefix.lower(), PROVIDERS, n=1, cutoff=0.7) if slash and name else []
    if prefix in PROVIDERS:
        return f"name the model after {prefix}/"
    meant = f"{owner}/{target}" if owner else f"{close[0]}/{name}" if close else ""
    hint = f"did you mean {meant}? " if meant else ""
    return f"{hint}write PROVIDER/NAME ({known}), or the endpoint as -m URL --model-name {quote(target)}"
