"""Leases: sessions are kept while they are used, and no longer."""

import threading

import pytest

from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.trainers.nemo_rl.code_samples import CodeRequest, SampleRefused
from rollbook.trainers.nemo_rl.code_workers import CodeSessions, EventCounter, sum_counts
from support.alive import eventually


@pytest.fixture(scope="module")
def box():
    try:
        with Sandbox(Limits(memory_mb=64), size=2) as opened:
            yield opened
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def asking(name, turn=None, memory_mb=64):
    return CodeRequest(name, turn, ("1",), 1.0, memory_mb)


@pytest.fixture
def sessions(box):
    opened = []

    def make(lease_s=60.0, most=8):
        tally = EventCounter()
        opened.append(CodeSessions(lambda _: box.session().__enter__(), lease_s, most, tally))
        return opened[-1], tally

    yield make
    for one in opened:
        one.close()


def use(sessions, name, turn=None):
    entry = sessions.claim(asking(name, turn))
    entry.turns += 1
    sessions.release(name)
    return entry


def test_the_same_id_is_the_same_session(sessions):
    table, _ = sessions()
    first = use(table, "a")
    assert use(table, "a").session is first.session
    assert use(table, "b").session is not first.session


def test_a_lease_that_nobody_renews_ends(sessions):
    table, tally = sessions(lease_s=0.2)
    entry = use(table, "a")
    assert eventually(lambda: len(table) == 0, 5)
    assert eventually(lambda: not entry.session.alive, 5)
    assert eventually(lambda: tally.take().get("sessions_expired") == 1, 5)


def test_a_session_with_a_turn_under_way_does_not_expire(sessions):
    table, _ = sessions(lease_s=0.05)
    entry = table.claim(asking("a"))
    threading.Event().wait(0.3)
    table.expire()
    assert entry.session.run_sync("1").value == "1"
    table.release("a")
    assert eventually(lambda: len(table) == 0, 5)


def test_who_was_idle_longest_makes_room(sessions):
    table, tally = sessions(most=2)
    first, second = use(table, "a"), use(table, "b")
    use(table, "a")
    use(table, "c")
    assert (first.session.alive, second.session.alive, len(table)) == (True, False, 2)
    assert tally.take()["sessions_crowded_out"] == 1


def test_there_is_no_room_when_all_are_busy(sessions):
    table, _ = sessions(most=1)
    table.claim(asking("a"))
    with pytest.raises(SampleRefused, match="1 sessions have a turn under way"):
        table.claim(asking("b"))
    table.release("a")
    assert use(table, "b").session.alive


def test_two_samples_with_one_id_are_found_out(sessions):
    table, _ = sessions()
    table.claim(asking("a"))
    with pytest.raises(SampleRefused, match="turn under way"):
        table.claim(asking("a"))
    table.release("a")
    use(table, "a")
    with pytest.raises(SampleRefused, match="has had 1 turns, this sample 5"):
        table.claim(asking("a", turn=5))
    use(table, "a", turn=1)


def test_memory_does_not_change_in_the_middle(sessions):
    table, _ = sessions()
    use(table, "a")
    with pytest.raises(SampleRefused, match="the session has 64 MiB, and its limit cannot change to 128 MiB"):
        table.claim(asking("a", memory_mb=128))
    use(table, "a")


def test_what_was_abandoned_is_closed_after_its_turn(sessions):
    table, _ = sessions()
    entry = table.claim(asking("a"))
    table.abandon("a")
    table.abandon("never there")
    table.release("a")
    assert (len(table), entry.session.alive) == (0, False)


def test_what_is_abandoned_the_moment_its_turn_ends_is_closed_at_once(sessions):
    table, _ = sessions()
    entry = use(table, "a")
    table.abandon("a")
    assert (len(table), entry.session.alive) == (0, False)
    assert use(table, "a", turn=0).turns == 1


def test_a_session_that_cannot_begin_leaves_nothing_behind():
    def fails(_):
        raise SandboxError("no")

    table = CodeSessions(fails, 60.0, 8, EventCounter())
    with pytest.raises(SandboxError):
        table.claim(asking("a"))
    assert len(table) == 0
    table.close()


def test_counts_are_those_since_the_last_time():
    tally = EventCounter()
    tally.add("a")
    tally.add("a", 0.5)
    assert (tally.take(), tally.take()) == ({"a": 1.5}, {})
    assert sum_counts([{"a": 1}, {"a": 2, "b": 3}, {}]) == {"a": 3, "b": 3}
