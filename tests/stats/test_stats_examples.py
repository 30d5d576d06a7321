import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["best", "estimators", "expression", "resampling", "summary", "votes"])
def test_the_examples_in_docstrings_are_true(name):
    done = doctest.testmod(importlib.import_module(f"rollbook.stats.{name}"))
    assert done.failed == 0
