"""The command line of each kind of server, and the GPUs that each replica of it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rollbook.clusters.order import Serve
from rollbook.errors import UsageError

VISIBLE = "CUDA_VISIBLE_DEVICES"
OWN = {
    **dict.fromkeys(("--host", "--port", "--nnodes", "--node-rank", "--master-addr", "--dist-init-addr"), ""),
    **dict.fromkeys(("--served-model-name", "--model-name"), "--model-name"),
    **dict.fromkeys(("--model", "--model-path"), "--model-path"),
    **dict.fromkeys(("--tensor-parallel-size", "-tp", "--tp", "--tp-size"), "--tensor-parallel"),
    **dict.fromkeys(("--data-parallel-size", "-dp", "--dp", "--dp-size"), "--data-parallel"),
}
"""What a server's command says already, and the option of ours that says it."""


class Head(NamedTuple):
    """Where the processes of a server that spans several nodes find each other: at the first of them."""

    host: str = "127.0.0.1"
    port: int = 0


def server_argv(serve: Serve, host: str, port: int, head: Head = Head(), rank: int = 0) -> list[str]:  # noqa: B008
    """What to run, so that the model answers under its name at this address; `rank` counts the nodes of one server.

    >>> server_argv(Serve(kind="command", name="m", command=["serve", "--at={host}:{port}", "{name}"]), "::1", 80)
    ['serve', '--at=::1:80', 'm']
    """
    if serve.kind == "command":
        known = {"{host}": host, "{port}": str(port), "{name}": serve.name, "{rank}": str(rank)}
        known |= {"{nodes}": str(serve.nodes), "{head}": head.host, "{head_port}": str(head.port)}
        return [_filled(word, known) for word in serve.command]
    return [*_alone(serve, host, port), *(_joined(serve, head, rank) if serve.nodes > 1 else []), *serve.args]


def check_args(serve: Serve) -> None:
    """Refuse words for a server that contradict ours, or show a secret to whoever lists processes."""
    for word in serve.args:
        name = word.partition("=")[0].replace("_", "-")
        if name == "--api-key":
            way = "export VLLM_API_KEY, and name it under `secrets:` and with --api-key-env"
            raise UsageError(f"--server-arg=--api-key: a key in a command is seen by everyone on the node; {way}")
        if name in OWN:
            way = f"say it with {OWN[name]}" if OWN[name] else "leave it out"
            raise UsageError(f"--server-arg={word}: the server's command has {name} already; {way}")


def _joined(serve: Serve, head: Head, rank: int) -> list[str]:
    """How each kind joins its processes: by its own means, without Ray."""
    spans = ["--nnodes", str(serve.nodes), "--node-rank", str(rank)]
    if serve.kind == "sglang":
        return [*spans, "--dist-init-addr", f"{head.host}:{head.port}"]
    words = ["--distributed-executor-backend", "mp", *spans]
    words += ["--master-addr", head.host, "--master-port", str(head.port)]
    return [*words, *(["--headless"] if rank else [])]


def _alone(serve: Serve, host: str, port: int) -> list[str]:
    where = ["--served-model-name", serve.name, "--host", host, "--port", str(port)]
    if serve.kind == "vllm":
        return ["vllm", "serve", serve.model_path, *where, *_parallel(serve, "tensor-parallel", "data-parallel")]
    words = ["python3", "-m", "sglang.launch_server", "--model-path", serve.model_path, *where]
    return [*words, *_parallel(serve, "tp", "dp")]


def _parallel(serve: Serve, tensor: str, data: str) -> list[str]:
    words = [f"--{tensor}-size", str(serve.tensor_parallel)]
    words += [f"--{data}-size", str(serve.data_parallel)] if serve.data_parallel > 1 else []
    return words


def _filled(word: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        word = word.replace(name, value)
    return word


def devices_of(serve: Serve, visible: str | None) -> list[str | None]:
    """The GPUs of each replica, as CUDA_VISIBLE_DEVICES has them; None where the node says nothing of GPUs.

    >>> devices_of(Serve(kind="vllm", name="m", tensor_parallel=2, replicas=2), "4,5,6,7")
    ['4,5', '6,7']
    """
    if not visible or serve.nodes > 1:  # where there are several nodes, Slurm tells each of its own
        return [None] * serve.replicas
    devices = visible.split(",")
    needed = serve.tensor_parallel * serve.data_parallel if serve.kind != "command" else 1
    each = len(devices) // serve.replicas
    if each < needed:
        has = f"this node gives the job {len(devices)}"
        raise UsageError(f"{serve.replicas} replicas of {needed} GPUs each: {has}; ask for more with --gpus")
    return [",".join(_share(devices, each, replica)) for replica in range(serve.replicas)]


def _share(devices: Sequence[str], each: int, replica: int) -> Sequence[str]:
    return devices[replica * each : (replica + 1) * each]
