"""The filter, executed as the kernel does: its answer to every call number."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.sandbox.inner import seccomp
from rollbook.sandbox.inner.kernel import ARCH

pytestmark = pytest.mark.skipif(ARCH not in seccomp.CALLS, reason=f"no filter for {ARCH}")
CALLS = seccomp.CALLS.get(ARCH, {})
ALLOW, ASK, KILL = seccomp._ALLOW, seccomp._ASK, seccomp._KILL
EPERM, ENOSYS, EAGAIN = (seccomp._ERRNO | code for code in (errno.EPERM, errno.ENOSYS, errno.EAGAIN))
EVERYDAY = {
    "x86_64": (0, 1, 3, 9, 11, 35, 202, 228, 257, 281, 318),
    "aarch64": (56, 57, 63, 64, 98, 113, 215, 222, 278),
}


def run_filter(program: bytes, call: int, *arguments: int, arch: int | None = None) -> int:
    """Return what a program answers to a call."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", call, seccomp.AUDIT[ARCH] if arch is None else arch, 0, *given)
    place = held = 0
    while True:
        code, yes, no, k = struct.unpack_from("HBBI", program, 8 * place)
        place += 1
        if code == seccomp._LOAD:
            (held,) = struct.unpack_from("=I", data, k)
        elif code == seccomp._AND:
            held &= k
        elif code == seccomp._JA:
            place += k
        elif code == seccomp._RET:
            return int(k)
        else:
            tests = {seccomp._JEQ: held == k, seccomp._JGE: held >= k, seccomp._JSET: bool(held & k)}
            place += yes if tests[code] else no


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_what_is_never_allowed_is_denied_and_what_everybody_needs_is_not(alone: bool, apart: bool) -> None:
    program = seccomp.make_program(alone, apart=apart)
    for name in seccomp.ALWAYS_DENIED:
        if name in CALLS:
            assert run_filter(program, CALLS[name]) == EPERM, name
    assert {run_filter(program, call) for call in EVERYDAY[ARCH]} == {ALLOW}
    assert {run_filter(program, call) for call in range(seccomp.FIRST_UNKNOWN_CALL, 2000)} == {ENOSYS}
    assert run_filter(program, 0, arch=0x40000003) == KILL


def test_only_those_calls_are_denied_that_are_named() -> None:
    program, named = (
        seccomp.make_program(True),
        {CALLS[name] for name in (*seccomp.ALWAYS_DENIED, *seccomp.SINGLE_PROCESS_DENIED) if name in CALLS},
    )
    denied = {call for call in range(seccomp.FIRST_UNKNOWN_CALL) if run_filter(program, call) != ALLOW}
    assert denied == named | {CALLS[name] for name in ("clone", "clone3", "socketpair", "setrlimit")}


def test_a_limit_of_cpu_time_is_read_but_not_set() -> None:
    ignored, limit = seccomp._ERRNO, CALLS["prlimit64"]
    for program in (seccomp.make_program(True), seccomp.make_program(False), seccomp.make_program(True, apart=False)):
        assert run_filter(program, limit, 0, seccomp.RLIMIT_CPU, 0, 1) == ALLOW
        assert [run_filter(program, limit, 0, seccomp.RLIMIT_CPU, new) for new in (1, 1 << 32)] == [ignored] * 2
        assert run_filter(program, limit, 0, 3, 1) == ALLOW
        assert run_filter(program, CALLS["setrlimit"], seccomp.RLIMIT_CPU) == ignored
        assert run_filter(program, CALLS["setrlimit"], 3) == ALLOW


def test_threads_are_allowed_and_processes_only_where_they_are() -> None:
    thread, fork, namespace = 0x3D0F00, 17, 0x10000000 | 17
    alone, several, watched = (
        seccomp.make_program(True),
        seccomp.make_program(False),
        seccomp.make_program(True, forks=True),
    )
    assert [run_filter(p, CALLS["clone"], thread) for p in (alone, several, watched)] == [ALLOW] * 3
    assert [run_filter(p, CALLS["clone"], fork) for p in (alone, several, watched)] == [EAGAIN, ALLOW, ASK]
    assert [run_filter(p, CALLS["clone"], namespace) for p in (alone, several, watched)] == [EPERM] * 3
    assert run_filter(several, CALLS["clone3"]) == ENOSYS
    assert run_filter(watched, CALLS[seccomp.HELLO_CALL]) == ASK
    assert run_filter(watched, CALLS["kill"], 1) == EPERM


@pytest.mark.parametrize(
    ("family", "kind", "said"),
    [
        (1, 1, ALLOW),
        (1, 1 | 0x80800, ALLOW),
        (1, 5, ALLOW),
        (1, 2, EPERM),
        (1, 3, EPERM),
        (2, 1, EPERM),
        (16, 5, EPERM),
    ],
)
def test_a_pair_of_sockets_is_local_and_has_no_addresses(family: int, kind: int, said: int) -> None:
    assert run_filter(seccomp.make_program(True), CALLS["socketpair"], family, kind) == said


def test_without_namespaces_one_may_signal_oneself_and_nobody_else() -> None:
    program = seccomp.make_program(True, apart=False).replace(
        seccomp._op(seccomp._JEQ, seccomp.PID_PLACEHOLDER, 1, 0), seccomp._op(seccomp._JEQ, 4242, 1, 0)
    )
    for name in seccomp.SIGNAL_CALLS:
        said = [run_filter(program, CALLS[name], pid) for pid in (4242, 4243, 0, 1, 0xFFFFFFFF)]
        assert said == [EPERM if name == "tkill" else ALLOW, *[EPERM] * 4], name
    assert run_filter(program, CALLS["prctl"], 1) == EPERM
    assert run_filter(program, CALLS["prctl"], 15) == ALLOW
    assert run_filter(program, CALLS["prlimit64"], 0) == ALLOW
    assert run_filter(program, CALLS["prlimit64"], 1) == EPERM
    for name in seccomp.OWNERSHIP_CALLS:
        if name in CALLS:
            assert run_filter(program, CALLS[name]) == EPERM, name


@given(st.dictionaries(st.integers(0, 462), st.integers(0, 3), max_size=300))
def test_the_search_finds_what_belongs_to_each_number(codes: dict[int, int]) -> None:
    blocks = {call: [seccomp._deny(code + 1)] * (1 + 3 * code) for call, code in codes.items()}
    start = [seccomp._op(seccomp._LOAD, seccomp._NR)]
    program = b"".join([*start, *seccomp._tree(seccomp._intervals(blocks))])
    for call in range(470):
        assert run_filter(program, call) == (seccomp._ERRNO | codes[call] + 1 if call in codes else ALLOW)
