"""Which isolation a sandbox gets: the strongest level that proves itself, and what is said where none does."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rollbook.errors import SandboxError
from rollbook.sandbox import cgroups
from rollbook.sandbox.backends import zygote
from rollbook.sandbox.backends.zygote import ZygoteFactory, ZygoteProvider
from rollbook.sandbox.isolation import IsolationRequirements
from support.alive import eventually

WAYS = "; allow weaker isolation with allow_weaker=True, --allow-weaker of `rollbook sandbox`, or "


class Start:
    """Starts what pretends to be a zygote; those of the levels in `broken` do not prove their isolation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *broken: str, uid: int = 1000) -> None:
        self.started: list[str] = []
        self.cleared: list[object] = []
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setattr(cgroups, "remove_stale_folders", self.cleared.append)
        monkeypatch.setattr(cgroups, "find_control_groups", lambda: None)
        monkeypatch.setattr(zygote, "make_configuration", lambda packages: {"packages": packages})

        def start(_: object, config: dict[str, str]) -> str:
            self.started.append(f"{config['level']} {config['mode']}")
            return self.started[-1]

        def prove(name: str, _: object) -> str:
            if name in broken:
                raise SandboxError("not proven")
            return name

        monkeypatch.setattr(ZygoteFactory, "_start_zygote", start)
        monkeypatch.setattr(zygote, "prove_isolation", prove)


def make_factory(allow_weaker: bool = False) -> Any:
    return ZygoteFactory([], None, IsolationRequirements(allow_weaker=allow_weaker))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uid", "weaker", "levels"),
    [
        (0, False, ["namespaces root", "namespaces user"]),
        (1000, False, ["namespaces user"]),
        (0, True, ["namespaces root", "namespaces user", "user root"]),
        (1000, True, ["namespaces user", "same-user user"]),
    ],
)
def test_levels_are_tried_from_the_strongest_to_the_weakest_allowed(
    monkeypatch: pytest.MonkeyPatch, uid: int, weaker: bool, levels: list[str]
) -> None:
    start = Start(monkeypatch, *levels, uid=uid)
    with pytest.raises(SandboxError, match="no sandbox here"):
        make_factory(weaker).new_launcher()
    assert start.started == levels


def test_the_first_level_that_proves_itself_is_used_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Start(monkeypatch, "namespaces root", uid=0)
    factory = make_factory()
    assert [factory.new_launcher() for _ in range(3)] == ["namespaces user"] * 3
    assert start.started == ["namespaces root", *["namespaces user"] * 3]
    assert len(start.cleared) == 1  # what dead processes left is removed once


@pytest.mark.parametrize(
    ("uid", "weaker", "start", "end"),
    [
        (1000, False, "no sandbox here (namespaces: not proven)" + WAYS, "=1"),
        (1000, True, "no sandbox here (namespaces: not proven; same-user: not proven)", "not proven)"),
        (
            0,
            True,
            "no sandbox here (namespaces: not proven; namespaces: not proven; user: not proven;"
            " same-user: root does not run code as root; is ",
            " readable for every user?)",
        ),
    ],
)
def test_a_machine_without_isolation_is_explained(
    monkeypatch: pytest.MonkeyPatch, uid: int, weaker: bool, start: str, end: str
) -> None:
    Start(monkeypatch, "namespaces root", "namespaces user", "user root", "same-user user", uid=uid)
    with pytest.raises(SandboxError) as caught:
        make_factory(weaker).new_launcher()
    assert str(caught.value).startswith(start)
    assert str(caught.value).endswith(end)


def test_another_system_has_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxError, match="the sandbox is Linux only, and this is darwin"):
        make_factory().new_launcher()


def test_a_zygote_that_does_not_start_is_explained_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho it cannot >&2\nexit 1\n")
    program.chmod(0o755)
    before = len(os.listdir("/proc/self/fd"))
    for log, words in ((tmp_path / "log", "it cannot"), (None, "")):
        with pytest.raises(SandboxError, match=f"the sandbox did not start: .*{words}"):
            ZygoteProvider({"level": "namespaces"}, str(program), log=log)
    assert sorted(os.listdir(tmp_path)) == ["log", "python"]
    assert eventually(lambda: len(os.listdir("/proc/self/fd")) <= before, 10)
