"""Four workers on one run directory while everything around them breaks, then an independent look at what they wrote.

    make chaos SEED=7 MINUTES=5         schedules 7, 8, ... until five minutes are over
    make chaos SEED=9 MINUTES=0         schedule 9 alone, as often as you like

A seed determines which faults happen and when (schedule.py), not how the machine interleaves its processes. After the
window all faults end; then an operator restores damaged files, or follows the error message, and resumes until nothing
is pending. reader.py, which imports nothing of Rollbook, compares the result with every guarantee. If one is violated,
the run directory, the log of faults and the output of every process are kept in build/chaos/SEED.

Exit status: 0 every guarantee held, 1 one was violated, 3 the check itself failed, which says nothing of Rollbook.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from chaos import reader
from chaos.environment import BROKEN_EVERY, TASKS
from chaos.faults import (
    Control,
    Damage,
    Undo,
    build_shim,
    choose,
    flip_bit,
    inject,
    measure_slowdown,
    tear_journal,
    wait_for,
)
from chaos.schedule import Fault, make_schedule
from support.alive import alive
from support.commands import Served

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORKERS, SAMPLES, DELAY_S = 4, 4, 0.4
RESTART_S = 1.0
FINISH_S = 150.0
"""Seconds of an idle machine within which workers and commands must end; a loaded one has longer (`wait_for`)."""
VIOLATED, CHECK_FAILED = 1, 3
SHORTFALL_EXIT = DAMAGED_EXIT = 3
STATUS_AT_S = (4.0, 8.0, 12.0, 16.0)
"""When the status is compared with what seals and heartbeats count, besides the faults that read it."""
MAX_RESUMES = 12
DISK_MB = 32
MARK, OWN_MOUNTS = "CHAOS_MARK", "CHAOS_MOUNTS"
UNSHARE = ("unshare", "--mount", "--propagation", "private")
BLEND = f"environments:\n  - env: {HERE / 'environment.py'}:Sums\n  - env: {HERE / 'environment.py'}:Programs\n"


class WorkerProcess:
    """One of the four places for a worker: a new process takes the place of one that has died."""

    def __init__(self, chaos: Chaos, number: int) -> None:
        self._chaos, self._number = chaos, number
        self.control = Control(chaos.folder / f"control.{number}") if chaos.shim else None
        self.starts, self.over, self._start_at = 0, False, 0.0
        self._start()

    def _start(self) -> None:
        if self.control:
            self.control.set(wall_ns=0, monotonic_ns=0)  # a process cannot have seen another monotonic clock
        host = "here" if self._number % 2 else f"node{self._number}"
        run = self._chaos.mounts[self._number % len(self._chaos.mounts)]
        self.log = self._chaos.logs / f"worker-{self._number}.{self.starts}.log"
        self._popen = self._chaos.start(["work", run, "-c", 4], self.log, host, self.control)
        self.pid, self.starts = self._popen.pid, self.starts + 1

    def renew(self) -> None:
        """Start another process, a moment after this one has ended, unless that found nothing left to do."""
        if self.over or self._popen.poll() is None:
            return
        self.check_end()
        self.over = self._popen.returncode in (0, 3)
        self._start_at = self._start_at or time.monotonic() + RESTART_S
        if not self.over and time.monotonic() > self._start_at:
            self._start_at = 0.0
            self._start()

    def check_end(self) -> None:
        """Check the exit status of a process that has ended, once."""
        if self.pid not in self._chaos.dead:
            self._chaos.dead.add(self.pid)
            self._chaos.check_exit(self.log.name, self._popen.returncode)

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self._popen.poll() is not None

    def kill(self) -> None:
        """Kill it, stopped or not."""
        self._popen.kill()
        self._popen.wait(30)


class Chaos:
    """One schedule, from an empty folder to the list of violations."""

    def __init__(self, seed: int, parent: Path | None, shim: Path | None) -> None:
        self.seed, self.shim = seed, shim
        self.folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=parent))
        self.logs = self.folder / "logs"
        self.logs.mkdir()
        self.mark = secrets.token_hex(8)
        self.disk = None if parent else mount_disk(self.folder / "disk")
        home = self.disk or self.folder
        (home / "home").mkdir()
        self.run = home / "home" / "run"
        self.mounts = [self.run]
        if self.disk and mount("--bind", home / "home", self.folder / "again"):
            self.mounts.append(self.folder / "again" / "run")
        self.dead: set[int] = set()
        self.damages: list[tuple[Damage, float]] = []
        self.undos: list[tuple[float, Undo]] = []
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []
        self.reported: set[Path] = set()
        self.sealed: dict[str, str] = {}
        self.resumes = self.compared = 0

    def note(self, text: str) -> None:
        """Add a line to the log of this schedule."""
        with open(self.logs / "faults.log", "a") as file:
            file.write(f"{time.monotonic() - self.began:7.2f} {text}\n")

    def start(
        self, words: list[object], log: Path, host: str = "here", control: Control | None = None
    ) -> subprocess.Popen[bytes]:
        """Start `rollbook WORDS` with the shorter lease; what it prints goes to a log."""
        environ = {**os.environ, MARK: self.mark, "COLUMNS": "110"}
        if control and self.shim:
            folders = ":".join(map(str, self.mounts))
            environ |= {"LD_PRELOAD": str(self.shim), "CHAOS_CONTROL": str(control.path), "CHAOS_FOLDERS": folders}
        command = [sys.executable, "-m", "chaos.worker", host, *map(str, words)]
        with open(log, "wb") as out:
            return subprocess.Popen(
                command, cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def command(self, *words: object) -> tuple[int, str, str]:
        """Run `rollbook WORDS`; return its exit status and what it printed to standard output and standard error."""
        command = [sys.executable, "-m", "chaos.worker", "here", *map(str, words)]
        environ = {**os.environ, MARK: self.mark}
        out, err = self.logs / "command.out", self.logs / "command.err"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            process = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=stdout, stderr=stderr)
        if not wait_for(lambda: process.poll() is not None, FINISH_S):
            process.kill()
            process.wait(30)
            self.violations.append(f"`rollbook {words[0]}` took longer than {FINISH_S:g} s")
            return 124, "", ""
        error = err.read_text(errors="replace")
        if "Traceback" in error:
            self.violations.append(f"`rollbook {words[0]}` ended with a traceback: {error[-2000:]}")
        if process.returncode == 0 and words[0] in ("report", "resume"):  # the verifier of some tasks always raises
            self.violations.append(f"`rollbook {words[0]}` exits with 0, although not every rollout is scored")
        if words[0] == "verify" and (printed := out.read_text()):
            right = DAMAGED_EXIT if json.loads(printed)["damage"] else 0
            if process.returncode != right:
                self.violations.append(f"`rollbook verify` exits with {process.returncode}, not {right}: {printed}")
        self.note(f"rollbook {words[0]}: exit {process.returncode} {error.strip()[-300:]}")
        return process.returncode, out.read_text(), error

    def play(self) -> list[str]:
        """Run the schedule; return the violations."""
        self.began = time.monotonic()
        self.endpoint = Served("--vllm", "--seeded", "--delay-s", str(DELAY_S))
        try:
            (self.folder / "blend.yaml").write_text(BLEND)
            model = ("-m", self.endpoint.url, "--model-name", "mock", "--call-timeout", 5, "--outage", 60)
            code, _, error = self.command(
                "plan", self.folder / "blend.yaml", *model, "-k", SAMPLES, "--workers", WORKERS, "-o", self.run
            )
            assert code == 0, error
            self.workers = [WorkerProcess(self, number) for number in range(WORKERS)]
            self._inject_all()
            self._finish()
        finally:
            self._close()
        return self.violations

    def _inject_all(self) -> None:
        wait_for(lambda: any((self.run / "journals").iterdir()), FINISH_S)
        began, faults, reads = time.monotonic(), make_schedule(self.seed), [*STATUS_AT_S]
        while faults or any(at > time.monotonic() for at, _ in self.undos):
            now = time.monotonic()
            while faults and now - began >= faults[0].at_s:
                self._inject(faults.pop(0))
            if reads and now - began >= reads[0]:
                self.note(f"status after {reads.pop(0):g} s: {self._read_status()}")
            self._undo(now)
            for worker in self.workers:
                worker.renew()
            time.sleep(0.05)
        self._undo(float("inf"))

    def _undo(self, now: float) -> None:
        for at, undo in [each for each in self.undos if each[0] <= now]:
            self.undos.remove((at, undo))
            undo()

    def _inject(self, fault: Fault) -> None:
        worker = choose(self.workers, fault.target)
        undo = None
        if fault.kind in ("tear journal", "flip bit"):
            damage = (
                tear_journal(fault, self.run, self.dead) if fault.kind == "tear journal" else flip_bit(fault, self.run)
            )
            done = f"{damage.path.relative_to(self.run)} at byte {damage.at}" if damage else ""
            self.damages += [(damage, fault.form)] if damage else []
        elif fault.kind == "read status":
            done = self._read_status()
        else:
            done, undo = inject(fault, worker, self.endpoint, self.run, self.disk)
        self.note(f"{fault.kind}: {done or 'no target'}")
        self.counts[fault.kind if done else "without a target"] += 1
        if undo:
            self.undos.append((time.monotonic() + fault.seconds, undo))

    def _read_status(self) -> str:
        """Requested = scored + failed + pending, at any moment; what is sealed now may not change any more."""
        before = None if self._is_flipped() else reader.count_reported(self.run)
        code, out, _ = self.command("status", self.run, "--json")
        after = reader.count_reported(self.run) if before and not self._is_flipped() else None
        if code == 0:
            status = json.loads(out)
            if before and after and before[0] == after[0]:  # nothing was claimed or sealed in between
                self.compared += 1
                shown = status["scored"], sum(status["failed"].values())
                if not all(low <= each <= high for low, each, high in zip(before[1:], shown, after[1:], strict=True)):
                    self.violations.append(f"the status shows {shown}, recorded are {before[1:]} to {after[1:]}")
            if status["requested"] != status["scored"] + sum(status["failed"].values()) + status["pending"]:
                self.violations.append(f"the status does not add up: {out}")
        if not self.damages:
            self.sealed |= reader.count_sealed(self.run)
        return f"exit {code}"

    def _is_flipped(self) -> bool:
        """Whether damage may have changed what the status is read from."""
        return any(damage.path.parent.name != "journals" for damage, _ in self.damages)

    def check_exit(self, name: str, code: int) -> None:
        """Some rollouts cannot be scored: a worker says so at the end of the run, and only then."""
        pending = reader.count_pending(self.run) if code in (0, SHORTFALL_EXIT) and not self.damages else 0
        if code == 0 or pending:
            self.violations.append(f"{name}: exits with {code}: not every rollout is scored, {pending} are pending")

    def _finish(self) -> None:
        """Let the workers end, then do what an operator does until nothing is pending, then check."""
        self.note("all faults end")
        ended = lambda: all(worker.ended for worker in self.workers)  # noqa: E731
        if not wait_for(ended, FINISH_S):
            self.violations.append(f"workers still run {FINISH_S:g} s after the last fault")
            return
        for worker in self.workers:
            worker.check_end()
        self._check_processes()
        self._restore_what_is_reported()
        self._resume()  # always: it must find what is scored
        while not self._is_complete():
            if self.resumes == MAX_RESUMES:
                self.violations.append(f"not complete after {MAX_RESUMES} resumes")
                return
            self._resume()
        self._check()

    def _restore_what_is_reported(self) -> None:
        """Verify and restore; verify again, since some damage can be seen only once other damage is repaired."""
        for is_first in (True, False):
            unreported, error = self._verify()
            silent = [damage for damage in unreported if not is_torn_end(damage) and not self._is_harmless(damage)]
            for damage in silent:
                if not (is_first and self._is_hidden(damage)):
                    change = (
                        f"{damage.path.relative_to(self.run)}, byte {damage.at}: {damage.old!r}, now {damage.new!r}"
                    )
                    self.violations.append(f"`verify` is silent about {change} ({error})")
            self._restore()
        self._remove_seals_of_damage()

    def _restore(self) -> None:
        """Restore some of the files that are reported, the last change first, as from a copy of the run.

        What is not reported may be sealed as it is: its rollouts are run again, or nothing depends on it.
        """
        forms = {damage.path: form for damage, form in reversed(self.damages)}
        for damage, _ in reversed(self.damages):
            kept = damage.path.parent.name not in ("journals", "done")  # there is no way without a copy
            if damage.path in self.reported and (kept or forms[damage.path] < 0.5):
                damage.restore()

    def _remove_seals_of_damage(self) -> None:
        """Remove the seals that were written over damaged token ids: `verify` names them once those are restored."""
        restored = {str(damage.path) for damage, _ in self.damages if not damage.remains}
        for damage in self._list_damage()[0] if restored else ():
            names = re.findall(r"\b\d{5}(?:\.\d+)?\.json", damage["problem"]) if damage["path"] in restored else ()
            for name in names:
                (self.run / "done" / name).unlink(missing_ok=True)  # two files may name it
                self.sealed.clear()  # what the removed seals fixed may change

    def _list_damage(self) -> tuple[list[dict[str, Any]], str]:
        _, out, error = self.command("verify", self.run, "--json")
        return (json.loads(out)["damage"] if out else []), error

    def _check_processes(self) -> None:
        """Check the output of the workers, and that nothing they started outlives them."""
        for log in sorted(self.logs.glob("worker-*.log")):
            if "Traceback" in (text := log.read_text(errors="replace")):
                self.violations.append(f"{log.name}: a traceback: {text[text.rindex('Traceback') :][-1500:]}")
        mark = f"{MARK}={self.mark}".encode()

        def find_left() -> list[str]:
            return [
                pid for pid in filter(str.isdigit, os.listdir("/proc")) if alive(int(pid)) and mark in read_environ(pid)
            ]

        if not wait_for(lambda: not find_left(), 30.0):
            self.violations.append(f"processes outlive their workers: {find_left()}")

    def _verify(self) -> tuple[list[Damage], str]:
        """Add the damaged files that `verify` reports to `reported`; return the other damage, and its error."""
        remaining = [damage for damage, _ in self.damages if damage.remains]
        if not remaining:
            return [], ""
        listed, error = self._list_damage()
        reported = {Path(each["path"]) for each in listed}
        named = " ".join(each["problem"] for each in listed)
        inodes = {path.stat().st_ino for path in reported if path.exists()}  # a lease has many names
        unreported = []
        for damage in remaining:
            in_folder = not reported.isdisjoint(damage.path.parents)  # source is reported as a folder
            if in_folder or damage.path.stat().st_ino in inodes or damage.path.name in named:
                self.reported.add(damage.path)
            else:
                unreported.append(damage)
        return unreported, error

    def _is_hidden(self, damage: Damage) -> bool:
        """Whether other damage hides it.

        The hashes of the tasks and of the source are in run.json, the place of token ids in their line.
        """
        if damage.path.name == "tasks.jsonl" or self.run / "source" in damage.path.parents:
            return self.run / "run.json" in self.reported
        stem = damage.path.name.removesuffix(".tokens")
        lines = [damage.path.with_name(f"{stem}{end}") for end in (".jsonl", ".failures.jsonl")]
        return damage.path.suffix == ".tokens" and not self.reported.isdisjoint(lines)

    def _is_harmless(self, damage: Damage) -> bool:
        """Whether no result depends on it: the order of tasks, token ids whose line was never written, and the name of
        the field `crc`, without which a file is one of an earlier version."""
        if damage.path.parent.name == "journals":
            return damage.path.suffix == ".tokens" and not is_referenced(damage)
        return damage.path.name.startswith("lengths-") or (damage.old in b"crc" and is_last_name(damage))

    def _is_complete(self) -> bool:
        """Whether nothing is pending; `report` also reads the journals, and refuses those that changed under a seal."""
        code, out, _ = self.command("status", self.run, "--json")
        if code != 0:
            return False
        status = json.loads(out)
        if status["pending"] or status["failed"].keys() - {"verifier_error"}:
            return False
        _, out, error = self.command("report", self.run, "--json")
        self._follow(error)
        return bool(out)

    def _resume(self) -> None:
        self.resumes += 1
        words = ("-c", 8, "--workers", 1, "--retry", "all", "--call-timeout", 60)  # no call hangs any more
        _, _, error = self.command("resume", self.run, *words)
        self._follow(error)

    def _follow(self, error: str) -> None:
        """Remove the seals that an error names, as it says."""
        if found := re.search(r"`rm (\S+)`", error):
            subprocess.run(["bash", "-c", f"rm {found[1]}"], check=True, timeout=30)
        elif found := re.search(r"(\S+/done/\S+\.json): ", error):
            Path(found[1]).unlink(missing_ok=True)
        else:
            return
        self.sealed.clear()  # what the removed seals fixed may change

    def _check(self) -> None:
        tasks = {
            f"{env}/{name}-{i}": {
                "env": env,
                "a": i,
                "b": 7 * i,
                "broken": i % BROKEN_EVERY == BROKEN_EVERY - 1,
                "extracts": extracts,
            }
            for env, name, extracts in (("Sums", "sum", False), ("Programs", "program", True))
            for i in range(TASKS)
        }
        expected: dict[str, Any] = {"tasks": tasks, "samples": SAMPLES, "seed": 0, "sealed": self.sealed}
        damaged = [damage.path.name for damage, _ in self.damages if damage.remains]
        lines = [name.replace(".tokens", end) for name in damaged for end in (".jsonl", ".failures.jsonl")]
        expected["damaged"] = [*damaged, *lines]  # a line is named for its damaged token ids
        expected["report"] = json.loads(self.command("report", self.run, "--json")[1])
        expected["verify"] = json.loads(self.command("verify", self.run, "--json")[1])
        (self.folder / "expected.json").write_text(json.dumps(expected))
        command = [sys.executable, str(HERE / "reader.py"), str(self.run), str(self.folder / "expected.json")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=FINISH_S * measure_slowdown())
        if done.stderr:
            raise RuntimeError(f"the reader itself failed: {done.stderr}")
        if done.returncode:
            self.violations += done.stdout.strip().splitlines()
        report = expected["report"]
        self.note(f"{report['scored']} scored, {report['failed']}, {report['dropped']} duplicates dropped")
        self.summary = (
            f"{report['scored']} scored, {sum(report['failed'].values())} failed, {report['dropped']} dropped"
        )

    def _close(self) -> None:
        self._undo(float("inf"))
        for worker in getattr(self, "workers", []):
            worker.kill()
        self.endpoint.kill()

    def keep(self) -> Path:
        """Copy everything to a place that outlives this process."""
        kept = ROOT / "build" / "chaos" / str(self.seed)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(self.run, kept / "run", dirs_exist_ok=True)
        for each in (self.logs, self.folder / "expected.json"):
            if each.exists():
                (shutil.copytree if each.is_dir() else shutil.copy)(each, kept / each.name)
        (kept / "violations.txt").write_text("\n".join(self.violations) + "\n")
        return kept

    def remove(self) -> None:
        """Unmount and delete the folder."""
        for path in (self.folder / "again", self.disk):
            if path and path.is_mount():
                subprocess.run(["umount", "-l", str(path)], check=True, timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)


def is_torn_end(damage: Damage) -> bool:
    """Whether damage is in, or makes, the unterminated end of a journal: that is torn, and no damage."""
    if damage.path.parent.name != "journals":
        return False
    if damage.path.suffix == ".tokens":
        return False
    return damage.at + len(damage.new) > damage.path.read_bytes().rfind(b"\n") + 1 or not damage.new


def is_last_name(damage: Damage) -> bool:
    """Whether damage is in the name of the last field of a file, which is its checksum."""
    data = damage.path.read_bytes()
    names = re.search(rb',\s*"(...)":\s*"[0-9a-f]{8}"\s*}\s*\Z', data, re.DOTALL)
    return names is not None and names.start(1) <= damage.at < names.end(1)


def is_referenced(damage: Damage) -> bool:
    """Whether a line of the same segment refers to the damaged byte of a token sidecar."""
    stem = damage.path.name.removesuffix(".tokens")
    lines = [line for path in damage.path.parent.glob(f"{stem}.*jsonl") for line in path.read_bytes().split(b"\n")]
    refs = [re.findall(rb'"tokens":\{"at":(\d+),"size":(\d+)\}', line) for line in lines]
    return any(int(at) <= damage.at < int(at) + int(size) for found in refs for at, size in found)


def read_environ(pid: str) -> bytes:
    """Return the environment of a process; empty if it is not ours to read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def mount(*words: object) -> bool:
    """Mount something at the last word, a new folder; return whether that worked."""
    Path(str(words[-1])).mkdir()
    return subprocess.run(["mount", *map(str, words)], timeout=30).returncode == 0


