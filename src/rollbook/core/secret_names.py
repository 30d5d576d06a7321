"""Names that say that a value is a secret: of parameters, of global variables and of environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(
    r"(?:^|[_.-])(?:key|token|auth)$|api[_-]?key|(?:access|auth|bearer|session|id)[_-]?token$|secret|passw(?:or)?d|^pwd$"
    r"|authorization|credential",
    re.IGNORECASE,
)
_PLAIN_NAMES = frozenset({"prompt_cache_key", "bos_token", "eos_token", "pad_token", "unk_token", "stop_token"})
"""Parameters of servers that only look like names of secrets."""
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
MIN_SECRET_LENGTH = 8
"""Shorter values of key variables are placeholders such as EMPTY."""


def looks_secret(name: str) -> bool:
    """Return whether a parameter of this name holds a secret, as far as the name says.

    >>> looks_secret("api_key"), looks_secret("--auth-token"), looks_secret("max_tokens"), looks_secret("eos_token")
    (True, True, False, False)
    """
    return name not in _PLAIN_NAMES and _SECRET_NAME.search(name) is not None


def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret, as far as the name says."""
    return _SECRET_VARIABLE.search(name) is not None


def list_secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the values of the environment variables that hold secrets."""
    found = [value.strip() for name, value in environment.items() if is_secret_variable(name)]
    return [value for value in found if len(value) >= MIN_SECRET_LENGTH]
