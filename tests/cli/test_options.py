import pytest

from rollbook.cli.options import LAST_SETTINGS, parse_concurrency, parse_max_failures, parse_sampling
from rollbook.core import Settings
from rollbook.errors import UsageError


def test_what_was_not_given_changes_nothing():
    assert LAST_SETTINGS.make({option.name: option.default for option in LAST_SETTINGS.parameters}) == {}


def test_what_was_given_is_named_as_in_settings():
    given = LAST_SETTINGS.make(
        {
            "model": ["http://a/v1", "http://b/v1"],
            "concurrency": "auto",
            "workers": 2,
            "call_timeout": 5.0,
            "connect_timeout": 1.0,
            "outage": 0.0,
            "api_key_env": "KEY",
            "fail_fast": True,
            "max_failures": "1%",
            "offline": True,
        }
    )
    settings = Settings(**given)
    assert settings.urls == ["http://a/v1", "http://b/v1"]
    assert (settings.concurrency, settings.workers, settings.outage_s) == ("auto", 2, 0.0)
    assert (settings.call_s, settings.connect_s, settings.api_key_env) == (5.0, 1.0, "KEY")
    assert (settings.fail_fast, settings.max_failures, settings.offline) == (True, "1%", True)


@pytest.mark.parametrize(("text", "value"), [("8", 8), ("auto", "auto")])
def test_concurrency_is_a_number_or_auto(text, value):
    assert parse_concurrency(text) == value


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", "", "٣"])
def test_any_other_concurrency_is_refused(text):
    with pytest.raises(UsageError, match="-c"):
        parse_concurrency(text)


@pytest.mark.parametrize("text", ["0", "20", "1%", "0.5%"])
def test_failures_are_bounded_by_a_count_or_a_share(text):
    assert parse_max_failures(text) == text


@pytest.mark.parametrize("text", ["-1", "1.5", "%", "x%", "1 %"])
def test_any_other_limit_of_failures_is_refused(text):
    with pytest.raises(UsageError, match="--max-failures"):
        parse_max_failures(text)


def test_extra_sampling_is_json_where_it_is_json():
    pairs = ["top_k=20", 'stop=["a","b"]', "min_p=0.1", "mode=fast", "prompt=a=b"]
    expected = {"top_k": 20, "stop": ["a", "b"], "min_p": 0.1, "mode": "fast", "prompt": "a=b"}
    assert parse_sampling(pairs) == expected


@pytest.mark.parametrize("pair", ["top_k", "=3", "temperature=1", "seed=3", "n=2"])
def test_invalid_extra_sampling_is_refused(pair):
    with pytest.raises(UsageError, match="--sampling"):
        parse_sampling([pair])


def test_a_value_that_is_nested_too_deeply_for_json_is_text() -> None:
    value = "[" * 50_000
    assert parse_sampling([f"x={value}"]) == {"x": value}
