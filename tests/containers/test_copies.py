"""Why a file could not be copied, by what the runtime says: this machine failed, or what the file is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rollbook.containers.copies import OddAttributeError, _explain_copy
from rollbook.containers.runtime import CommandOutput
from rollbook.errors import ContainerError

GONE = 'Error: "/app" could not be found on container c: '


@pytest.mark.parametrize(
    ("code", "errors", "kind"),
    [
        (125, GONE + "no such file or directory", FileNotFoundError),
        (125, GONE + "error decoding response from copier subprocess: EOF", ContainerError),
        (125, 'Error: "/app/no space left on device" could not be found on c: no such file', FileNotFoundError),
        (125, "Error: copying: write /tmp/x: No space left on device\n", ContainerError),
        (1, "Error response from daemon: Could not find the file /app/geoffrey in container c", FileNotFoundError),
        (1, "error during connect: Get info: unexpected EOF", ContainerError),
        (125, "Error: lstat /app/a: too many levels of symbolic links", FileNotFoundError),
        (-9, "", ContainerError),
        (125, 'Error: copier: get: archive/tar: invalid PAX record: "user.a=b"', OddAttributeError),
    ],
)  # fmt: skip
def test_what_the_runtime_says_decides_whose_failure_it_is(code: int, errors: str, kind: type[Exception]) -> None:
    class Present:
        async def call(self, *_: str) -> CommandOutput:
            return CommandOutput(0, b"id", "")

    runtime: Any = Present()
    assert type(asyncio.run(_explain_copy(runtime, "c", "/app", code, errors))) is kind


def test_a_container_that_is_gone_is_no_missing_file() -> None:
    class Gone:
        async def call(self, *_: str) -> CommandOutput:
            return CommandOutput(1, b"", "no such container")

    runtime: Any = Gone()
    assert type(asyncio.run(_explain_copy(runtime, "c", "/app", 125, "odd"))) is ContainerError
