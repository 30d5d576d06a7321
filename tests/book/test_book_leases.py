"""Claims: one link, one owner."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from rollbook.book.heartbeats import WorkerGone, make_presence, publish_worker_gone, write_heartbeat
from rollbook.book.leases import Leases, WorkerMonitor, remove_dead_claim_files
from rollbook.errors import BookError
from support.books import make_book


def test_only_one_of_two_gets_a_chunk(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    a, b = Leases(run, "a", 1), Leases(run, "b", 1)
    assert a.claim(0, 1)
    assert not b.claim(0, 1)
    b.refresh()
    assert b.read_lease(0, 1).worker == "a"


def test_a_takeover_is_the_next_epoch_and_the_old_owner_can_tell(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    a, b = Leases(run, "a", 1), Leases(run, "b", 1)
    a.claim(3, 1)
    assert not a.is_lost(3, 1)
    assert b.claim(3, 2)
    assert a.is_lost(3, 1)
    a.refresh()
    assert a.find_owners(3) == {"a": 1, "b": 2}


def test_a_claim_whose_answer_was_lost_is_still_ours(tmp_path: Path) -> None:
    leases = Leases(make_book(tmp_path / "run").path, "a", 1)
    assert leases.claim(0, 1)
    assert leases.claim(0, 1)


def test_a_lease_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    for epoch, name in enumerate("abc", 1):
        assert Leases(run, name, 1).claim(0, epoch)
    (run / "leases" / "00000.2").unlink()
    reader = Leases(run)
    reader.refresh()
    with pytest.raises(BookError, match=r"leases/00000\.2 is missing: restore it"):
        reader.find_owners(0)


def test_a_worker_whose_hidden_file_was_removed_claims_with_a_new_one(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    leases, other = Leases(run, "a", 1), Leases(run, "b", 1)
    assert leases.claim(0, 1)
    other.remove_claim_files_of(lambda worker: worker == "a")
    assert [path.name for path in (run / "leases").iterdir()] == ["00000.1"]
    assert leases.claim(1, 1)
    assert not other.claim(1, 1)


def test_who_leaves_leaves_leases_and_no_hidden_files(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    leases = Leases(run, "a", 1)
    assert leases.claim(0, 1)
    assert leases.claim(1, 1)
    leases.close()
    assert sorted(path.name for path in (run / "leases").iterdir()) == ["00000.1", "00001.1"]
    reader = Leases(run)
    reader.refresh()
    assert [reader.read_lease(chunk, 1).worker for chunk in (0, 1)] == ["a", "a"]
    assert leases.claim(2, 1)


def test_two_workers_racing_for_one_claim_a_thousand_times(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    wins: dict[str, set[int]] = {"a": set(), "b": set()}
    barrier = threading.Barrier(2)

    def race(name: str) -> None:
        leases = Leases(run, name, 1)
        for chunk in range(1000):
            barrier.wait(timeout=30)
            if leases.claim(chunk, 1):
                wins[name].add(chunk)

    racers = [threading.Thread(target=race, args=(name,)) for name in wins]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(timeout=60)
    assert wins["a"] | wins["b"] == set(range(1000))
    assert not wins["a"] & wins["b"]
    reader = Leases(run)
    reader.refresh()
    assert all(reader.read_lease(chunk, 1).worker == ("a" if chunk in wins["a"] else "b") for chunk in range(1000))


def test_a_file_with_too_many_links_is_replaced_by_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_book(tmp_path / "run").path
    link, sources = os.link, list[str]()

    def link_once(source: Path, target: Path) -> None:
        sources.append(str(source))
        if sources.count(str(source)) > 1:
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        link(source, target)

    monkeypatch.setattr(os, "link", link_once)
    leases = Leases(run, "a", 1)
    assert [leases.claim(chunk, 1) for chunk in range(3)] == [True] * 3
    assert len(set(sources)) == 3
    assert len(sources) == 5
    leases.close()
    assert list((run / "leases").glob(".*")) == []


@pytest.mark.parametrize(("code", "tries"), [(errno.EMLINK, 3), (errno.ENOENT, 3)])
def test_a_claim_is_given_up_after_a_few_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, tries: int
) -> None:
    leases, tried = Leases(make_book(tmp_path / "run").path, "a", 1), []

    def refuse(source: Path, target: Path) -> None:
        tried.append(source)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    assert leases.claim(0, 1) is False
    assert len(set(tried)) == len(tried) == tries
    assert leases.epochs == {}


def test_an_error_of_the_disk_is_no_lost_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    leases = Leases(make_book(tmp_path / "run").path, "a", 1)
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        leases.claim(0, 1)


def test_a_lost_answer_is_recognised_by_the_content_where_the_hidden_file_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_book(tmp_path / "run").path
    link = os.link

    def link_and_fail(source: Path, target: Path) -> None:
        if not target.exists():
            link(source, target)
        source.unlink()
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link_and_fail)
    assert Leases(run, "a", 1).claim(0, 1)
    assert not Leases(run, "b", 1).claim(0, 1)
    assert not Leases(run, "a", 2).claim(0, 1)


def test_only_leases_are_read_as_leases(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    for name in ("00000.1", "00000.3", "00000.2", "00012.1", "notes.txt", "00001.x", ".a.00ff", "7"):
        (run / "leases" / name).touch()
    assert Leases(run).refresh() == {0: 3, 12: 1}


def test_only_hidden_files_of_gone_workers_are_removed(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    names = (".gone.00ff", ".alive.00ff", "gone.00ff", ".hidden", "00000.1")
    for name in names:
        (run / "leases" / name).touch()
    asked = []
    Leases(run).remove_claim_files_of(lambda worker: bool(asked.append(worker)) or worker == "gone")
    assert sorted(path.name for path in (run / "leases").iterdir()) == sorted(set(names) - {".gone.00ff"})
    assert sorted(asked) == ["alive", "gone"]


def test_hidden_files_of_a_worker_that_lives_after_all_stay(tmp_path: Path) -> None:
    run = make_book(tmp_path / "run").path
    presence = make_presence(1, run)
    write_heartbeat(run, presence)
    hidden = run / "leases" / f".{presence.id}.00ff"
    hidden.touch()
    publish_worker_gone(run, presence.id, WorkerGone(presence.counter + 5, {}))
    remove_dead_claim_files(run, WorkerMonitor(run))
    assert hidden.exists()
    presence.counter += 4
    write_heartbeat(run, presence)  # now its last heartbeat is the one that was published
    remove_dead_claim_files(run, WorkerMonitor(run))
    assert not hidden.exists()


def test_a_reader_has_no_name() -> None:
    assert (Leases(Path("run")).worker, Leases(Path("run"), "a").worker) == ("", "a")
