"""Fuzz the readers: no crash, no hang, nothing changed that is accepted, no wrong value. `make fuzz` runs it.

python -m fuzz.fuzzer [--seconds N] [--seed N] [--reader NAME]      random changes of the examples; known results
python -m fuzz.fuzzer --case NAME --replay N                        one case with a known result again
python -m fuzz.fuzzer --coverage ...                                guided by coverage, where atheris is installed

An input that breaks a reader is kept in build/fuzz and printed with the seed; the exit status is 1. It becomes a test.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fuzz.findings import HANG_S, Finding, deadline
from fuzz.mutation import mutate, mutate_values
from fuzz.oracles import CASES, try_case
from fuzz.readers import READERS, Reader, is_refusal

FOUND = Path("build/fuzz")
BATCH = 20
"""How many inputs a reader gets before the next one has its turn."""


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


def fuzz_for(names: list[str], seconds: float, seed: int) -> tuple[int, list[Finding]]:
    """Fuzz readers and cases in turns for some seconds; return the number of inputs and what was found, one a kind."""
    draw, end, inputs = random.Random(seed), time.monotonic() + seconds, 0
    found: dict[tuple[str, str], Finding] = {}
    while time.monotonic() < end:
        for name in names:
            several = fuzz_cases(name, draw, BATCH) if name in CASES else fuzz_reader(name, READERS[name], draw, BATCH)
            for finding in several:
                found.setdefault((name, finding.error.split(":")[0]), finding)
            inputs += BATCH
    return inputs, list(found.values())


def keep(finding: Finding) -> Path:
    """Write an input that breaks a reader."""
    FOUND.mkdir(parents=True, exist_ok=True)
    path = FOUND / f"{finding.reader.replace(' ', '-')}-{hashlib.sha256(finding.data).hexdigest()[:12]}"
    path.write_bytes(finding.data)
    return path


def fuzz_by_coverage(name: str, seconds: float, seed: int) -> int:
    """Let atheris fuzz one reader in this process; it ends the process."""
    import atheris

    reader = READERS[name]

    def one_input(data: bytes) -> None:
        if finding := try_input(name, reader, data):
            raise AssertionError(f"{name}: {finding.error}")

    corpus = FOUND / "corpus" / name.replace(" ", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    for seed_data in reader.seeds:
        (corpus / hashlib.sha256(seed_data).hexdigest()[:12]).write_bytes(seed_data)
    options = [
        f"-max_total_time={seconds:.0f}",
        f"-seed={seed}",
        "-max_len=4096",
        f"-artifact_prefix={FOUND}/",
        "-verbosity=0",
    ]
    atheris.instrument_all()
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()
    return 0


def run_by_coverage(names: list[str], seconds: float, seed: int) -> int:
    """Fuzz each reader in a process of its own; return how many of them broke."""
    broken = 0
    for name in names:
        command = [
            sys.executable,
            "-m",
            "fuzz.fuzzer",
            "--one",
            name,
            f"--seconds={seconds / len(names)}",
            f"--seed={seed}",
        ]
        status = subprocess.run(command, check=False).returncode
        print(f"fuzz: {name}: {'broken' if status else 'ok'}", flush=True)
        broken += bool(status)
    return broken


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
    parser.add_argument("--coverage", action="store_true", help="with atheris")
    parser.add_argument("--one", choices=READERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return fuzz_by_coverage(options.one, options.seconds, options.seed)
    if options.replay is not None:
        return replay(options.case, options.replay)
    readers = options.reader or ([] if options.case else list(READERS))
    if options.coverage:
        print(f"fuzz: seed {options.seed}, {len(readers)} readers by coverage, {options.seconds:g} s", flush=True)
        return int(run_by_coverage(readers, options.seconds, options.seed) > 0)
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
