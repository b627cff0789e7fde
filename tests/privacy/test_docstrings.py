"""The epsilons printed in module docstrings are what the code prints."""

import doctest
import importlib

import pytest

MODULES = ("composition", "epsilon_bounds", "foreign")


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name):
    result = doctest.testmod(importlib.import_module(f"manifed.privacy.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
