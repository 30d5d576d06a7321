"""As NeMo RL's own code environment answers: for prompts and tests that were written against it.

There, names are filtered and nothing is isolated. Here the sandbox isolates, and this filter only says the same words;
what gets around it (`import os.path as path`) finds itself in the sandbox.
"""

from __future__ import annotations

NAMES = (
    "os",
    "shutil",
    "sys",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "multiprocessing",
    "builtins",
    "importlib",
)
"""What may not be imported under its very name."""

NO_IMPORT = "Importing system and network modules is blocked"
NO_ACCESS = "Access beyond the temporary working directory is blocked"

FILTER = f"""
def _alike():
    plain = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    if plain.get("alike"):
        return
    real_import, real_open = plain["__import__"], plain["open"]
    path, here = real_import("os").path, real_import("os").getcwd

    def imported(name, *rest, **named):
        if name in {NAMES!r}:
            raise PermissionError({NO_IMPORT!r})
        return real_import(name, *rest, **named)

    def opened(file, *rest, **named):
        inside = path.realpath(here())
        if not isinstance(file, int) and path.commonpath([path.realpath(file), inside]) != inside:
            raise PermissionError({NO_ACCESS!r})
        return real_open(file, *rest, **named)

    globals()["__builtins__"] = {{**plain, "__import__": imported, "open": opened, "alike": True}}

_alike()
del _alike
"""
"""Code that runs before a message's own: from then on its globals have these builtins. Twice does no harm."""


def as_repr(kind: str, message: str) -> str:
    """An exception as Python writes it.

    >>> as_repr("ZeroDivisionError", "division by zero"), as_repr("KeyError", "'x'"), as_repr("AssertionError", "")
    ("ZeroDivisionError('division by zero')", "KeyError('x')", 'AssertionError()')
    """
    return f"{kind}({message if kind == 'KeyError' or not message else repr(message)})"
