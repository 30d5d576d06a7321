"""Tests that reach into the process of the code, where it has another one: no answer of the code could satisfy them."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reach(NamedTuple):
    """What tests do, how their text shows it, and what code that would notice has in it, if not everything."""

    what: str
    tests: re.Pattern[str]
    code: tuple[str, ...] = ("",)


REACHES = (
    Reach(
        "capture what the code prints",
        re.compile(r"\bredirect_std(out|err)\b|\bsys\.(stdout|stderr)\b|\bcapsys\b|\bcapfd\b"),
        ("print", "stdout", "stderr", "logging"),
    ),
    Reach("replace the input of the code", re.compile(r"\bsys\.stdin\b"), ("input", "stdin")),
    Reach("replace something that the code uses", re.compile(r"\bpatch\b|\bmonkeypatch\b|\bbuiltins\.\w+\s*=")),
    Reach("seed the code's random numbers", re.compile(r"\bseed\("), ("random",)),
    Reach(
        "leave files for the code, or look at its own",
        re.compile(r"\bopen\(|\bwrite_(text|bytes)\(|\bread_(text|bytes)\(|\btempfile\b|\bos\.(path|listdir|remove)\b"),
        ("open", "Path", "os."),
    ),
)


def reach_of(tests: str, code: str) -> str:
    """What these tests do that only works in one process with this code; nothing for most.

    >>> reach_of("random.seed(1)", "import random"), reach_of("random.seed(1)", "def f(x): return x")
    ("seed the code's random numbers", '')
    """
    found = (reach.what for reach in REACHES if reach.tests.search(tests) and any(word in code for word in reach.code))
    return next(found, "")
