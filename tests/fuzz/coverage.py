"""Fuzz the readers guided by coverage, with atheris. `make fuzz` runs it where atheris can be installed.

python -m fuzz.coverage [--seconds N] [--seed N] [--reader NAME]      N seconds for all readers together

Rollbook is instrumented once, while it is imported; then each reader has a process of its own, which atheris ends. The
time is shared out equally. It is measured here: libFuzzer counts whole seconds, and none of them means no limit.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import random
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.readers import Reader

GRACE_S = 20.0
"""How much longer than its share a process may take before it is killed: one input may take 5 s of CPU time."""


def load_readers() -> dict[str, Reader]:
    """Import the readers, instrumented, and what they import when they first run."""
    import atheris

    with atheris.instrument_imports(include=["rollbook"]):
        from fuzz.fuzzer import try_input
        from fuzz.readers import READERS

        for name, reader in READERS.items():
            for data in reader.seeds:
                try_input(name, reader, data)
    return READERS


def fuzz_reader(name: str, reader: Reader, seconds: float, seed: int) -> None:
    """Let atheris fuzz one reader in this process, which it ends: with 0 after the time, or where a reader breaks."""
    import atheris

    from fuzz.fuzzer import FOUND, try_input

    end = time.monotonic() + seconds

    def one_input(data: bytes) -> None:
        if finding := try_input(name, reader, data):
            raise AssertionError(f"{name}: {finding.error}")
        if time.monotonic() > end:
            os._exit(0)

    corpus = FOUND / "corpus" / name.replace(" ", "-").replace("/", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    for data in reader.seeds:
        (corpus / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
    options = [make_limit(seconds), f"-seed={seed}", "-max_len=4096", f"-artifact_prefix={FOUND}/", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()


def make_limit(seconds: float) -> str:
    """Return libFuzzer's option for a time: at least one second, since it takes zero for no limit."""
    return f"-max_total_time={max(1, math.ceil(seconds))}"


def fuzz_in_child(name: str, reader: Reader, seconds: float, seed: int) -> int:
    """Fuzz one reader in a process of its own; return its exit status. One that does not end is killed."""
    pid = os.fork()
    if pid == 0:
        try:
            fuzz_reader(name, reader, seconds, seed)
        finally:
            os._exit(1)
    end = time.monotonic() + seconds + GRACE_S
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return 1


def fuzz_all(readers: dict[str, Reader], seconds: float, seed: int) -> int:
    """Fuzz each reader for its share of the time; return how many of them broke."""
    broken = 0
    for name, reader in readers.items():
        status = fuzz_in_child(name, reader, seconds / len(readers), seed)
        print(f"fuzz: {name}: {'broken' if status else 'ok'}", flush=True)
        broken += bool(status)
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--reader", action="append", help="only this one; may be repeated")
    options = parser.parse_args()
    readers = load_readers()
    chosen = {name: reader for name, reader in readers.items() if name in (options.reader or readers)}
    print(f"fuzz: seed {options.seed}, {len(chosen)} readers by coverage, {options.seconds:g} s", flush=True)
    return int(fuzz_all(chosen, options.seconds, options.seed) > 0)


if __name__ == "__main__":
    sys.exit(main())
