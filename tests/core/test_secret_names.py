"""Names that say that a value is a secret."""

from __future__ import annotations

import pytest

from rollbook.core.secret_names import is_secret_variable, list_secret_values, looks_secret


@pytest.mark.parametrize("name", ["api_key", "--auth-token", "Authorization", "db_password", "pwd", "x-api-key", "key"])
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["max_tokens", "eos_token", "prompt_cache_key", "keyboard", "author", "temperature"])
def test_names_that_only_look_like_those_of_secrets(name: str) -> None:
    assert not looks_secret(name)


def test_values_of_secret_variables_are_listed_unless_they_are_placeholders() -> None:
    environment = {
        "OPENAI_API_KEY": " sk-12345 \n",
        "hf_token": "12345678",
        "OTHER_KEY": "EMPTY",
        "ODD_KEY": "1234567",
        "HOME": "/home/someone",
    }
    assert list_secret_values(environment) == ["sk-12345", "12345678"]
    assert [name for name in environment if not is_secret_variable(name)] == ["HOME"]
