"""What `submit`, `run` and `resume` are told about a cluster: options gathered into Orders, and those into an Order."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import msgspec
import typer

from rollbook.collect.request import Request
from rollbook.core.json import JSON
from rollbook.core.manifest import Settings
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.clusters.order import Order, Serve, ServerKind
    from rollbook.clusters.profile import Profile

OF_JOBS = ("on", "address", "cluster", "after", "pack", "install", "with_sandbox", "sandbox_package", "gpus")
"""What is said of jobs, whoever serves the model."""
PLACES = ("local", "slurm", "ray")

On: TypeAlias = Annotated[
    str | None,
    typer.Option("--on", metavar="PLACE", help="Where workers run: local, slurm or ray.", show_default=False),
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--address", metavar="HOST:PORT", help="With --on ray: the cluster to join. [auto]", show_default=False
    ),
]
Cluster: TypeAlias = Annotated[
    Path | None, typer.Option("--cluster", metavar="FILE", help="The cluster's profile, a YAML file.")
]
After: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--after", metavar="JOB|RUN", help="Start after this job or run ended well; may be repeated."),
]
PackFolder: TypeAlias = Annotated[
    Path | None, typer.Option("--pack", metavar="DIR", help="A project folder that goes along, as it is now.")
]
Install: TypeAlias = Annotated[
    bool,
    typer.Option("--install", help="Jobs install Rollbook, and the packed folder's requirements.txt, once."),
]
WithSandbox: TypeAlias = Annotated[
    bool,
    typer.Option("--with-sandbox", help="A sandbox server beside each worker, outside of the worker's image."),
]
SandboxPackage: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--sandbox-package", metavar="NAME", help="With --with-sandbox: code may import it; may be repeated."),
]
ServeKind: TypeAlias = Annotated[
    str | None,
    typer.Option("--serve", metavar="KIND", help="Serve the model in the jobs themselves: vllm, sglang or command."),
]
ModelPath: TypeAlias = Annotated[
    str | None, typer.Option("--model-path", metavar="PATH", help="The weights that vllm or sglang serves.")
]
ServerCommand: TypeAlias = Annotated[
    str | None,
    typer.Option("--server-command", metavar="WORDS", help="What --serve command runs: {host}, {port}, {name} stand."),
]
Gpus: TypeAlias = Annotated[int | None, typer.Option("--gpus", metavar="N", min=0, help="GPUs of each job.")]
TensorParallel: TypeAlias = Annotated[
    int | None, typer.Option("--tensor-parallel", metavar="N", min=1, help="GPUs that one copy of the model takes.")
]
DataParallel: TypeAlias = Annotated[
    int | None, typer.Option("--data-parallel", metavar="N", min=1, help="Copies of the model within one server.")
]
Replicas: TypeAlias = Annotated[
    int | None, typer.Option("--replicas", metavar="N", min=1, help="Servers on each node; its GPUs are split.")
]
NodesPerServer: TypeAlias = Annotated[
    int | None,
    typer.Option("--nodes-per-server", metavar="N", min=1, help="One server on N nodes, joined by its own means."),
]
SharedServers: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--shared-servers", metavar="N", min=1, help="Jobs that serve all workers, instead of each worker its own."
    ),
]
ServerArg: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--server-arg", metavar="WORD", help="One more word for the server's command; may be repeated."),
]
ReadyWithin: TypeAlias = Annotated[
    float | None, typer.Option("--ready-within", metavar="S", min=1, help="A server's time to get ready. [3600]")
]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The words of the command line, as they came."""

    on: str | None = None
    address: str | None = None
    cluster: Path | None = None
    after: list[str] | None = None
    pack: Path | None = None
    install: bool | None = None
    with_sandbox: bool | None = None
    sandbox_package: list[str] | None = None
    gpus: int | None = None
    serve: str | None = None
    model_path: str | None = None
    server_command: str | None = None
    tensor_parallel: int | None = None
    data_parallel: int | None = None
    replicas: int | None = None
    nodes_per_server: int | None = None
    shared_servers: int | None = None
    server_arg: list[str] | None = None
    ready_within: float | None = None

    def first_given(self, *but: str) -> str:
        """An option that was given; empty if none was."""
        given = (name for name in self.__struct_fields__ if name not in but and getattr(self, name) not in (None, []))
        return next((f"--{name.replace('_', '-')}" for name in given), "")


def orders_of(
    on: On = None,
    address: Address = None,
    cluster: Cluster = None,
    after: After = None,
    pack: PackFolder = None,
    install: Install = False,
    with_sandbox: WithSandbox = False,
    sandbox_package: SandboxPackage = None,
    gpus: Gpus = None,
    serve: ServeKind = None,
    model_path: ModelPath = None,
    server_command: ServerCommand = None,
    tensor_parallel: TensorParallel = None,
    data_parallel: DataParallel = None,
    replicas: Replicas = None,
    nodes_per_server: NodesPerServer = None,
    shared_servers: SharedServers = None,
    server_arg: ServerArg = None,
    ready_within: ReadyWithin = None,
) -> Orders:
    """The orders of a command line."""
    check_on(on, address)
    return Orders(
        on=on,
        address=address,
        cluster=cluster,
        after=after,
        pack=pack,
        install=install or None,
        with_sandbox=with_sandbox or None,
        sandbox_package=sandbox_package,
        gpus=gpus,
        serve=serve,
        model_path=model_path,
        server_command=server_command,
        tensor_parallel=tensor_parallel,
        data_parallel=data_parallel,
        replicas=replicas,
        nodes_per_server=nodes_per_server,
        shared_servers=shared_servers,
        server_arg=server_arg,
        ready_within=ready_within,
    )


