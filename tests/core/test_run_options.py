"""Parameters of a run: their names and ranges, and values of sampling that are refused."""

from __future__ import annotations

import math

import pytest

from rollbook.core import JSON, Sampling, Settings, check_sampling_values, list_all_parameters, list_parameters
from rollbook.errors import UsageError


def is_accepted(values: dict[str, JSON]) -> bool:
    try:
        check_sampling_values(values, "")
    except UsageError:
        return False
    return True


@pytest.mark.parametrize(
    ("values", "beyond"),
    [
        ({}, {"max_tokens": 0}),
        ({"temperature": 0, "top_p": 1, "max_tokens": 1}, {"max_tokens": 0}),
        ({"temperature": 0.0, "top_p": 0.0}, {"top_p": -0.001}),
        ({"temperature": 0.0, "top_p": 1.0}, {"top_p": 1.001}),
        ({"temperature": 5.5, "top_p": 1.0, "max_tokens": 10**6}, {"temperature": -0.001}),
        ({"temperature": None, "max_tokens": None}, {"temperature": "none"}),
        ({"top_k": "any", "extra": "any"}, {"top_p": "any"}),
    ],
)
def test_values_of_their_ranges_are_accepted_and_the_next_ones_are_not(
    values: dict[str, JSON], beyond: dict[str, JSON]
) -> None:
    assert is_accepted(values)
    assert not is_accepted(values | beyond)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"temperature": -0.1}, "temperature=-0.1: give a number from 0 on"),
        ({"temperature": "0.5"}, "temperature=0.5: give a number from 0 on"),
        ({"temperature": True}, "temperature=True: give a number"),
        ({"temperature": math.inf}, "temperature=inf: give a number"),
        ({"temperature": math.nan}, "temperature=nan: give a number"),
        ({"top_p": 1.01}, "top_p=1.01: give a number from 0 to 1"),
        ({"top_p": 2}, "top_p=2: give a number from 0 to 1"),
        ({"max_tokens": 0}, "max_tokens=0: give a whole number from 1 on"),
        ({"max_tokens": 2.0}, "max_tokens=2.0: give a whole number from 1 on"),
        ({"temperature": 1.0, "max_tokens": -5}, "max_tokens=-5: give a whole number"),
    ],
)
def test_other_values_are_refused_with_their_range(values: dict[str, JSON], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_sampling_values(values, "--role user.sampling.")
    assert str(caught.value).startswith(f"--role user.sampling.{words}")


def test_a_parameter_knows_its_names_its_types_and_its_section() -> None:
    settings, sampling = list_parameters(Settings), list_parameters(Sampling)
    urls, offline, cost = settings["urls"], settings["offline"], settings["max_cost"]
    assert (urls.flags, urls.flag, urls.key, urls.details.group) == (("-m", "--model"), "--model", "model", "model")
    assert (offline.flag, offline.key) == ("--offline", "offline")
    assert (cost.flags, cost.kinds, cost.default) == (("--max-cost",), (float,), None)
    assert settings["concurrency"].kinds == (int, str)
    assert (sampling["top_p"].details.group, settings["workers"].details.group) == ("sampling", "workers")
    assert (sampling["extra"].default, sampling["extra"].kinds[0]) == ({}, dict[str, JSON])
    assert "wire_names" not in settings  # nobody gives it


def test_all_options_of_the_command_line_are_listed_by_their_keys() -> None:
    options = list_all_parameters()
    assert {"model", "samples", "ready-within", "top-p", "timeout", "on", "probe"} <= set(options)
    assert all(key == field.key and field.details.on_command_line for key, field in options.items())
    assert "memory-mb" not in options  # a limit that only Python takes
    assert options["sampling"].name == "extra"


def test_bounds_are_written_as_whole_numbers_where_they_are() -> None:
    for name, words in (("top_p", "from 0 to 1"), ("temperature", "from 0 on"), ("max_tokens", "from 1 on")):
        with pytest.raises(UsageError) as caught:
            check_sampling_values({name: -7}, "--")
        assert str(caught.value).endswith(words)
