"""The session cookie: a name nobody can guess, signed, so that nobody can make one up either."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import urlsafe_b64encode

from aiohttp import web

_NOT_A_WORD = re.compile(r"[^A-Za-z0-9_-]+")


class Cookies:
    """Reads and writes the cookie of one server. Other servers' cookies, which agents send along, are not touched."""

    def __init__(self, server: str) -> None:
        self.name = f"Rollbook___{slug(server)}"
        self._secret = secrets.token_bytes(32)

    def read(self, request: web.Request) -> str:
        """The session that a request is about; empty without a cookie of ours, or with one that we did not sign."""
        session, _, signature = request.cookies.get(self.name, "").rpartition(".")
        given = signature.encode(errors="replace")  # a header may hold any bytes
        return session if hmac.compare_digest(given, self._sign(session).encode()) else ""

    def write(self, response: web.StreamResponse, session: str) -> None:
        """Tell the client its session."""
        response.set_cookie(self.name, f"{session}.{self._sign(session)}", httponly=True, samesite="lax")

    def _sign(self, session: str) -> str:
        digest = hmac.digest(self._secret, session.encode(errors="replace"), hashlib.sha256)
        return urlsafe_b64encode(digest).decode().rstrip("=")


def new_session() -> str:
    """A name for a session."""
    return secrets.token_urlsafe(16)


def slug(text: str) -> str:
    """A text as a word that names of cookies, servers and files may hold.

    >>> slug("envs/sums.py:Sums?top=9")
    'envs_sums_py_Sums_top_9'
    """
    return _NOT_A_WORD.sub("_", text).strip("_") or "environment"
