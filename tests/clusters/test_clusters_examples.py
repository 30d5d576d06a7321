"""The examples in docstrings are run."""

import doctest

import pytest

from rollbook.clusters import known_names, waiting
from rollbook.clusters.ray import hand
from rollbook.clusters.servers import kinds


@pytest.mark.parametrize("module", [hand, known_names, kinds, waiting], ids=lambda module: module.__name__)
def test_the_examples_hold(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
