"""Roles as they are given on the command line, in Python and in files; the seeds and the sums of their calls."""

import pytest

from rollbook.core import (
    RoleCall,
    RoleSettings,
    RoleUse,
    default_key_variable,
    derive_role_seed,
    derive_seed,
    parse_roles,
    read_roles,
)
from rollbook.errors import UsageError


def test_replicas_and_settings_of_a_role_are_collected():
    words = ["user=http://a/v1", "user=http://b/v1", "user.price=in=1,out=4", "user.sampling.stop=END"]
    found = parse_roles([*words, "user.sampling.temperature=null", "user.headers.x-team=TEAM_KEY", "rival=ollama/m"])
    assert found == {
        "user": RoleSettings(
            urls=["http://a/v1", "http://b/v1"],
            price="in=1,out=4",
            sampling={"stop": "END", "temperature": None},
            headers={"x-team": "TEAM_KEY"},
        ),
        "rival": RoleSettings(urls=["ollama/m"]),
    }


def test_python_and_the_command_line_mean_the_same():
    given = {"model": "http://a/v1", "name": "m", "sampling": {"top_k": 2}, "key_env": "KEY"}
    words = ["user=http://a/v1", "user.name=m", "user.sampling.top_k=2", "user.key_env=KEY"]
    assert read_roles({"user": given}) == parse_roles(words)
    assert read_roles({"user": ["http://a/v1"]}) == read_roles({"user": "http://a/v1"}) == parse_roles(words[:1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["user"], "--role user: write NAME=MODEL, as in --role user=http://host:8000/v1"),
        (["=x"], "write NAME=MODEL"),
        (["user="], "write NAME=MODEL"),
        (["user.colour=red"], "--role user.colour: a role has name, key_env, price, sampling.KEY and headers.NAME"),
        (["user.sampling=1"], "--role user.sampling: a role has"),
        (["user.name=a", "user.name=b"], "name is given twice"),
        (["my user=x"], "a role is named with small letters"),
        (["user.price=3"], "--role user.price=3: write the prices of a million tokens: in=2.5,out=10"),
    ],
)
def test_a_mistake_is_one_line_with_a_way_out(words, message):
    with pytest.raises(UsageError) as caught:
        parse_roles(words)
    assert message in str(caught.value)


def test_seeds_differ_by_role_and_number_and_are_31_bits():
    seed = derive_seed(0, "t", 0)
    seeds = {derive_role_seed(seed, role, number) for role in ("user", "judge") for number in range(50)}
    assert len(seeds | {seed}) == 101
    assert max(seeds) < 2**31


def test_uses_add_up():
    call = RoleCall("user", 0, 1, "Hi.", 10, 2, cost=0.5)
    use = RoleUse().add(call).add(RoleUse(2, 5, 5)).add(call)
    assert use == RoleUse(4, 25, 9, 1.0)
    assert use.describe("user") == "role user: 4 calls, 25 prompt tokens, 9 completion tokens, cost 1.00"


@pytest.mark.parametrize("model", [7, None, [""], [7], {"a": 1}])
def test_what_is_no_model_is_named(model):
    with pytest.raises(UsageError, match=r"roles: user: .* is not a model; write a URL, or a list of URLs|is unknown"):
        read_roles({"user": model})


def test_a_call_says_whether_it_was_cut_and_counted():
    cut, counted = RoleCall("user", 0, 1, "", finish_reason="length"), RoleCall("user", 0, 1, "", 0, 1)
    assert (cut.truncated, counted.truncated) == (True, False)
    assert (cut.is_counted, counted.is_counted, RoleCall("user", 0, 1, "", 1).is_counted) == (False, True, True)


def test_a_use_without_a_price_has_no_cost():
    use = RoleUse().add(RoleCall("user", 0, 1, "Hi.", 10, 2))
    assert use == RoleUse(1, 10, 2, None)
    assert use.describe("user") == "role user: 1 call, 10 prompt tokens, 2 completion tokens"
    assert RoleUse(cost=0.0).add(use).cost == 0.0


def test_settings_of_a_role_are_taken_as_they_are_and_its_key_has_a_usual_name():
    made = RoleSettings(urls=["http://a/v1"], wire_names={"max_tokens": "max_completion_tokens"})
    assert read_roles({"user": made}) == {"user": made}
    assert default_key_variable("user") == "USER_API_KEY"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("http://a/v1", "roles: 'http://a/v1': give models by role"),
        ({7: "http://a/v1"}, "roles: 7: a role is named with small letters"),
        ({"u" * 41: "x"}, "a role is named with small letters"),
        ({"user": {"model": "x", "colour": 1}}, "roles: user: colour is unknown; a role has model, name"),
        ({"user": {"model": "x", "name": 7}}, "roles: user: Expected `str`, got `int`"),
        ({"user": {"model": "x", "price": "3"}}, "roles: user.price=3: write the prices"),
    ],
)
def test_a_mistake_in_python_is_one_line_too(given, message):
    with pytest.raises(UsageError) as caught:
        read_roles(given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "words", [["user.name.x=1"], ["user.model.x=1"], ["user.headers=1"], ["user.wire_names=1"], ["user.headers.=1"]]
)
def test_only_sampling_and_headers_have_keys_of_their_own(words):
    with pytest.raises(UsageError, match="a role has name, key_env, price"):
        parse_roles(words)


def test_a_model_may_be_given_by_its_field_and_a_header_stays_text():
    found = parse_roles(["user.model=http://a/v1", "user.headers.x=7", "user.sampling.x=7"])["user"]
    assert (found.urls, found.headers, found.sampling) == (["http://a/v1"], {"x": "7"}, {"x": 7})


def test_a_value_that_is_nested_too_deeply_for_json_is_text():
    value = "[" * 50_000
    found = parse_roles(["user=http://a/v1", f"user.sampling.x={value}"])["user"]
    assert found.sampling == {"x": value}
