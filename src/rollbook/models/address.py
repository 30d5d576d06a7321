"""An endpoint's address: checked and normalised, never with a secret in it."""

from __future__ import annotations

from urllib.parse import urlsplit

from rollbook.errors import UsageError

_LIKE = "give one like http://host:8000/v1"


def base_url(text: str) -> str:
    """An endpoint's base URL without its last slash; a UsageError that says what is wrong with it.

    A missing /v1 is left missing: not every endpoint has one. `open` looks there when the URL itself leads nowhere.

    >>> base_url("http://host:8000/v1/")
    'http://host:8000/v1'
    """
    text = text.strip()
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise UsageError(f"-m {_shown(text)}: not a URL ({error}); {_LIKE}") from None
    if url.scheme not in ("http", "https") or not url.hostname or port == 0 or " " in text:
        raise UsageError(f"-m {_shown(text)}: not a URL; {_LIKE}")
    if "@" in url.netloc:
        raise UsageError(f"-m {_shown(text)}: no user or password in the URL; the key goes into OPENAI_API_KEY")
    if url.query or url.fragment:
        raise UsageError(f"-m {_shown(text)}: the URL must end at its path, without ? or #")
    return text.rstrip("/")


def _shown(text: str) -> str:
    # What stands before an @ or behind a ? may be a secret.
    scheme, mark, rest = text.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2].partition("?")[0]
