"""Only the final state counts: what was added, removed or altered, each exactly once, in any spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.environments.builtin.workplace.office import make_office
from rollbook.environments.builtin.workplace.workplace import compare_changes, find_changes, list_facts

MAIL = {"to": ["a@x", "b@x"], "subject": "Hello there", "body": "All is well."}


def test_nothing_has_changed_in_a_new_world():
    assert find_changes(make_office("s")) == {}


def test_what_was_added_removed_and_altered_is_told():
    world = make_office("s")
    world.add("mails", dict(MAIL))
    world.remove("events", "E-101")
    world.get("tickets", "T-101")["priority"] = "urgent"
    assert find_changes(world) == {
        "mails": {"added": [MAIL]},
        "events": {"removed": ["E-101"]},
        "tickets": {"altered": {"T-101": {"priority": "urgent"}}},
    }


def test_what_is_put_back_has_not_changed():
    world = make_office("s")
    ticket = world.get("tickets", "T-101")
    before, ticket["priority"] = ticket["priority"], "urgent"
    ticket["priority"] = before
    assert find_changes(world) == {}


@pytest.mark.parametrize(
    "other",
    [
        {**MAIL, "to": ["b@x", "a@x"]},
        {**MAIL, "subject": " hello  THERE"},
        {**MAIL, "body": '"All is well"'},
    ],
)
def test_small_differences_do_not_matter(other):
    assert compare_changes({"mails": {"added": [MAIL]}}, {"mails": {"added": [other]}}) == ([], [])


@pytest.mark.parametrize(
    "other", [[], [MAIL, MAIL], [{**MAIL, "to": ["a@x"]}], [{**MAIL, "body": "All is not well."}], [{**MAIL, "x": 1}]]
)
def test_others_do(other):
    missing, extra = compare_changes({"mails": {"added": [MAIL]}}, {"mails": {"added": other}})
    assert missing or extra


TOLD = st.dictionaries(
    st.sampled_from(["mails", "tickets"]),
    st.fixed_dictionaries(
        {
            "added": st.lists(st.dictionaries(st.sampled_from("abc"), st.text(), min_size=1), max_size=3),
            "removed": st.lists(st.text(), max_size=3),
            "altered": st.dictionaries(st.text(), st.dictionaries(st.sampled_from("abc"), st.text(), min_size=1)),
        }
    ),
)


@given(TOLD, TOLD)
def test_comparing_is_the_difference_of_the_facts(wanted, found):
    missing, extra = compare_changes(wanted, found)
    assert sorted(list_facts(wanted) + extra) == sorted(list_facts(found) + missing)
    assert compare_changes(wanted, wanted) == ([], [])
    assert compare_changes(wanted, None) == (list_facts(wanted), [])
