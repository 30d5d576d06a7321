import pytest

from rollbook.errors import UsageError
from rollbook.models.model import normalize_base_url


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://host:8000/v1/", "http://host:8000/v1"),
        (" https://api.example.com/v1 ", "https://api.example.com/v1"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_url_loses_its_last_slash_and_nothing_else(text: str, url: str) -> None:
    assert normalize_base_url(text) == url


@pytest.mark.parametrize(
    "text", ["", "host:8000", "localhost", "ftp://host", "http://", "http://h:x/v1", "http://a b/"]
)
def test_what_is_not_a_url_is_one_line_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="http://host:8000/v1") as caught:
        normalize_base_url(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["http://me:hunter2@host/v1", "http://host/v1?key=hunter2"])
def test_a_secret_in_the_url_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        normalize_base_url(text)
    assert "hunter2" not in str(caught.value)
