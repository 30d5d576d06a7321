"""A private Slurm on one host: munged, slurmctld and four slurmd as children of the test, everything in one folder.

Nothing of it is a service: no systemd, no file outside the folder, ports that were free, and all of it ended by pid.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollbook.processes import die_with_parent

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
NODES = ("gpu1", "gpu2", "cpu1", "cpu2")
GPUS = 8
START_S = 60.0
SETTLED_S = 4.0

CONF = """\
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ctld}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
KillWait=3
MinJobAge=600
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=60
MessageTimeout=20
JobRequeue=1
MaxArraySize={max_array}
MaxJobCount=5000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
GresTypes=gpu
{nodes}
PartitionName=batch Nodes=gpu[1-2] Default=YES MaxTime=1-0 DefaultTime=60 State=UP PriorityTier=10 GraceTime=20
PartitionName=cpu Nodes=cpu[1-2] MaxTime=1-0 DefaultTime=60 State=UP PriorityTier=10 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=1-0 DefaultTime=60 State=UP PriorityTier=100 PreemptMode=OFF
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr={address} Port={port} CPUs={cpus} RealMemory=8000{gres} State=UNKNOWN"
)


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "a private Slurm of several nodes has to be started by root"


class Cluster:
    """Four virtual nodes: gpu1 and gpu2 (partition batch), cpu1 and cpu2 (cpu); the partition urgent preempts both."""

    def __init__(self, max_array: int = 1001, cpus: int = 8) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rollbook-slurm-"))
        self.folder.chmod(0o755)
        self.conf = self.folder / "slurm.conf"
        self.environ = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._put_back: dict[str, float] = {}
        self._cpus = cpus
        self._write(max_array)

    def _write(self, max_array: int) -> None:
        host, folder = socket.gethostname().split(".")[0], self.folder
        for name in ("munge", "state", "dev", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir(mode=0o755)
        key = folder / "munge" / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(1024))
        for number in range(GPUS):  # Slurm counts GPUs by their character devices; these are like /dev/null
            os.mknod(folder / "dev" / f"gpu{number}", 0o20666, os.makedev(1, 3))
        ports = free_ports(1 + len(NODES))
        lines = []
        for number, name in enumerate(NODES):
            gres = f" Gres=gpu:{GPUS}" if name.startswith("gpu") else ""
            address = f"127.0.0.{11 + number}"
            node = NODE.format(name=name, host=host, address=address, port=ports[number], cpus=self._cpus, gres=gres)
            lines.append(node)
        text = CONF.format(host=host, folder=folder, ctld=ports[-1], max_array=max_array, nodes="\n".join(lines))
        self.conf.write_text(text)
        devices = f"{folder}/dev/gpu[0-{GPUS - 1}]"
        (folder / "gres.conf").write_text(f"NodeName=gpu[1-2] Name=gpu File={devices}\n")

    def start(self) -> Cluster:
        """Until all four nodes are idle."""
        munge = self.folder / "munge"
        words = [f"--{name}={munge / file}" for name, file in MUNGE.items()]
        self._daemon("munged", "munged", "--foreground", "--force", *words)
        self._until(lambda: (munge / "socket").exists(), "munged")
        self._daemon("slurmctld", "slurmctld", "-D", "-c")
        self._until(lambda: "is UP" in self.ask("scontrol", "ping", check=False), "slurmctld")
        for node in NODES:
            self.start_node(node)
        self._until(lambda: set(self.states().values()) == {"idle"}, "four idle nodes")
        return self

    def start_node(self, node: str) -> None:
        """Start the daemon of one node."""
        self._daemon(node, "slurmd", "-D", "-N", node)

    def _daemon(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as log:
            self._daemons[name] = subprocess.Popen(
                words,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > end:
                logs = {path.name: path.read_text()[-2000:] for path in self.folder.glob("*.log")}
                self.stop()
                raise RuntimeError(f"no {what} within {START_S:g} s: {logs}")
            time.sleep(0.1)

    def ask(self, *words: str, check: bool = True) -> str:
        """What a Slurm command says."""
        done = subprocess.run(words, env=self.environ, capture_output=True, text=True, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def states(self) -> dict[str, str]:
        """The state of every node."""
        lines = self.ask("sinfo", "-h", "-N", "-o", "%N %t", check=False).splitlines()
        return dict(line.split() for line in lines)

    def jobs(self, *ids: str) -> dict[str, str]:
        """The state of every job, of arrays every task; also of those that are over."""
        words = ["squeue", "-h", "-r", "-t", "all", "-o", "%i %T", *(["-j", ",".join(ids)] if ids else [])]
        return dict(line.split() for line in self.ask(*words, check=False).splitlines())

    def hasten(self) -> None:
        """A requeued job waits for two minutes: let all that wait start now.

        But not at once: a node tells later of the end of an attempt, and that would be taken for the next one's.
        """
        lines = self.ask("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i %r", check=False).splitlines()
        waiting = {job for job, _, reason in (line.partition(" ") for line in lines) if reason == "BeginTime"}
        self._put_back = {job: self._put_back.get(job, time.monotonic()) for job in waiting}
        for job, since in self._put_back.items():
            if time.monotonic() - since > SETTLED_S:
                self.ask("scontrol", "update", f"jobid={job}", "StartTime=now", check=False)

    def kill_node(self, node: str) -> None:
        """A node that dies with all that runs on it."""
        self._end_jobs(lambda environ: f"SLURMD_NODENAME={node}".encode() in environ)
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait(10)
        self.ask("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def revive_node(self, node: str) -> None:
        """It is there again."""
        if node not in self._daemons:
            self.start_node(node)
        self.ask("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        self._until(lambda: self.states().get(node) in ("idle", "mix", "alloc"), node)

    def clear(self) -> None:
        """Cancel all that is there, and wait until every node is free again."""
        self.ask("scancel", "--user=root", check=False)
        self.ask("scancel", "--user=nobody", check=False)
        for node in NODES:
            self.revive_node(node)
        self._until(lambda: set(self.states().values()) == {"idle"}, "four idle nodes")

    def stop(self) -> None:
        """End every daemon by its pid, and every process of a job that is left; then the folder goes."""
        self.ask("scancel", "--user=root", "--signal=KILL", "--full", check=False)
        for name in reversed(self._daemons):
            self._daemons[name].terminate()
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
        self._end_jobs(lambda _: True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_jobs(self, wanted: Callable[[bytes], bool]) -> None:
        for pid in self.processes(wanted):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self, wanted: Callable[[bytes], bool] = lambda _: True) -> list[int]:
        """What runs under this cluster's configuration, daemons of ours aside: jobs and their keepers."""
        mark = f"SLURM_CONF={self.conf}".encode()
        ours = {os.getpid(), *(daemon.pid for daemon in self._daemons.values())}
        found = []
        for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if pid not in ours and mark in environ and wanted(b"\0".join(environ)):
                    found.append(pid)
        return found


MUNGE = {
    "key-file": "key",
    "socket": "socket",
    "pid-file": "pid",
    "log-file": "munged.log",
    "seed-file": "seed",
}


def free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens on."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
