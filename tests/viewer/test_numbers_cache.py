import pytest

from rollbook.core import encode
from rollbook.viewer import snapshot
from rollbook.viewer.run_cache import CachedRun
from rollbook.viewer.snapshot import CACHE_NAME, read_numbers
from support.sample_runs import fill, make


@pytest.fixture
def reading(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "MIN_CACHED_ROLLOUTS", 1)
    fill(make(tmp_path / "run", tasks=3, samples=2))
    return CachedRun(tmp_path / "run").take_snapshot().reading


def test_numbers_are_kept_and_not_worked_out_again(reading, monkeypatch):
    first = read_numbers(reading)
    monkeypatch.setattr(snapshot, "compute_numbers", lambda _: pytest.fail("worked out again"))
    assert encode(read_numbers(reading)) == encode(first)


@pytest.mark.parametrize("damage", [b"", b"\x00", b"\x81\xa3key\xa1x", b"\x81\xa3key\xa1\xff"])
def test_what_is_damaged_is_worked_out_again(reading, damage):
    first = read_numbers(reading)
    (reading.book.path / "index" / CACHE_NAME).write_bytes(damage)
    assert read_numbers(reading)["columns"] == first["columns"]


def test_numbers_of_something_else_are_not_taken(reading):
    first = read_numbers(reading)
    reading.scored.columns.reward[0] += 0.5
    assert read_numbers(reading)["columns"]["mean"] != first["columns"]["mean"]


def test_damage_that_changes_no_number_is_shown(reading):
    assert not read_numbers(reading)["report"]["damaged"]
    reading.damaged.append("journals/w.1.jsonl:7: the checksum is wrong")
    assert read_numbers(reading)["report"]["damaged"] == ["journals/w.1.jsonl:7: the checksum is wrong"]