def check_on(on: str | None, address: str | None = None) -> None:
    """Refuse a place that nobody knows, and an address of another one."""
    if on is not None and on not in PLACES:
        raise UsageError(f"--on {on}: workers run on one of {', '.join(PLACES)}")
    if address is not None and on != "ray":
        raise UsageError(f"--address {address}: goes with --on ray")


def elsewhere(run: Path, on: str | None, given: dict[str, JSON]) -> tuple[str, dict[str, JSON]]:
    """The cluster that a run goes on at, which is where it was submitted to; or nothing, and its settings here."""
    from rollbook.clusters.far import far_of
    from rollbook.clusters.order import on_ray
    from rollbook.clusters.resuming import was_submitted

    check_on(on)
    far = far_of(run)
    if far and on in ("local", "ray"):
        raise UsageError(f"--on {on}: {run} is worked on at {far.host}; what lies here is a copy")
    submitted = was_submitted(run)
    if on in ("slurm", "ray") or (on is None and submitted):
        return on or ("ray" if on_ray(run) else "slurm"), given
    # As many workers as were ordered of a cluster are no number for this machine.
    return "", {"workers": 1, **given} if submitted else given


def refuse_local(orders: Orders) -> None:
    """What is about a cluster says nothing of workers on this machine."""
    given = orders.first_given("on")
    if given:
        raise UsageError(f"{given}: goes with --on slurm or --on ray; workers on this machine know no cluster")


def profile_of(orders: Orders) -> Profile:
    """The profile, with what the command line says instead."""
    from rollbook.clusters.profile import Profile, checked, read_profile

    profile = read_profile(orders.cluster) if orders.cluster else Profile()
    changes: dict[str, object] = {"after": [*profile.after, *(orders.after or [])]}
    if orders.gpus is not None:
        changes["gpus"] = orders.gpus
    return checked(msgspec.structs.replace(profile, **changes), str(orders.cluster or "the command line"))


def order_of(orders: Orders, request: Request, typed: typer.Context) -> tuple[Request, Order]:
    """A request and the order that goes with it: what was not typed is as the profile says."""
    from rollbook.clusters.order import Order

    profile, serve = profile_of(orders), serve_of(orders, request)
    chosen: dict[str, object] = {}
    for name in ("samples", "seed"):
        wanted = getattr(profile, name)
        if wanted is not None and not was_typed(typed, name):
            chosen[name] = wanted
    workers = request.settings.workers if was_typed(typed, "workers") else profile.workers or 1
    settings = msgspec.structs.replace(request.settings, workers=workers)
    if serve and not was_typed(typed, "concurrency"):
        settings = msgspec.structs.replace(settings, concurrency=Settings().concurrency)
    asked = msgspec.structs.replace(request, settings=settings, **chosen)
    order = Order(
        profile=profile,
        workers=workers,
        serve=serve,
        ray=(orders.address or "auto") if orders.on == "ray" else "",
        sandbox=bool(orders.with_sandbox),
        sandbox_packages=orders.sandbox_package or [],
        install=bool(orders.install),
    )
    return asked, order


def was_typed(typed: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = typed.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def serve_of(orders: Orders, request: Request) -> Serve | None:
    """The servers that were ordered; None where the model is there already."""
    from rollbook.clusters.order import Serve

    kind = _kind(orders)
    if kind is None:
        return None
    if request.model:
        raise UsageError(f"-m {request.model[0]}: --serve {kind} serves the model itself; give one of them")
    name = request.model_name or orders.model_path
    if not name:
        raise UsageError("--serve command: say with --model-name what the server calls its model")
    return Serve(
        kind=kind,
        name=name,
        model_path=orders.model_path or "",
        tensor_parallel=orders.tensor_parallel or 1,
        data_parallel=orders.data_parallel or 1,
        replicas=orders.replicas or 1,
        nodes=orders.nodes_per_server or 1,
        shared=orders.shared_servers or 0,
        args=orders.server_arg or [],
        command=_words(orders.server_command, orders.nodes_per_server or 1) if orders.server_command else [],
        ready_s=orders.ready_within or 3600.0,
    )


def _kind(orders: Orders) -> ServerKind | None:
    from rollbook.clusters.order import ServerKind

    if orders.serve is None:
        stray = orders.first_given(*OF_JOBS)
        if stray:
            raise UsageError(f"{stray}: goes with --serve, which says what serves the model")
        return None
    for kind in get_args(ServerKind):
        if kind == orders.serve:
            _refuse_mixed(orders, kind)
            return kind  # type: ignore[no-any-return]
    raise UsageError(f"--serve {orders.serve}: known are {', '.join(get_args(ServerKind))}")


def _refuse_mixed(orders: Orders, kind: ServerKind) -> None:
    if kind == "command":
        fitting = ("serve", "server_command", "replicas", "nodes_per_server", "shared_servers", "ready_within")
        stray = orders.first_given(*OF_JOBS, *fitting)
        if stray:
            raise UsageError(f"{stray}: --serve command runs --server-command as it is; put it in there")
        if not orders.server_command:
            raise UsageError("--serve command: say what to run with --server-command")
        return
    if orders.server_command:
        raise UsageError(f"--server-command: --serve {kind} knows its command; add to it with --server-arg")
    if not orders.model_path:
        raise UsageError(f"--serve {kind}: say which weights with --model-path")


def _words(text: str, nodes: int) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--server-command {text}: {error}") from None
    if not any("{port}" in word for word in words):
        raise UsageError(f"--server-command {text}: {{port}} has to stand where the server takes its port")
    if nodes > 1 and not any("{rank}" in word for word in words):
        raise UsageError(f"--server-command {text}: on several nodes {{rank}} has to stand where it takes its number")
    return words
