"""The options of `submit`, `run` and `resume` about a cluster, and the order and profile that they make."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, get_args

import msgspec
import typer

from rollbook.core import JSON, Settings
from rollbook.engine import Request
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from rollbook.clusters import ClusterProfile, ServerKind, ServerSpec, SubmissionOrder


JOB_OPTIONS = ("on", "address", "cluster", "after", "pack", "install", "with_sandbox", "sandbox_package", "gpus")
"""What is said of jobs, whoever serves the model."""

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


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
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


def collect_cluster_options(
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
) -> ClusterOptions:
    """The orders of a command line."""
    check_place(on, address)
    return ClusterOptions(
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


def check_place(on: str | None, address: str | None = None) -> None:
    """Refuse a place that nobody knows, and an address of another one."""
    if on is not None and on not in (places := list_places()):
        raise UsageError(f"--on {on}: workers run on one of {', '.join(places)}")
    if address is not None and on != "ray":
        raise UsageError(f"--address {address}: goes with --on ray")


def list_places() -> list[str]:
    """Return everything that `--on` takes: this machine, the schedulers, Ray."""
    from rollbook.clusters import scheduler_names

    return ["local", *scheduler_names(), "ray"]


def is_scheduler(place: str | None) -> bool:
    """Return whether a place that `--on` takes is a batch system."""
    return place not in (None, "local", "ray")


def choose_cluster(run: Path, on: str | None, settings: dict[str, JSON]) -> tuple[str, dict[str, JSON]]:
    """The cluster that a run goes on at, which is where it was submitted to; or nothing, and its settings here."""
    from rollbook.clusters import find_last_place, read_ssh_run, was_submitted

    check_place(on)
    far = read_ssh_run(run)
    if far and on in ("local", "ray"):
        raise UsageError(f"--on {on}: {run} is worked on at {far.host}; what lies here is a copy")
    submitted = was_submitted(run)
    if on == "ray" or is_scheduler(on) or (on is None and submitted):
        return on or find_last_place(run), settings
    # As many workers as were ordered of a cluster are no number for this machine.
    return "", {"workers": 1, **settings} if submitted else settings


def refuse_cluster_options(options: ClusterOptions) -> None:
    """What is about a cluster says nothing of workers on this machine."""
    given = options.first_given("on")
    if given:
        raise UsageError(f"{given}: goes with --on slurm or --on ray; workers on this machine know no cluster")


def make_profile(options: ClusterOptions) -> ClusterProfile:
    """The profile, with what the command line says instead."""
    from rollbook.clusters import ClusterProfile, check_profile, read_profile

    scheduler = choose_scheduler(options.on)
    profile = read_profile(options.cluster, scheduler) if options.cluster else ClusterProfile()
    changes: dict[str, object] = {"after": [*profile.after, *(options.after or [])]}
    if options.gpus is not None:
        changes["gpus"] = options.gpus
    source = str(options.cluster or "the command line")
    return check_profile(msgspec.structs.replace(profile, **changes), source, scheduler)


def choose_scheduler(on: str | None) -> str:
    """Return the scheduler that `--on` names; the default where it names none."""
    from rollbook.clusters import DEFAULT_SCHEDULER

    return on if on is not None and is_scheduler(on) else DEFAULT_SCHEDULER


def make_order(options: ClusterOptions, request: Request, context: typer.Context) -> tuple[Request, SubmissionOrder]:
    """A request and the order that goes with it: what was not typed is as the profile says."""
    from rollbook.clusters import SubmissionOrder

    profile, serve = make_profile(options), make_server_spec(options, request)
    chosen: dict[str, object] = {}
    for name in ("samples", "seed"):
        wanted = getattr(profile, name)
        if wanted is not None and not was_typed(context, name):
            chosen[name] = wanted
    workers = request.settings.workers if was_typed(context, "workers") else profile.workers or 1
    settings = msgspec.structs.replace(request.settings, workers=workers)
    if serve and not was_typed(context, "concurrency"):
        settings = msgspec.structs.replace(settings, concurrency=Settings().concurrency)
    asked = msgspec.structs.replace(request, settings=settings, **chosen)
    order = SubmissionOrder(
        profile=profile,
        workers=workers,
        serve=serve,
        ray=(options.address or "auto") if options.on == "ray" else "",
        sandbox=bool(options.with_sandbox),
        sandbox_packages=options.sandbox_package or [],
        install=bool(options.install),
        scheduler=choose_scheduler(options.on),
    )
    return asked, order


def was_typed(context: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def make_server_spec(options: ClusterOptions, request: Request) -> ServerSpec | None:
    """The servers that were ordered; None where the model is there already."""
    from rollbook.clusters import ServerSpec

    kind = _read_server_kind(options)
    if kind is None:
        return None
    if request.model:
        raise UsageError(f"-m {request.model[0]}: --serve {kind} serves the model itself; give one of them")
    name = request.model_name or options.model_path
    if not name:
        raise UsageError("--serve command: say with --model-name what the server calls its model")
    return ServerSpec(
        kind=kind,
        name=name,
        model_path=options.model_path or "",
        tensor_parallel=options.tensor_parallel or 1,
        data_parallel=options.data_parallel or 1,
        replicas=options.replicas or 1,
        nodes=options.nodes_per_server or 1,
        shared=options.shared_servers or 0,
        args=options.server_arg or [],
        command=_split_command(options.server_command, options.nodes_per_server or 1) if options.server_command else [],
        ready_s=options.ready_within or 3600.0,
    )


def _read_server_kind(options: ClusterOptions) -> ServerKind | None:
    from rollbook.clusters import ServerKind

    if options.serve is None:
        stray = options.first_given(*JOB_OPTIONS)
        if stray:
            raise UsageError(f"{stray}: goes with --serve, which says what serves the model")
        return None
    for kind in get_args(ServerKind):
        if kind == options.serve:
            _refuse_mixed_options(options, kind)
            return kind  # type: ignore[no-any-return]
    raise UsageError(f"--serve {options.serve}: known are {', '.join(get_args(ServerKind))}")


def _refuse_mixed_options(options: ClusterOptions, kind: ServerKind) -> None:
    if kind == "command":
        fitting = ("serve", "server_command", "replicas", "nodes_per_server", "shared_servers", "ready_within")
        stray = options.first_given(*JOB_OPTIONS, *fitting)
        if stray:
            raise UsageError(f"{stray}: --serve command runs --server-command as it is; put it in there")
        if not options.server_command:
            raise UsageError("--serve command: say what to run with --server-command")
        return
    if options.server_command:
        raise UsageError(f"--server-command: --serve {kind} knows its command; add to it with --server-arg")
    if not options.model_path:
        raise UsageError(f"--serve {kind}: say which weights with --model-path")


def _split_command(text: str, nodes: int) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--server-command {text}: {error}") from None
    if not any("{port}" in word for word in words):
        raise UsageError(f"--server-command {text}: {{port}} has to stand where the server takes its port")
    if nodes > 1 and not any("{rank}" in word for word in words):
        raise UsageError(f"--server-command {text}: on several nodes {{rank}} has to stand where it takes its number")
    return words
