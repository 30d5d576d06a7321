"""An office depends only on its seed, and its records are consistent."""

from __future__ import annotations

import pytest

from rollbook.environments.builtin.workplace.office import ME, make_office

SEEDS = [str(number) for number in range(30)]


def test_the_same_seed_makes_the_same_world():
    assert make_office("a").tables == make_office("a").tables
    assert make_office("a").tables != make_office("b").tables


@pytest.mark.parametrize("seed", SEEDS)
def test_all_that_is_named_is_there_and_named_once(seed):
    world = make_office(seed)
    tables = world.tables
    staff = {person["email"] for person in tables["people"].values()}
    contacts = {customer["contact_email"] for customer in tables["customers"].values()}
    assert len(staff) == 17
    assert len(contacts) == 12
    assert not staff & contacts
    assert ME in staff
    for table, field in (("tickets", "title"), ("mails", "subject"), ("events", "title"), ("customers", "name")):
        values = [record[field] for record in tables[table].values()]
        assert len(set(values)) == len(values)
    for ticket in tables["tickets"].values():
        assert ticket["customer"] in tables["customers"]
        assert ticket["assignee"] in {*staff, ""}
    assert all(mail["sender"] in contacts for mail in tables["mails"].values())
    assert all(set(event["attendees"]) <= staff for event in tables["events"].values())
    assert all(customer["owner"] in staff for customer in tables["customers"].values())
    assert all(event["start"] > world.now for event in tables["events"].values())


def test_ids_are_not_used_again():
    world = make_office("a")
    first = world.add("mails", {})
    world.remove("mails", first)
    assert world.add("mails", {}) != first


def test_the_beginning_is_kept():
    world = make_office("a")
    world.get("customers", "C-101")["notes"].append("x")
    assert world.initial_tables["customers"]["C-101"]["notes"] == []
