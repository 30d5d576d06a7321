"""Terms: what a user insists on, and what is said of a guest."""

from __future__ import annotations

import pytest

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, SandboxError
from rollbook.sandbox.terms import ENV, MEMORY_OPEN, Terms, terms_of

WHOLE = ("pid", "mount", "network", "ipc", "seccomp", "landlock-7", "uid")
WEAK = ("seccomp", "landlock-7", "uid", "no namespaces")
SEVERAL = Limits(processes=4)


def test_several_processes_without_a_cgroup_leave_memory_open_and_that_is_said() -> None:
    assert Terms().layers(WHOLE, Limits()) == WHOLE
    assert Terms().layers(WHOLE, SEVERAL) == (*WHOLE, MEMORY_OPEN)
    assert Terms().layers((*WHOLE, "cgroup"), SEVERAL) == (*WHOLE, "cgroup")


def test_full_is_all_of_it() -> None:
    full = Terms("full")
    full.check(WHOLE)
    with pytest.raises(SandboxError, match="no ipc, no mount, no network, no pid"):
        full.check(WEAK)
    with pytest.raises(SandboxError, match="no landlock"):
        full.check((*WHOLE[:5], "no landlock"))
    with pytest.raises(SandboxError, match="needs a cgroup"):
        full.layers(WHOLE, SEVERAL)
    assert full.layers((*WHOLE, "cgroup"), SEVERAL)


def test_without_namespaces_nobody_has_several_processes() -> None:
    assert Terms().layers(WEAK, Limits()) == WEAK
    with pytest.raises(SandboxError, match="a run has 1 process"):
        Terms(allow_weaker=True).layers(WEAK, SEVERAL)


def test_what_was_asked_for_must_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match='the one thing to require is "full"'):
        terms_of("most", None)
    with pytest.raises(UsageError, match="one or the other"):
        terms_of("full", True)
    assert not terms_of(None, None).allow_weaker
    monkeypatch.setenv(ENV, "1")
    assert terms_of(None, None).allow_weaker
    assert not terms_of("full", None).allow_weaker
    assert not terms_of(None, False).allow_weaker
