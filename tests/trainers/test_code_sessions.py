"""Leases: sessions stay as long as they are used, and no longer."""

import threading

import pytest

from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.trainers.nemo_rl.code_samples import CodeRequest, SampleRefused
from rollbook.trainers.nemo_rl.code_workers import EventCounter, SessionTable, sum_counts
from support.alive import eventually


@pytest.fixture(scope="module")
def box():
    try:
        with Sandbox(Limits(memory_mb=64), size=2) as made:
            yield made
    except SandboxError as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def asking(name, turn=None, memory_mb=64):
    return CodeRequest(name, turn, ("1",), 1.0, memory_mb)


@pytest.fixture
def sessions(box):
    made = []

    def make(lease_s=60.0, most=8):
        tally = EventCounter()
        made.append(SessionTable(lambda _: box.session().__enter__(), lease_s, most, tally))
        return made[-1], tally

    yield make
    for one in made:
        one.close()


def use(sessions, name, turn=None):
    held = sessions.claim(asking(name, turn))
    held.turns += 1
    sessions.release(name)
    return held


def test_the_same_id_is_the_same_session(sessions):
    room, _ = sessions()
    first = use(room, "a")
    assert use(room, "a").session is first.session
    assert use(room, "b").session is not first.session


def test_a_lease_that_nobody_renews_ends(sessions):
    room, tally = sessions(lease_s=0.2)
    held = use(room, "a")
    assert eventually(lambda: len(room) == 0, 5)
    assert eventually(lambda: not held.session.alive, 5)
    assert eventually(lambda: tally.take().get("sessions_expired") == 1, 5)


def test_a_session_with_a_turn_under_way_does_not_expire(sessions):
    room, _ = sessions(lease_s=0.05)
    held = room.claim(asking("a"))
    threading.Event().wait(0.3)
    room.expire()
    assert held.session.run_sync("1").value == "1"
    room.release("a")
    assert eventually(lambda: len(room) == 0, 5)


def test_who_was_idle_longest_makes_room(sessions):
    room, tally = sessions(most=2)
    first, second = use(room, "a"), use(room, "b")
    use(room, "a")
    use(room, "c")
    assert (first.session.alive, second.session.alive, len(room)) == (True, False, 2)
    assert tally.take()["sessions_crowded_out"] == 1


def test_there_is_no_room_when_all_are_busy(sessions):
    room, _ = sessions(most=1)
    room.claim(asking("a"))
    with pytest.raises(SampleRefused, match="1 sessions have a turn under way"):
        room.claim(asking("b"))
    room.release("a")
    assert use(room, "b").session.alive


def test_two_samples_with_one_id_are_found_out(sessions):
    room, _ = sessions()
    room.claim(asking("a"))
    with pytest.raises(SampleRefused, match="turn under way"):
        room.claim(asking("a"))
    room.release("a")
    use(room, "a")
    with pytest.raises(SampleRefused, match="has had 1 turns, this sample 5"):
        room.claim(asking("a", turn=5))
    use(room, "a", turn=1)


def test_memory_does_not_change_in_the_middle(sessions):
    room, _ = sessions()
    use(room, "a")
    with pytest.raises(SampleRefused, match="began with 64 MiB and keeps them, 128 MiB cannot be had"):
        room.claim(asking("a", memory_mb=128))
    use(room, "a")


def test_what_was_abandoned_is_closed_after_its_turn(sessions):
    room, _ = sessions()
    held = room.claim(asking("a"))
    room.abandon("a")
    room.abandon("never there")
    room.release("a")
    assert (len(room), held.session.alive) == (0, False)


def test_what_is_abandoned_the_moment_its_turn_ends_is_closed_at_once(sessions):
    room, _ = sessions()
    held = use(room, "a")
    room.abandon("a")
    assert (len(room), held.session.alive) == (0, False)
    assert use(room, "a", turn=0).turns == 1


def test_a_session_that_cannot_begin_leaves_nothing_behind():
    def fails(_):
        raise SandboxError("no")

    room = SessionTable(fails, 60.0, 8, EventCounter())
    with pytest.raises(SandboxError):
        room.claim(asking("a"))
    assert len(room) == 0
    room.close()


def test_counts_are_those_since_the_last_time():
    tally = EventCounter()
    tally.add("a")
    tally.add("a", 0.5)
    assert (tally.take(), tally.take()) == ({"a": 1.5}, {})
    assert sum_counts([{"a": 1}, {"a": 2, "b": 3}, {}]) == {"a": 3, "b": 3}
