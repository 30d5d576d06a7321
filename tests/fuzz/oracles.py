"""All cases with a known result, and how one is tried."""

from __future__ import annotations

import random

from fuzz import answer_cases, book_cases, checksum_cases, config_cases, message_cases, record_cases, score_cases
from fuzz.cases import MakeCase
from fuzz.findings import HANG_S, Finding, Hang, deadline

CASES: dict[str, MakeCase] = {
    f"known {name}": make
    for module in (answer_cases, score_cases, message_cases, config_cases, book_cases, record_cases, checksum_cases)
    for name, make in module.CASES.items()
}


def try_case(name: str, make: MakeCase, seed: int) -> Finding | None:
    """Return what is wrong with the result of a case, if anything is; nothing in it may be refused."""
    try:
        with deadline(HANG_S):
            case = make(random.Random(seed))
    except (Exception, Hang) as error:
        return Finding(name, str(seed).encode(), f"{type(error).__name__}: {error} (case {seed})")
    if case.found == case.expected:
        return None
    error = f"wrong value: {case.found!r:.400}, not {case.expected!r:.400} (case {seed}), for {case.given!r:.400}"
    return Finding(name, str(seed).encode(), error)
