"""Attacks, one program each: every one ends as what it is, and the next run is none the worse for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.sandbox import Limits, Sandbox, SandboxError
from support.alive import eventually, open_fds

ATTACKS = sorted((Path(__file__).parent / "attacks").glob("*.py"))
LIMITS = Limits(seconds=0.5, wall_seconds=2.0, memory_mb=128, files_mb=8, output_kb=64)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    try:
        with Sandbox(LIMITS, size=1) as made:
            yield made
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def zygote_pids() -> set[str]:
    """Every process of this machine; what an attack leaves behind shows up here."""
    return {name for name in os.listdir("/proc") if name.isdigit()}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda path: path.stem)
def test_an_attack_ends_as_what_it_is(box: Sandbox, attack: Path) -> None:
    code = attack.read_text()
    expected = code.partition("\n")[0].removeprefix("# status:").split()
    fds = len(open_fds())
    result = box.run_sync(code)
    assert result.status in expected, (result.status, result.stdout[-300:], result.stderr[-300:], result.error)
    assert "BREACH" not in result.stdout, result.stdout
    assert "BREACH" not in str(result.error)
    assert result.seconds < 10
    after = box.run_sync("print(6 * 7)")
    assert (after.status, after.stdout) == ("ok", "42\n")
    assert eventually(lambda: len(open_fds()) <= fds + 1, 5)
