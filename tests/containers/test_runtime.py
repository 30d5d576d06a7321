"""The command lines of podman and docker, and what their errors mean."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from rollbook.containers import Container, ImageBuild, Mount, find_runtime, hash_folder
from rollbook.containers.runtime import RUNTIMES, classify_error
from rollbook.errors import ContainerError, ImageError, UsageError


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_every_limit_is_always_set_and_no_value_of_a_variable_is_in_the_command(name: str) -> None:
    container = Container(image="img", env={"TOKEN": "secret"}, mounts=[Mount("/here", "/there")], workdir="/app")
    words = RUNTIMES[name]().run_command("c", container, {"l": "v"}, ["/bin/sh", "-c", "x"], "/proc/7/fd/5")
    text = " ".join(words)
    for option in (
        "--memory 2048m",
        "--memory-swap 2048m",
        "--cpus 1",
        "--pids-limit 1024",
        "--ulimit nofile=",
        "fsize=10737418240:",
    ):
        assert option in text
    for option in (
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--network none",
        "--pull never",
        "--no-healthcheck",
    ):
        assert option in text
    assert "secret" not in text
    assert "--env-file /proc/7/fd/5" in text
    assert "--volume /here:/there:ro" in text
    assert text.endswith("--entrypoint /bin/sh img -c x")


@pytest.mark.parametrize(
    ("user", "controllers", "missing"),
    [
        (0, "null", ""),
        (1000, "[]", "cpu, memory, pids"),
        (1000, '["memory", "pids"]', "limit cpu on"),
        (1000, '["cpu", "memory", "pids"]', ""),
    ],
)
def test_podman_that_would_ignore_limits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, controllers: str, missing: str
) -> None:
    (tmp_path / "podman").write_text(f"#!/bin/sh\n[ \"$1\" = info ] && echo '{controllers}'\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(UsageError, match=missing) if missing else nullcontext():
        asyncio.run(RUNTIMES["podman"]().require_limits())


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Error: localhost/x: image not known", ImageError),
        ('Error: workdir "/nope" does not exist on container', ImageError),
        ("Error: unable to find user nope: no matching entries in passwd file", ImageError),
        ("Error: mkdir /var/lib: no space left on device: no such file or directory", ContainerError),
        ("Error: cannot allocate memory", ContainerError),
    ],
)
def test_errors_of_the_image_are_told_from_those_of_the_machine(message: str, kind: type) -> None:
    assert type(classify_error(message)) is kind


def test_an_unknown_runtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="known are podman, docker"):
        find_runtime("lxc")


def test_a_build_is_named_by_what_its_folder_holds(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM x")
    (tmp_path / "data").mkdir()
    first = hash_folder(tmp_path)
    assert ImageBuild(str(tmp_path)).image == f"localhost/rollbook/build:{first[:32]}"
    (tmp_path / "data" / "new").write_text("")
    second = hash_folder(tmp_path)
    (tmp_path / "data" / "new").chmod(0o755)
    assert len({first, second, hash_folder(tmp_path)}) == 3


def test_names_that_are_not_utf_8_are_hashed(tmp_path: Path) -> None:
    before = hash_folder(tmp_path)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()
    assert hash_folder(tmp_path) != before
