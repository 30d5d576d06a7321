"""Isolation requirements: what a user requires, and the layers reported for a guest."""

from __future__ import annotations

import pytest

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, SandboxError
from rollbook.sandbox.isolation import MEMORY_OPEN, WEAKER_ENV, IsolationRequirements, make_requirements

WHOLE = ("pid", "mount", "network", "ipc", "seccomp", "landlock-7", "uid")
WEAK = ("seccomp", "landlock-7", "uid", "no namespaces")
SEVERAL = Limits(processes=4)


def test_several_processes_without_a_cgroup_leave_memory_open_and_that_is_said() -> None:
    assert IsolationRequirements().list_layers(WHOLE, Limits()) == WHOLE
    assert IsolationRequirements().list_layers(WHOLE, SEVERAL) == (*WHOLE, MEMORY_OPEN)
    assert IsolationRequirements().list_layers((*WHOLE, "cgroup"), SEVERAL) == (*WHOLE, "cgroup")


def test_full_is_all_of_it() -> None:
    full = IsolationRequirements("full")
    full.check(WHOLE)
    with pytest.raises(SandboxError, match="no ipc, no mount, no network, no pid"):
        full.check(WEAK)
    with pytest.raises(SandboxError, match="no landlock"):
        full.check((*WHOLE[:5], "no landlock"))
    with pytest.raises(SandboxError, match="needs a cgroup"):
        full.list_layers(WHOLE, SEVERAL)
    assert full.list_layers((*WHOLE, "cgroup"), SEVERAL)


def test_without_namespaces_nobody_has_several_processes() -> None:
    assert IsolationRequirements().list_layers(WEAK, Limits()) == WEAK
    with pytest.raises(SandboxError, match="a run has 1 process"):
        IsolationRequirements(allow_weaker=True).list_layers(WEAK, SEVERAL)


def test_what_was_asked_for_must_make_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match='only "full" can be required'):
        make_requirements("most", None)
    with pytest.raises(UsageError, match="give one of them"):
        make_requirements("full", True)
    assert not make_requirements(None, None).allow_weaker
    monkeypatch.setenv(WEAKER_ENV, "1")
    assert make_requirements(None, None).allow_weaker
    assert not make_requirements("full", None).allow_weaker
    assert not make_requirements(None, False).allow_weaker