@cache
def can_mount() -> bool:
    """Whether this process may mount: root in a container, for example, may not."""
    if os.geteuid() or not shutil.which(UNSHARE[0]):
        return False
    return subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=30).returncode == 0


def mount_disk(at: Path) -> Path | None:
    """Mount a small file system; None without the right to."""
    return at if can_mount() and mount("-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", at) else None


def skip(what: str, why: str) -> None:
    print(f"chaos: SKIPPED: {what}: {why}", file=sys.stderr, flush=True)


def announce(parent: Path | None, shim: Path | None) -> None:
    """Say loudly which faults this machine does not allow."""
    if parent or not can_mount():
        skip(
            "full disk, two mounts of one folder",
            "a folder was given" if parent else "only root may mount, with unshare",
        )
    if shim is None:
        skip("failing system calls, clocks", "there is no C compiler (cc) for the preloaded shim")
    clients = {"nfs", "nfs4", "cifs", "ceph", "lustre", "9p"} & set(Path("/proc/filesystems").read_text().split())
    if parent is None:
        skip("network file system", f"mount one ({', '.join(sorted(clients))}) and name a folder of it: FOLDER=..."
             if clients else "the kernel has no client for any")  # fmt: skip


def main() -> int:
    """Play schedules until the time is over; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="the first schedule; a fresh one if none is given")
    parser.add_argument("--minutes", type=float, default=5.0, help="start schedules for so long, one at least")
    parser.add_argument("--folder", type=Path, help="where to put run directories, such as a network file system")
    options = parser.parse_args()
    if options.folder and not options.folder.is_dir():
        parser.error(f"--folder {options.folder}: there is no such folder; make it, or mount a file system there")
    os.environ["PYTHONPATH"] = f"{HERE.parent}{os.pathsep}{ROOT / 'src'}"
    if can_mount() and not os.environ.get(OWN_MOUNTS):  # so that no mount outlives this process
        os.environ[OWN_MOUNTS] = "1"
        os.execvp(UNSHARE[0], [*UNSHARE, sys.executable, "-m", "chaos.run", *sys.argv[1:]])
    first = secrets.randbelow(10**6) if options.seed is None else options.seed
    print(f"chaos: seed {first}", flush=True)
    with tempfile.TemporaryDirectory(prefix="chaos-shim-") as built:
        shim = build_shim(Path(built))
        announce(options.folder, shim)
        return play_all(first, options.minutes, options.folder, shim)


def play_all(first: int, minutes: float, parent: Path | None, shim: Path | None) -> int:
    """Play the schedules `first`, `first` + 1, ... for some minutes, print the results, return the exit status."""
    until, total, violated, seed = time.monotonic() + 60 * minutes, Counter[str](), list[int](), first
    while seed == first or time.monotonic() < until:
        chaos = Chaos(seed, parent, shim)
        try:
            violations = chaos.play()
            total += chaos.counts
            total["live counts of the status compared"] += chaos.compared
            restarts = sum(worker.starts for worker in chaos.workers) - WORKERS
            total["system calls failed"] += sum(worker.control.failed for worker in chaos.workers if worker.control)
            state = f"VIOLATED, kept in {chaos.keep()}" if violations else chaos.summary
            faults = chaos.counts.total() - chaos.counts["without a target"]
            print(f"chaos: schedule {seed}: {faults} faults, {restarts} restarts, {chaos.resumes} resumes: {state}")
            print("".join(f"    {each}\n" for each in violations[:20]), end="", flush=True)
            violated += [seed] if violations else []
        except Exception:
            traceback.print_exc()
            print(f"chaos: schedule {seed}: THE CHECK ITSELF FAILED, no guarantee was judged; kept in {chaos.keep()}")
            return CHECK_FAILED
        finally:
            chaos.remove()
        seed += 1
    print(
        f"chaos: {seed - first} schedules, {len(violated)} with violations; "
        + ", ".join(f"{n} {k}" for k, n in sorted(total.items()))
    )
    if violated:
        print(f"chaos: A GUARANTEE WAS VIOLATED: `make chaos SEED={violated[0]} MINUTES=0` plays the schedule again")
    return VIOLATED if violated else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
