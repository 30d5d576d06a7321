"""The faults: what is done to workers, their processes, the endpoint, the disk, the clock and the files of a run."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from chaos.schedule import STALE_S, Fault
from support.alive import alive
from support.commands import Served

HERE = Path(__file__).parent
CONTROL = struct.Struct("<qqiiq")
"""`struct control` of shim.c."""
ENVIRONMENT_PROCESS, ZYGOTE = "environment_process", "zygote.main"
MODES = ("500", "503", "429", "hang", "cut", "garbage", "truncated", "empty", "mismatch", "nan_logprob", "refuse")
ERRORS = (errno.EIO, errno.ENOSPC, errno.ESTALE)
NO_DAMAGE = ("workers", "logs", "index")
"""Folders whose files are overwritten, or which workers do not read."""

Undo = Callable[[], None]
T = TypeVar("T")


class Worker(Protocol):
    """What faults need to know of a worker."""

    pid: int
    control: Control | None


class Control:
    """The page through which the preloaded shim of one worker is told what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(mmap.PAGESIZE))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def set(self, **values: int) -> None:
        """Set wall_ns, monotonic_ns, error or per_mille."""
        fields = self._read() | values
        self._map[: CONTROL.size] = CONTROL.pack(*fields.values())

    def _read(self) -> dict[str, int]:
        names = ("wall_ns", "monotonic_ns", "error", "per_mille", "failed")
        return dict(zip(names, CONTROL.unpack(self._map[: CONTROL.size]), strict=True))

    @property
    def failed(self) -> int:
        """How many system calls have failed on purpose."""
        return self._read()["failed"]


def build_shim(folder: Path) -> Path | None:
    """Compile shim.c; None where there is no C compiler."""
    if not shutil.which("cc"):
        return None
    made = folder / "shim.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(HERE / "shim.c"), "-ldl"]
    return made if subprocess.run(command, timeout=60).returncode == 0 else None


class Damage(NamedTuple):
    """Bytes of a file that were changed, and by which an operator with a copy of the run would restore them."""

    path: Path
    at: int
    old: bytes
    new: bytes

    @property
    def remains(self) -> bool:
        """Whether the file is still damaged: neither restored nor deleted."""
        if not self.path.exists():
            return False
        if not self.new:
            return self.path.stat().st_size == self.at
        with open(self.path, "rb") as file:
            file.seek(self.at)
            return file.read(len(self.new)) == self.new

    def restore(self) -> None:
        """Restore the bytes, as from a copy of the run."""
        if self.remains:
            with open(self.path, "r+b") as file:
                if len(self.old) < len(self.new):
                    file.truncate(self.at)
                file.seek(self.at)
                file.write(self.old)


def inject(fault: Fault, worker: Worker, endpoint: Served, run: Path, disk: Path | None) -> tuple[str, Undo | None]:
    """Inject a fault; return what was done, empty if there was no target, and what ends it."""
    kind = fault.kind
    if kind.endswith("worker"):
        return _signal(fault, worker.pid)
    if kind.endswith(("environment process", "zygote")):
        below = list(find_processes(worker.pid, ZYGOTE if kind.endswith("zygote") else ENVIRONMENT_PROCESS))
        return _signal(fault, choose(below, fault.place)) if below else ("", None)
    if kind == "kill endpoint":
        endpoint.kill()
        return "endpoint killed", lambda: None if endpoint.is_running else endpoint.start()
    if kind == "spoil endpoint":
        mode = choose(MODES, fault.form)
        _switch(endpoint, mode, times=int(5 + 20 * fault.place))
        return f"endpoint: {mode}", lambda: _switch(endpoint, "ok")
    if kind == "fill disk":
        return _fill(disk, int(fault.form * 8192)) if disk else ("", None)
    return _preload(fault, worker.control) if worker.control else ("", None)


def _switch(endpoint: Served, mode: str, **settings: int) -> None:
    with suppress(OSError):  # it has been killed meanwhile
        endpoint.switch(mode, **settings)


