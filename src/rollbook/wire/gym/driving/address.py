"""The address of somebody else's server, as it is written on the command line."""

from __future__ import annotations

from urllib.parse import urlsplit

from rollbook.errors import UsageError


def address(text: str, scheme: str = "") -> str:
    """The base URL of `http://host:port`, or of `SCHEME://host:port`; a UsageError says what is wrong with it.

    >>> address("gym+agent://host:9000/", "gym+agent")
    'http://host:9000'
    """
    like = f"write {scheme or 'http'}://host:port"
    shown = text.rpartition("@")[2].partition("?")[0]  # what stands before an @ or behind a ? may be a secret
    try:
        url = urlsplit(text.strip())
        port = url.port
    except ValueError as error:
        raise UsageError(f"{shown}: not an address ({error}); {like}") from None
    if "@" in url.netloc:
        raise UsageError(f"{shown}: no user or password in an address; {like}")
    if not url.hostname or port == 0 or url.query or url.fragment or " " in url.netloc:
        raise UsageError(f"{shown}: not an address; {like}")
    return f"{url.scheme if not scheme else 'http'}://{url.netloc}{url.path.rstrip('/')}"
