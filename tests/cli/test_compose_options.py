import inspect

import pytest

from rollbook.cli.commands import COMMANDS
from rollbook.cli.options import collect_settings, compose_options


def test_what_is_gathered_stands_where_it_is_taken_and_keeps_its_defaults():
    def point(x: int, y: int = 2) -> tuple[int, int]:
        return x, y

    @compose_options("at", point)
    def draw(colour: str, at: tuple[int, int], size: int = 1) -> object:
        return colour, at, size

    assert list(inspect.signature(draw).parameters) == ["colour", "x", "y", "size"]
    assert inspect.signature(draw).parameters["y"].default == 2
    assert draw(colour="red", x=5) == ("red", (5, 2), 1)


@pytest.mark.parametrize("name", ["run", "plan", "work", "resume", "extend"])
def test_every_command_that_works_has_every_operational_option(rollbook, name):
    assert name in COMMANDS
    text = rollbook(name, "--help").stdout
    for option in inspect.signature(collect_settings).parameters:
        assert f"--{option.replace('_', '-')}" in text
