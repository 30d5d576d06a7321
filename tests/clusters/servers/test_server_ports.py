from __future__ import annotations

import socket

from rollbook.clusters.servers import launch
from rollbook.clusters.servers.launch import LockedPort


def test_a_port_is_free_and_held_until_it_is_released() -> None:
    several = [LockedPort("127.0.0.1") for _ in range(20)]
    numbers = [port.number for port in several]
    assert len(set(numbers)) == 20
    low, high = launch._read_ephemeral_range()
    assert all(not low <= number <= high for number in numbers)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", numbers[0]))
    for port in several:
        port.release()


def test_a_port_that_is_taken_or_held_is_passed_over(monkeypatch) -> None:
    held = LockedPort("127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        offers = iter([held.number, taken, held.number + 1])
        monkeypatch.setattr(launch, "_pick_candidate", lambda: next(offers))
        found = LockedPort("127.0.0.1")
        assert found.number == held.number + 1
        found.release()
    held.release()
