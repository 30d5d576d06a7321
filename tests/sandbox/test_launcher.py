"""Launching guests with providers that pretend: who gets which descriptors, and what is closed when something fails."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollbook.core import JSON
from rollbook.errors import SandboxError, SandboxUnsupported, UsageError
from rollbook.sandbox import Limits, Result, launcher
from rollbook.sandbox.isolation import HostFolder, IsolationRequirements
from rollbook.sandbox.launcher import (
    FEW_FIRST_UID,
    FEW_PAST_UID,
    FIRST_UID,
    PAST_UID,
    GuestLauncher,
    UserIds,
    prove_isolation,
    uid_range,
)
from rollbook.sandbox.results import ProgramError

LAYERS = ("pid", "mount", "network", "ipc", "seccomp", "landlock-4")


class Account:
    """A memory account that keeps whether it was closed."""

    clock, spare_mb = None, 7

    def __init__(self) -> None:
        self.procs_files: list[int] = []
        self.closed = 0

    def close_procs_files(self) -> None:
        self.procs_files.clear()

    def close(self) -> None:
        self.closed += 1


class Provider:
    """Launches nothing: what it is asked for is kept, and then it fails."""

    isolation, alive = LAYERS, True

    def __init__(self, mount: Callable[[], int] | None = None) -> None:
        self.account, self.orders, self.closed = Account(), list[dict[str, JSON]](), False
        self.handles: list[int] = []
        self._mount = mount

    def open_account(self, role: str, limits: Limits) -> Any:
        return self.account

    def mount(self, folder: HostFolder, uid: int) -> int:
        assert self._mount
        return self._mount()

    def launch(self, order: dict[str, JSON], handles: list[int]) -> None:
        self.orders.append(order)
        self.handles = [os.fstat(handle).st_ino for handle in handles]
        raise OSError("it broke")

    def ping(self) -> bool:
        return self.alive

    def read_last_output(self) -> str:
        return "its last words"

    def close(self) -> None:
        self.closed = True


def make_launcher(provider: Provider) -> GuestLauncher:
    return GuestLauncher(provider, UserIds())


def count_descriptors() -> int:
    gc.collect()  # what other tests left open is closed before it is counted, not between two counts
    return len(os.listdir("/proc/self/fd"))


def test_a_provider_that_breaks_is_reported_and_nothing_stays_open() -> None:
    provider, before = Provider(), count_descriptors()
    limits = Limits(seconds=2.0, memory_mb=64, files_mb=3)
    read, write = os.pipe()
    with pytest.raises(SandboxError) as caught:
        make_launcher(provider).launch("run", limits, code="1", stdin=b"in", files={"a": b"x"}, extra=[read])
    assert str(caught.value) == "the sandbox broke: it broke; its last words"
    assert provider.account.closed == 1
    (order,) = provider.orders
    assert order["limits"] == {**limits.to_request(), "spare_mb": 7}
    assert {name: order[name] for name in ("role", "has_files", "procs_files", "mount")} == {
        "role": "run",
        "has_files": True,
        "procs_files": 0,
        "mount": False,
    }
    assert len(provider.handles) == 7  # stdin, stdout, stderr, channel, the extra one, payload, control
    assert os.fstat(read).st_ino == provider.handles[4]
    for handle in (read, write):
        os.close(handle)
    assert count_descriptors() == before


def test_a_guest_without_files_is_announced_as_such() -> None:
    provider = Provider()
    with pytest.raises(SandboxError):
        make_launcher(provider).launch("run", Limits())
    assert provider.orders[0]["has_files"] is False


def test_a_guest_that_has_no_descriptors_left_is_no_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    for name in ("make_payload", "make_stdin", "Guest"):
        provider, before = Provider(), count_descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(launcher, name, refuse)
            with pytest.raises(SandboxError, match=r"no guest could be started: .*Too many open files \(each holds 5"):
                make_launcher(provider).launch("run", Limits(), stdin=b"in")
        assert (provider.account.closed, provider.orders, count_descriptors()) == (1, [], before)


@pytest.mark.parametrize("error", [OSError("it broke"), EOFError("it broke"), SandboxUnsupported("it cannot")])
def test_a_folder_that_cannot_be_mounted_is_released(tmp_path: Path, error: Exception) -> None:
    def fail() -> int:
        raise error

    provider, before = Provider(fail), count_descriptors()
    folder = tmp_path.resolve()
    expected = "the sandbox broke: it broke; its last words" if "broke" in str(error) else "it cannot"
    with pytest.raises(SandboxError) as caught:
        make_launcher(provider).launch("session", Limits(), folder=str(folder))
    assert str(caught.value) == expected
    assert (provider.account.closed, count_descriptors()) == (1, before)
    HostFolder(str(folder)).close()  # nobody has it locked


def test_a_mounted_folder_is_passed_on_and_released_when_the_launch_fails(tmp_path: Path) -> None:
    tree = os.open(tmp_path, os.O_RDONLY)
    inode, before = os.fstat(tree).st_ino, count_descriptors()
    provider = Provider(lambda: tree)
    with pytest.raises(SandboxError):
        make_launcher(provider).launch("session", Limits(), folder=str(tmp_path.resolve()))
    assert provider.orders[0]["mount"] is True
    assert provider.handles[4] == inode
    assert count_descriptors() == before - 1
    HostFolder(str(tmp_path.resolve())).close()


def test_a_provider_that_does_not_answer_is_an_error_with_its_last_words() -> None:
    provider = Provider()
    guests = make_launcher(provider)
    assert guests.alive
    guests.check_provider_alive()
    provider.alive = False
    assert not guests.alive
    with pytest.raises(SandboxError) as caught:
        guests.check_provider_alive()
    assert str(caught.value) == "the sandbox broke: it was killed, or does not answer; its last words"
    guests.close()
    assert provider.closed


@pytest.mark.parametrize(
    ("lines", "wide"),
    [
        ("0 0 4294967295", True),
        (f"{FIRST_UID} 5 {PAST_UID - FIRST_UID}", True),
        (f"{FIRST_UID} 5 {PAST_UID - FIRST_UID - 1}", False),
        (f"{FIRST_UID + 1} 5 {PAST_UID - FIRST_UID}", False),
        ("0 1000 65536", False),
        (f"0 0 1\n{FIRST_UID} 5 {PAST_UID - FIRST_UID}", True),
    ],
)
def test_user_ids_are_far_from_real_ones_where_the_namespace_has_them(
    monkeypatch: pytest.MonkeyPatch, lines: str, wide: bool
) -> None:
    monkeypatch.setattr(launcher, "Path", lambda path: SimpleNamespace(read_text=lambda: lines))
    assert uid_range() == ((FIRST_UID, PAST_UID) if wide else (FEW_FIRST_UID, FEW_PAST_UID))


def test_without_a_map_of_users_there_are_few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(launcher, "Path", lambda path: tmp_path / "none")
    assert uid_range() == (FEW_FIRST_UID, FEW_PAST_UID)


class Prover:
    """A launcher whose proof ends as it is told."""

    isolation = LAYERS

    def __init__(self, result: Result) -> None:
        self.result, self.closed, self.ran = result, False, list[Any]()

    def run(self, *given: Any) -> Result:
        self.ran.append(given)
        return self.result

    def close(self) -> None:
        self.closed = True


LONG = "x" * 400
ENDS = [
    (Result("ok"), None),
    (Result("ok", stdout="read /etc/passwd"), "the self-test could read /etc/passwd"),
    (Result("crash", stderr=f" {LONG}said\n"), f"the self-test ended with crash: {'x' * 296}said"),
    (
        Result("error", stderr="other", error=ProgramError("E", "m", "Traceback: m\n")),
        "the self-test ended with error: Traceback: m",
    ),
]


@pytest.mark.parametrize(("result", "message"), ENDS)
def test_isolation_is_proven_or_the_launcher_is_closed(result: Result, message: str | None) -> None:
    prover: Any = Prover(result)
    if message is None:
        assert prove_isolation(prover, IsolationRequirements("full")) is prover
    else:
        with pytest.raises(SandboxError) as caught:
            prove_isolation(prover, IsolationRequirements())
        assert str(caught.value) == message
    assert prover.closed is (message is not None)
    ((code, stdin, files, limits),) = prover.ran
    assert "import" in code
    assert (stdin, files) == (str(os.getpid()).encode(), {})
    assert (limits.seconds, limits.wall_s) == (10.0, 60.0)


def test_layers_that_are_required_are_checked_before_anything_runs() -> None:
    prover: Any = Prover(Result("ok"))
    prover.isolation = ("pid",)
    with pytest.raises(SandboxError, match='require="full": this machine has no'):
        prove_isolation(prover, IsolationRequirements("full"))
    assert (prover.ran, prover.closed) == ([], True)


def test_a_folder_is_given_by_its_absolute_path() -> None:
    provider = Provider()
    with pytest.raises(UsageError, match="give an absolute path"):
        make_launcher(provider).launch("session", Limits(), folder="here")
    assert provider.account.closed == 1