def _signal(fault: Fault, pid: int) -> tuple[str, Undo | None]:
    names = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "terminate": signal.SIGTERM}
    number = names[fault.kind.split()[0]]
    if not alive(pid):
        return "", None
    os.kill(pid, number)
    return f"{number.name} to {pid}", (lambda: _wake(pid)) if number == signal.SIGSTOP else None


def _wake(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def _fill(disk: Path, leave: int) -> tuple[str, Undo]:
    stat, ballast = os.statvfs(disk), disk / "ballast"
    with open(ballast, "ab") as file, suppress(OSError):
        os.posix_fallocate(file.fileno(), 0, max(1, file.tell() + stat.f_bavail * stat.f_frsize - leave))
    return f"disk filled but for {leave} bytes", lambda: ballast.unlink(missing_ok=True)


def _preload(fault: Fault, control: Control) -> tuple[str, Undo | None]:
    if fault.kind == "set wall clock":
        seconds = round((fault.form - 0.5) * 172_800)
        control.set(wall_ns=seconds * 10**9)
        return f"wall clock set by {seconds} s", lambda: control.set(wall_ns=0)
    if fault.kind == "advance monotonic clock":
        seconds = round(fault.form * 3 * STALE_S)
        control.set(monotonic_ns=seconds * 10**9)
        return f"monotonic clock advanced by {seconds} s", None  # it never goes back
    error, per_mille = choose(ERRORS, fault.form), int(10 + 490 * fault.place)
    control.set(error=error, per_mille=per_mille)
    return f"{errno.errorcode[error]} of {per_mille}/1000 system calls", lambda: control.set(error=0, per_mille=0)


def choose(among: Sequence[T], fraction: float) -> T:
    """Return the one at a fraction of a list."""
    return among[int(fraction * len(among))]


def find_processes(pid: int, word: str) -> Iterator[int]:
    """Return the descendants of a process whose command has a word, in the order of their pids."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError, IndexError):
            parents[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
    below, found = {pid}, []
    while found != (found := [child for child, parent in parents.items() if parent in below]):
        below.update(found)
    for child in sorted(found):
        with suppress(OSError):
            if word in Path(f"/proc/{child}/cmdline").read_text():
                yield child


def tear_journal(fault: Fault, run: Path, dead: set[int]) -> Damage | None:
    """Cut or extend the end of a dead worker's journal, as a power cut does."""
    journals = sorted(path for path in (run / "journals").glob("*.jsonl") if int(path.name.split("-")[-2]) in dead)
    journals = [path for path in journals if path.stat().st_size]
    if not journals:
        return None
    path = choose(journals, fault.place)
    data = path.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    if fault.form < 0.6:
        at = last + int(fault.form / 0.6 * (len(data) - last))
        damage = Damage(path, at, data[at:], b"")
        os.truncate(path, at)
        return damage
    more = b"\0" * 100 if fault.form < 0.8 else data[last:-1][: int(1 + fault.form * 300)]
    with open(path, "ab") as file:
        file.write(more)
    return Damage(path, len(data), b"", more)


def flip_bit(fault: Fault, run: Path) -> Damage | None:
    """Flip one bit of a file; each kind of file is as likely as any other."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file() and not path.name.startswith(".")):
        if path.relative_to(run).parts[0] not in NO_DAMAGE and path.name != "metrics.json" and path.stat().st_size:
            kinds.setdefault(f"{path.parent.name}{path.suffix if path.parent.name == 'journals' else ''}", []).append(
                path
            )
    path = choose(choose(list(kinds.values()), fault.target), fault.place)
    at = int(fault.form * path.stat().st_size)
    with open(path, "r+b") as file:
        file.seek(at)
        old = file.read(1)
        new = bytes([old[0] ^ 1 << int(fault.place * 7919) % 8])
        file.seek(at)
        file.write(new)
    return Damage(path, at, old, new)


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within so many seconds of an idle machine.

    Time counts less while more processes want to run than there are cores: a loaded machine is no hang.
    """
    left, last = seconds, time.monotonic()
    while not condition():
        if left <= 0:
            return False
        time.sleep(0.05)
        now = time.monotonic()
        left, last = left - (now - last) / measure_slowdown(), now
    return True


def measure_slowdown() -> float:
    """Return how many processes there are for each core, by the load of the last minute; 1 if fewer."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
