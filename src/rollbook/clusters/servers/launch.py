"""What a model server is started with: the command line of its kind, the GPUs of each replica, a port.

A server is started with a port number: one that is free on this node, and locked against our other processes meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rollbook.clusters.scheduler import DEFAULT_SCHEDULER, Scheduler
from rollbook.core import ServerSpec, encode
from rollbook.errors import ChildFailed, UsageError
from rollbook.processes import module_argv

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
RESERVED_ARGS = {
    **dict.fromkeys(("--host", "--port", "--nnodes", "--node-rank", "--master-addr", "--dist-init-addr"), ""),
    **dict.fromkeys(("--served-model-name", "--model-name"), "--model-name"),
    **dict.fromkeys(("--model", "--model-path"), "--model-path"),
    **dict.fromkeys(("--tensor-parallel-size", "-tp", "--tp", "--tp-size"), "--tensor-parallel"),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--dp", "--dp-size"), "--data-parallel"),
}
"""Arguments that a server's command has already, and the option of ours that sets them."""


class HeadAddress(NamedTuple):
    """Where the processes of a server that spans several nodes find each other: at the first of them."""

    host: str = "127.0.0.1"
    port: int = 0


NO_HEAD = HeadAddress()


def make_server_argv(serve: ServerSpec, host: str, port: int, head: HeadAddress = NO_HEAD, rank: int = 0) -> list[str]:
    """Return the command that serves the model under its name at this address; `rank` counts the nodes of one server.

    >>> make_server_argv(ServerSpec(kind="command", name="m", command=["run", "{host}:{port}", "{name}"]), "::1", 80)
    ['run', '::1:80', 'm']
    """
    if serve.kind == "command":
        known = {"{host}": host, "{port}": str(port), "{name}": serve.name, "{rank}": str(rank)}
        known |= {"{nodes}": str(serve.nodes), "{head}": head.host, "{head_port}": str(head.port)}
        return [_fill_placeholders(word, known) for word in serve.command]
    return [
        *_single_node_argv(serve, host, port),
        *(_multi_node_args(serve, head, rank) if serve.nodes > 1 else []),
        *serve.args,
    ]


NODE_PLACEHOLDER = "{node}"


class RankCommands(msgspec.Struct):
    """What each rank runs, and what stands before that on every node: the start of a container's command."""

    before: list[str]
    ranks: list[list[str]]
    scheduler: str = DEFAULT_SCHEDULER


def make_ranks_argv(scheduler: Scheduler, head: str, before: Sequence[str], ranks: Sequence[list[str]]) -> list[str]:
    """Return the command that starts every rank on a node of its own, the first of them on the node `head`."""
    commands = RankCommands(scheduler.pin_to_node(before, NODE_PLACEHOLDER), list(ranks), scheduler.name)
    words = module_argv("rollbook.clusters.servers.rank", head, encode(commands).decode())
    return scheduler.make_step_argv(len(ranks), words)


def check_server_args(serve: ServerSpec) -> None:
    """Refuse arguments for a server that contradict ours, or that show a secret in the list of processes."""
    for word in serve.args:
        name = word.partition("=")[0].replace("_", "-")
        if name == "--api-key":
            way = "export VLLM_API_KEY, and name it under `secrets:` and with --api-key-env"
            raise UsageError(f"--server-arg=--api-key: a key in a command is seen by everyone on the node; {way}")
        if name in RESERVED_ARGS:
            way = f"set it with {RESERVED_ARGS[name]}" if RESERVED_ARGS[name] else "leave it out"
            raise UsageError(f"--server-arg={word}: the server's command has {name} already; {way}")


def _multi_node_args(serve: ServerSpec, head: HeadAddress, rank: int) -> list[str]:
    """Return how a server of each kind joins its processes: by its own means, without Ray."""
    spans = ["--nnodes", str(serve.nodes), "--node-rank", str(rank)]
    if serve.kind == "sglang":
        return [*spans, "--dist-init-addr", f"{head.host}:{head.port}"]
    words = ["--distributed-executor-backend", "mp", *spans]
    words += ["--master-addr", head.host, "--master-port", str(head.port)]
    return [*words, *(["--headless"] if rank else [])]


def _single_node_argv(serve: ServerSpec, host: str, port: int) -> list[str]:
    where = ["--served-model-name", serve.name, "--host", host, "--port", str(port)]
    if serve.kind == "vllm":
        return ["vllm", "serve", serve.model_path, *where, *_parallel_args(serve, "tensor-parallel", "data-parallel")]
    words = ["python3", "-m", "sglang.launch_server", "--model-path", serve.model_path, *where]
    return [*words, *_parallel_args(serve, "tp", "dp")]


def _parallel_args(serve: ServerSpec, tensor: str, data: str) -> list[str]:
    words = [f"--{tensor}-size", str(serve.tensor_parallel)]
    words += [f"--{data}-size", str(serve.data_parallel)] if serve.data_parallel > 1 else []
    return words


def _fill_placeholders(word: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(name, value)
    return word


def assign_devices(serve: ServerSpec, visible: str | None) -> list[str | None]:
    """Return the CUDA_VISIBLE_DEVICES of each replica; None where the node's environment names no GPUs.

    >>> assign_devices(ServerSpec(kind="vllm", name="m", tensor_parallel=2, replicas=2), "4,5,6,7")
    ['4,5', '6,7']
    """
    if not visible or serve.nodes > 1:  # with several nodes, each process gets those of its own node
        return [None] * serve.replicas
    devices = visible.split(",")
    needed = serve.tensor_parallel * serve.data_parallel if serve.kind != "command" else 1
    each = len(devices) // serve.replicas
    if each < needed:
        has = f"this node gives the job {len(devices)}"
        raise UsageError(f"{serve.replicas} replicas of {needed} GPUs each: {has}; ask for more with --gpus")
    return [",".join(devices[first : first + each]) for first in range(0, serve.replicas * each, each)]


LOWEST_PORT, HIGHEST_PORT = 20_000, 60_000
MAX_TRIES = 200


class LockedPort:
    """A port on which nothing listens, locked for this user on this node until `release`."""

    def __init__(self, host: str) -> None:
        folder = _lock_folder()
        for _ in range(MAX_TRIES):
            number = _pick_candidate()
            handle = _lock(folder / str(number))
            if handle is None:
                continue
            if _is_free(host, number):
                self.number, self._handle = number, handle
                return
            os.close(handle)
        raise ChildFailed(f"no free port on {host} in {MAX_TRIES} tries")

    def release(self) -> None:
        """Unlock the port."""
        os.close(self._handle)


def _lock_folder() -> Path:
    """Return the folder in which this user's processes on this node lock their ports."""
    folder = Path(tempfile.gettempdir()) / f"rollbook-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise ChildFailed(f"{folder} belongs to another user: remove it, or set TMPDIR")
    except OSError as error:
        raise ChildFailed(f"{folder}: {error.strerror}") from None
    return folder


def _pick_candidate() -> int:
    """Pick a port outside the range from which the kernel assigns ports."""
    low, high = _read_ephemeral_range()
    below, above = max(0, min(low, HIGHEST_PORT) - LOWEST_PORT), max(0, HIGHEST_PORT - max(high + 1, LOWEST_PORT))
    pick = random.randrange(below + above) if below + above else random.randrange(HIGHEST_PORT - LOWEST_PORT)
    return LOWEST_PORT + pick if pick < below or not above else max(high + 1, LOWEST_PORT) + pick - below


def _read_ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return 32_768, 60_999
    return int(low), int(high)


def _lock(path: Path) -> int | None:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _is_free(host: str, number: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, number))
        except OSError:
            return False
    return True
