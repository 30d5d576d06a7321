"""Attacks, one program each: every one ends with an expected status at every isolation level, and the next run works.

The first line of a program lists its expected statuses; an optional second one the number of processes it may have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from rollbook.processes import find_members
from rollbook.sandbox import Limits, Result, Sandbox, SandboxError
from support.alive import eventually, open_fds
from support.restricted_host import PLACES, can_enter, start_restricted_host

ATTACKS = sorted((Path(__file__).parent / "attacks").glob("*.py"))
LIMITS = Limits(seconds=0.5, wall_seconds=2.0, memory_mb=128, files_mb=8, output_kb=64)
LONGEST_S = 10.0
Run = Callable[[str, Limits], Result]


class Place:
    """A sandbox, and what can be observed of it from outside."""

    def __init__(self, run: Run, descriptors: Callable[[], int], processes: Callable[[], int]) -> None:
        self.run, self.descriptors, self.processes = run, descriptors, processes
        self.isolation = run("1", LIMITS).isolation


@pytest.fixture(scope="module", params=["here", *PLACES])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param != "here":
        if not can_enter(request.param):
            pytest.skip("only root can put itself there")
        with start_restricted_host(request.param, LIMITS) as there:
            folder = f"/proc/{there.pid}/fd"
            yield Place(there.run, lambda: len(os.listdir(folder)), there.processes)
        return
    try:
        with Sandbox(LIMITS, size=1) as box:
            run: Run = lambda code, limits: box.run_sync(code, limits=limits)  # noqa: E731
            yield Place(run, lambda: len(open_fds()), lambda: len(find_members(os.getpid())))
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def read_expectation(attack: Path) -> tuple[list[str], int]:
    """Return the expected statuses of an attack, and the number of processes it may have."""
    first, second, *_ = [*attack.read_text().splitlines(), ""]
    count = second.removeprefix("# processes:") if second.startswith("# processes:") else "1"
    return first.removeprefix("# status:").split(), int(count)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda path: path.stem)
def test_an_attack_ends_as_what_it_is(place: Place, attack: Path) -> None:
    expected, processes = read_expectation(attack)
    if "no namespaces" in place.isolation:
        expected = [*expected, "error"]  # there is no folder to write to
        if processes > 1:
            pytest.skip("without namespaces a run has one process")
    before = (place.descriptors(), place.processes())
    result = place.run(attack.read_text(), msgspec.structs.replace(LIMITS, processes=processes))
    assert result.status in expected, (result.status, result.stdout[-300:], result.stderr[-300:], result.error)
    assert "BREACH" not in result.stdout, result.stdout
    assert "BREACH" not in result.stderr, result.stderr
    assert "BREACH" not in str(result.error)
    assert result.seconds < LONGEST_S
    after = place.run("print(6 * 7)", LIMITS)
    assert (after.status, after.stdout) == ("ok", "42\n")
    assert eventually(lambda: place.descriptors() <= before[0] + 1, 5)
    assert eventually(lambda: place.processes() <= before[1], 5)


def test_every_attack_says_how_it_may_end() -> None:
    statuses = {"ok", "error", "timeout", "memory", "output", "crash", "killed"}
    assert all(set(read_expectation(attack)[0]) <= statuses and read_expectation(attack)[0] for attack in ATTACKS)
    assert len(ATTACKS) > 80
