"""What a container must look like: a mistake is one line, before anything begins."""

from __future__ import annotations

import math

import msgspec
import pytest

from rollbook.containers import Container, Mount
from rollbook.errors import UsageError

NUMBERS = ("memory_mb", "cpus", "storage_mb", "processes", "build_timeout_s", "start_timeout_s", "open_timeout_s")


@pytest.mark.parametrize("name", [*NUMBERS, "verify_timeout_s"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "2G", True, [1]])
def test_every_number_is_finite_above_0_and_of_its_type(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=rf"^Container: {name}=.* give a .*number from"):
        Container(image="i", **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"image": ""}, "give either image"),
        ({"build": "b"}, "give either image"),
        ({"image": 5}, "image=5: give a text"),
        ({"image": "--privileged"}, "not the name of an image"),
        ({"image": "i\n"}, "not the name of an image"),
        ({"image": "", "build": "a\0b"}, "not the name of a folder"),
        ({"memory_mb": 4}, "memory_mb=4: give a whole number from 16"),
        ({"memory_mb": 100.5}, "give a whole number"),
        ({"memory_mb": None}, "give a whole number"),
        ({"cpus": 0.001}, "from 0.01"),
        ({"processes": 1}, "processes=1: give a whole number from 64"),
        ({"network": "host"}, "network='host'"),
        ({"network": ["none"]}, "network="),
        ({"env": {"A": 1}}, "env: the value of A must be one line of text"),
        ({"env": {"A": "a\nb"}}, "env: the value of A must be one line of text"),
        ({"env": {"A": "x" * 60_000}}, "env: the value of A must be one line of text"),
        ({"env": {"A": "a\0b"}}, "env: the value of A must be one line of text"),
        ({"env": {"A": "\ud800"}}, "env: the value of A must be one line of text"),
        ({"env": {"A B": "x"}}, "env: 'A B' is not the name of a variable"),
        ({"env": {1: "x"}}, "env: 1 is not the name of a variable"),
        ({"env": ["A=1"]}, "give a dict of variables"),
        ({"workdir": "rel"}, "workdir='rel': give an absolute path"),
        ({"workdir": "/a\nb"}, "give an absolute path"),
        ({"workdir": None}, "workdir=None: give a text"),
        ({"user": "-x"}, "not the name of a user"),
        ({"entrypoint": "yes"}, "write True or False"),
        ({"mounts": "/a:/b"}, "give a list of Mount"),
        ({"mounts": ["/a:/b"]}, "with absolute paths"),
        ({"mounts": [Mount("a", "/b")]}, "with absolute paths"),
    ],
)
def test_a_mistake_is_named_with_its_field(given: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=f"^Container: .*{why}") as caught:
        Container(**{"image": "i", **given})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_container_with_every_field_is_read_back() -> None:
    container = Container(
        image="localhost:5000/a/b@sha256:0a",
        memory_mb=64,
        cpus=2,
        storage_mb=10,
        network="public",
        env={"A": "1", "a.b-c": ""},
        workdir="/app",
        user="1000:1000",
        mounts=[Mount("/a", "/b")],
    )
    assert msgspec.convert(msgspec.to_builtins(container), Container) == container
