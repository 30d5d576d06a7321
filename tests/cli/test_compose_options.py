import inspect

import pytest

from rollbook.cli.commands import COMMANDS
from rollbook.cli.options import LAST_SETTINGS, OptionSet, compose_options


def test_options_stand_where_the_command_takes_what_they_make_and_keep_their_defaults():
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter("x", kind, annotation=int), inspect.Parameter("y", kind, default=2, annotation=int)]

    @compose_options(at=OptionSet(options, lambda values: (values["x"], values["y"])))
    def draw(colour: str, at: tuple[int, int], size: int = 1) -> object:
        return colour, at, size

    assert list(inspect.signature(draw).parameters) == ["colour", "x", "y", "size"]
    assert inspect.signature(draw).parameters["y"].default == 2
    assert draw(colour="red", x=5) == ("red", (5, 2), 1)


@pytest.mark.parametrize("name", ["run", "plan", "work", "resume", "extend"])
def test_every_command_that_works_has_every_operational_option(rollbook, name):
    assert name in COMMANDS
    assert len(LAST_SETTINGS.parameters) >= 13
    text = rollbook(name, "--help").stdout
    for option in LAST_SETTINGS.parameters:
        assert f"--{option.name.replace('_', '-')}" in text
