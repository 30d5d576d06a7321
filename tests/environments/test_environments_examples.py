import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["answers", "entries", "environment", "gsm8k", "reasoning_gym", "registry", "rows", "snapshot", "source", "tool"],
)
def test_the_examples_in_docstrings_are_true(name):
    done = doctest.testmod(importlib.import_module(f"rollbook.environments.{name}"))
    assert done.failed == 0
