"""Exceptions that cross between two sandboxes: as the nearest of Python's own, by the class and not by its name."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from .plain import ERRORS

ENDINGS = (StopIteration, StopAsyncIteration, GeneratorExit)
"""Out of a call, they would end a loop of the tests as if all were well."""

_NAMES = {kind: name for name, kind in ERRORS.items()}


class Gone(BaseException):
    """The other end is no more: nothing that tests catch."""


class OneProcess(BaseException):
    """The tests ask what only the candidate's own objects could answer."""


class RemoteError(Exception):
    """An exception of the other end that is not one of Python's own."""


def described(error: BaseException, number: int) -> list[Any]:
    """An exception as plain data: the builtin class, what it was given, its own name, and its number here."""
    kind = type(error)
    known = next(base for base in type.mro(kind) if base in _NAMES)
    plain = [arg for arg in error.args if issubclass(type(arg), str | int | float | bool | None)]
    given = [arg[:2000] if isinstance(arg, str) else arg for arg in plain]
    if issubclass(known, OSError) and len(given) == 2 and type(error.filename) is str:  # type: ignore[attr-defined]
        given.append(error.filename[:2000])  # type: ignore[attr-defined]
    return [_NAMES[known], given, "" if kind is known else kind.__name__, number]


def made(raised: Any, unpack: Callable[[Any], Any], looping: bool, beyond: Sequence[type]) -> BaseException:
    """The exception that was described; `beyond`: which may arrive though they are no Exception."""
    known, own = str(raised[0]), str(raised[2])
    given = [unpack(data) for data in raised[1]]
    base = ERRORS.get(known, RemoteError)
    if not issubclass(base, (Exception, *beyond)) or _ends(base, looping):
        base, own = RemoteError, own or known
    if own:
        base = type(own, (RemoteError if base is Exception else base,), {"__module__": "__main__"})
    try:
        return base(*given)
    except Exception:  # noqa: BLE001 - some want other arguments than they show
        return base.__new__(base, *given)


def come_back(error: BaseException, looping: bool) -> BaseException:
    """An exception of this end's own that comes out of the other, unless it would end more here than a call."""
    skip = getattr(sys.modules.get("unittest.case"), "SkipTest", ())
    if not (_ends(type(error), looping) or isinstance(error, skip)):
        return error
    instead = RemoteError(f"{type(error).__name__} came out of the code")
    instead.__cause__ = error
    return instead


def _ends(kind: type, looping: bool) -> bool:
    return issubclass(kind, ENDINGS) and not (looping and issubclass(kind, StopIteration))
