import pytest

from rollbook.core.json import encode
from rollbook.view import keeping
from rollbook.view.keeping import NAME, kept_numbers
from rollbook.view.opened import Opened
from support.showcase import fill, make


@pytest.fixture
def reading(tmp_path, monkeypatch):
    monkeypatch.setattr(keeping, "WORTH_KEEPING", 1)
    fill(make(tmp_path / "run", tasks=3, samples=2))
    return Opened(tmp_path / "run").look().reading


def test_numbers_are_kept_and_not_worked_out_again(reading, monkeypatch):
    first = kept_numbers(reading)
    monkeypatch.setattr(keeping, "worked_out", lambda _: pytest.fail("worked out again"))
    assert encode(kept_numbers(reading)) == encode(first)


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x81\xa3key\xa1x"])
def test_what_is_damaged_is_worked_out_again(reading, damage):
    first = kept_numbers(reading)
    (reading.book.path / "index" / NAME).write_bytes(damage)
    assert kept_numbers(reading)["columns"] == first["columns"]


def test_numbers_of_something_else_are_not_taken(reading):
    first = kept_numbers(reading)
    reading.tally.columns.reward[0] += 0.5
    assert kept_numbers(reading)["columns"]["mean"] != first["columns"]["mean"]
