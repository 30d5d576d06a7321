"""Fuzz the readers: no crash, no hang, nothing changed that is accepted, no wrong value. `make fuzz` runs it.

python -m fuzz.fuzzer [--seconds N] [--seed N] [--reader NAME]      random changes of the examples; known results
python -m fuzz.fuzzer --case NAME --replay N                        one case with a known result again
python -m fuzz.coverage ...                                         guided by coverage, where atheris is installed

An input that breaks a reader is kept in build/fuzz and printed with the seed; the exit status is 1. It becomes a test.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Iterator
from itertools import chain, cycle
from pathlib import Path

from fuzz.findings import HANG_S, Finding, deadline
from fuzz.mutation import mutate, mutate_values
from fuzz.oracles import CASES, try_case
from fuzz.readers import READERS, Reader, is_refusal

FOUND = Path("build/fuzz")
BATCH, TURN_S = 20, 0.05
"""How many inputs a reader gets, and for how long, before the next one has its turn."""


def try_input(name: str, reader: Reader, data: bytes, hang_s: float = HANG_S) -> Finding | None:
    """Return what is wrong with how a reader takes an input, if anything is."""
    try:
        with deadline(hang_s):
            reader.read(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        if not is_refusal(reader, error):
            return Finding(name, data, f"{type(error).__name__}: {error}")
        if "\n" in str(error).strip():
            return Finding(name, data, f"a message of several lines: {error}")
    return None


def fuzz_reader(name: str, reader: Reader, draw: random.Random, count: int) -> Iterator[Finding]:
    """Yield what is found with so many changed examples."""
    for _ in range(count):
        seed = draw.choice(reader.seeds)
        data = mutate_values(seed, draw) if reader.by_value else mutate(seed, reader.seeds, draw)
        if finding := try_input(name, reader, data):
            yield finding


def fuzz_cases(name: str, draw: random.Random, count: int) -> Iterator[Finding]:
    """Yield what is found with so many cases whose result is known."""
    for _ in range(count):
        if finding := try_case(name, CASES[name], draw.getrandbits(63)):
            yield finding


def fuzz_some(name: str, draw: random.Random, count: int) -> Iterator[Finding]:
    """Yield what is found with so many inputs of a reader, or so many cases."""
    return fuzz_cases(name, draw, count) if name in CASES else fuzz_reader(name, READERS[name], draw, count)


def fuzz_for(names: list[str], seconds: float, seed: int) -> tuple[int, list[Finding]]:
    """Fuzz readers and cases in turns for some seconds; return the number of inputs and what was found, one a kind.

    In the first turn each gets one input, so that a short time is enough for all of them; unless something was found:
    readers that hang would take much longer.
    """
    draw, end, inputs = random.Random(seed), time.monotonic() + seconds, 0
    found: dict[tuple[str, str], Finding] = {}
    turns = chain(((name, 1) for name in names), ((name, BATCH) for name in cycle(names)))
    for name, count in turns:
        if time.monotonic() >= end and (found or inputs >= len(names)):
            break
        began = time.monotonic()
        for _ in range(count):
            for finding in fuzz_some(name, draw, 1):
                found.setdefault((name, finding.error.split(":")[0]), finding)
            inputs += 1
            if time.monotonic() - began > TURN_S:
                break
    return inputs, list(found.values())


def keep(finding: Finding) -> Path:
    """Write an input that breaks a reader."""
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{finding.reader.replace(' ', '-')}-{hashlib.sha256(finding.data).hexdigest()[:12]}"
    path.write_bytes(finding.data)
    return path


def replay(names: list[str], seed: int) -> int:
    """Try one case again; return the exit status."""
    found = [finding for name in names if (finding := try_case(name, CASES[name], seed))]
    for finding in found:
        print(f"fuzz: {finding.reader}: {finding.error}")
    return int(bool(found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--reader", choices=READERS, action="append", help="only this one; may be repeated")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one; may be repeated")
    parser.add_argument("--replay", type=int, help="the number of one case, as a finding names it")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.case, options.replay)
    readers = options.reader or ([] if options.case else list(READERS))
    cases = options.case or ([] if options.reader else list(CASES))
    kinds = f"{len(readers)} readers, {len(cases)} kinds of known results"
    print(f"fuzz: seed {options.seed}, {kinds}, {options.seconds:g} s", flush=True)
    inputs, found = fuzz_for([*readers, *cases], options.seconds, options.seed)
    for finding in found:
        print(f"fuzz: {finding.reader}: {finding.error[:900]}; kept as {keep(finding)}")
    print(f"fuzz: {inputs} inputs, {len(found)} findings")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
