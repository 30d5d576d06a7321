"""Run as untrusted code before any other: tries what must not work and prints what did; nothing if isolation holds."""

import colorsys  # noqa: F401 - not loaded before: shows that the interpreter can be read
import ctypes
import html.entities  # noqa: F401
import os
import socket
import sys
from collections.abc import Callable

HOST = int(sys.stdin.read())
PR_GET_SECCOMP, PR_GET_NO_NEW_PRIVS = 21, 39
TOO_MUCH_BYTES = 1 << 44
FAILURES: list[str] = []


def must_fail(what: str, act: Callable[[], object]) -> None:
    """Record an action for which the kernel raises no error."""
    try:
        act()
    except (OSError, MemoryError):
        return
    FAILURES.append(what)


def fork() -> None:
    """Fork; the child must not continue here."""
    if os.fork() == 0:
        os._exit(0)


libc = ctypes.CDLL(None)
must_fail("open a network socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM))
must_fail("open a datagram socket", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
must_fail("open a local socket", lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
must_fail("read /etc/passwd", lambda: open("/etc/passwd").close())
must_fail("list /proc", lambda: os.listdir("/proc/self"))
must_fail("write to /tmp", lambda: open("/tmp/rollbook-proof", "w").close())
must_fail("write next to the interpreter", lambda: open(os.path.join(os.path.dirname(os.__file__), "x"), "w").close())
for who, pid in (("the host", HOST), ("its parent", os.getppid())):
    if pid not in (0, os.getpid()):  # pids of another pid namespace mean nothing here
        must_fail(f"signal {who}", lambda pid=pid: os.kill(pid, 0))  # type: ignore[misc]
must_fail("start a process", fork)
must_fail("start a program", lambda: os.execv(sys.executable or "/bin/sh", ["sh"]))
must_fail("use all memory", lambda: bytearray(TOO_MUCH_BYTES))
if libc.prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 2:
    FAILURES.append("run without a filter")
if libc.prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
    FAILURES.append("gain privileges")
if libc.unshare(0x10000000) == 0 or libc.ptrace(16, HOST, 0, 0) == 0:
    FAILURES.append("make a namespace or trace the host")
if set(os.environ) - {"LC_CTYPE"}:
    FAILURES.append("see environment variables")
sys.stdout.write(", ".join(FAILURES))
