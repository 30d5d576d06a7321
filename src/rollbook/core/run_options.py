"""The parameters of a run, each defined once: its type, default, range, help text and name on the command line.

The command line is generated from these structs (`rollbook.cli.options`). `run`, `Collector` and `submit` take the same
names with the same defaults. Sampling, Limits, Settings and ServerSpec are stored in run directories; their class
names, docstrings and descriptions are part of the JSON Schemas in core/schemas.

Annotations are evaluated here, not kept as text: evaluating the text takes 7 ms at every start of a command.
"""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from rollbook.core.json import JSON
from rollbook.core.roles import RoleSettings
from rollbook.errors import UsageError

ToolFormat: TypeAlias = Literal["native", "schema", "text"]
"""How tools are offered and called: by fields of the server, as JSON text constrained by a schema, or as free text."""
ServerKind = Literal["vllm", "sglang", "command"]
Routing: TypeAlias = Literal["affinity", "least-loaded"]
"""Which replica a rollout goes to: the one that has its task's prompt in its cache, or the least loaded one."""

RESERVED_SAMPLING_KEYS = frozenset(("seed", "n", "model", "messages"))
"""Fields of a request that are not sampling parameters: the run sets them. Only the seed may be omitted."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """What a field says besides its type, default and description.

    `flags` are its names on the command line, by default `--field-name`. `shown_default` is what help shows in brackets
    where the default alone does not say it. `goes_with` names the option, or the kind of model server, that it needs.
    `group` is the section of the help page it is listed in, by default that of its struct.

    The range is not msgspec's: a stored value out of range must stay readable.
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    shown_default: str = ""
    goes_with: str = ""
    group: str = ""
    on_command_line: bool = True


def parameter(description: str, *flags: str, **details: Any) -> msgspec.Meta:
    """Make the annotation of a field; `description` is its help text, `details` are fields of Parameter."""
    return msgspec.Meta(description=description, extra={"parameter": Parameter(flags=flags, **details)})


class RunParameter(msgspec.Struct, frozen=True):
    """A field of one of these structs, with its description."""

    name: str
    kinds: tuple[object, ...]
    """The types it may have, None left out."""
    default: JSON
    description: str
    details: Parameter

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line."""
        return self.details.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def flag(self) -> str:
        """Its long name on the command line."""
        return self.flags[-1].partition("/")[0]

    @property
    def key(self) -> str:
        """Its long name without dashes in front: its name in a file of options."""
        return self.flag.removeprefix("--")


GROUPS = {
    "tasks": "Tasks",
    "model": "Model",
    "sampling": "Sampling",
    "limits": "Limits",
    "judge": "Judge",
    "roles": "Roles",
    "workers": "Workers",
    "cluster": "Cluster",
    "servers": "Model servers",
    "output": "Output",
    "config": "Configuration file",
}
"""The sections of a help page in their order, and their titles."""
_GROUP_OF_STRUCT = {
    "RunOptions": "tasks",
    "StartOptions": "model",
    "Settings": "workers",
    "Sampling": "sampling",
    "Limits": "limits",
    "ClusterOptions": "cluster",
    "ServerSpec": "servers",
}


@cache
def list_parameters(struct: type[msgspec.Struct]) -> dict[str, RunParameter]:
    """Return the fields of a struct that are annotated with `parameter`, by name."""
    found = {}
    for field in msgspec.structs.fields(struct):
        if get_origin(field.type) is not Annotated:
            continue
        kind, meta = get_args(field.type)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        kinds = tuple(each for each in _split_union(kind) if each is not type(None))
        details = meta.extra["parameter"]
        if not details.group:
            details = msgspec.structs.replace(details, group=_GROUP_OF_STRUCT[struct.__name__])
        found[field.name] = RunParameter(field.name, kinds, default, meta.description, details)
    return found


def list_all_parameters() -> dict[str, RunParameter]:
    """Return the fields of all structs of this module that are options of the command line, by their keys."""
    structs = [each for each in globals().values() if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    fields = [field for struct in structs for field in list_parameters(struct).values()]
    return {field.key: field for field in fields if field.details.on_command_line}


def _split_union(kind: object) -> tuple[object, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


class Sampling(msgspec.Struct, frozen=True):
    """How the model is sampled; always sent in full, so that no server default can decide.

    A parameter that is null in `extra` is omitted from every call, whatever it is: then the server decides.
    """

    temperature: Annotated[float, parameter("The sampling temperature.", metavar="T", minimum=0.0)] = 1.0
    top_p: Annotated[
        float,
        parameter(
            "Sample from the most likely tokens of this total probability.", metavar="P", minimum=0.0, maximum=1.0
        ),
    ] = 1.0
    max_tokens: Annotated[int, parameter("Maximum tokens of one answer.", metavar="N", minimum=1)] = 1024
    extra: Annotated[
        dict[str, JSON],
        parameter(
            "Send another parameter to the endpoint, or omit one with NAME=null; may be repeated.",
            "--sampling",
            metavar="KEY=VALUE",
        ),
    ] = {}

    def omits(self, name: str) -> bool:
        """Return whether a parameter is never sent."""
        return name in self.extra and self.extra[name] is None

    def override(self, values: Mapping[str, JSON]) -> "Sampling":
        """Return the sampling with other values for one call; what the run omits stays omitted.

        >>> Sampling(extra={"seed": None}).override({"temperature": 0.5, "seed": 7, "top_k": 3})
        Sampling(temperature=0.5, top_p=1.0, max_tokens=1024, extra={'seed': None, 'top_k': 3})
        """
        given = {name: value for name, value in values.items() if not self.omits(name)}
        own = {name: given.pop(name) for name in SAMPLING_FIELDS if name in given}
        return msgspec.structs.replace(self, **own, extra={**self.extra, **given})


SAMPLING_FIELDS = ("temperature", "top_p", "max_tokens")
"""The parameters that are fields of Sampling."""


def check_extra_sampling(values: Mapping[str, JSON], option: str = "--sampling") -> None:
    """Refuse extra parameters that Rollbook sets itself; null omits one, where it can be omitted."""
    for key, value in values.items():
        if key in (*SAMPLING_FIELDS, "seed") and value is None:
            continue  # omitted
        if key == "max_completion_tokens":
            way = "give --max-tokens; Rollbook detects the name that the endpoint takes"
            raise UsageError(f"{option} {key}={value}: {way}")
        if key in (*SAMPLING_FIELDS, *RESERVED_SAMPLING_KEYS):
            why = f"{key} is not an extra parameter; it has an option of its own or is fixed"
            raise UsageError(f"{option} {key}={value}: {why}")


def check_sampling_values(values: Mapping[str, JSON], where: str) -> None:
    """Refuse values of the fields of Sampling that are not numbers of their range; null omits one.

    >>> check_sampling_values({"temperature": 0.5, "top_k": "any"}, "--role user.sampling.")
    """
    for name, field in list_parameters(Sampling).items():
        value = values.get(name)
        if name not in SAMPLING_FIELDS or value is None:
            continue
        least, most = field.details.minimum or 0, field.details.maximum
        is_number = type(value) is int or (type(value) is float and field.kinds == (float,))
        if not is_number or not least <= value <= (math.inf if most is None else most) or not math.isfinite(value):
            kind = "a whole number" if field.kinds == (int,) else "a number"
            span = f"from {least:g} on" if most is None else f"from {least:g} to {most:g}"
            raise UsageError(f"{where}{name}={value}: give {kind} {span}")


class Limits(msgspec.Struct, frozen=True):
    """Every limit that can change a score."""

    verify_s: Annotated[
        float, parameter("Seconds for one verification.", "--verify-timeout", metavar="S", minimum=0.001)
    ] = 30.0
    tool_s: Annotated[
        float,
        parameter(
            "Seconds for one tool call or reply of the environment.", "--tool-timeout", metavar="S", minimum=0.001
        ),
    ] = 60.0
    rollout_s: Annotated[
        float, parameter("Seconds for one whole rollout.", "--timeout", metavar="S", minimum=0.001)
    ] = 3600.0
    memory_mb: Annotated[int, parameter("Megabytes of one environment process.", minimum=1, on_command_line=False)] = (
        2048
    )
    max_turns: Annotated[int, parameter("Maximum model calls of one rollout.", metavar="N", minimum=1)] = 32
    max_tokens_total: Annotated[
        int | None, parameter("Maximum tokens of all answers of one rollout together.", metavar="N", minimum=1)
    ] = None
    tool_chars: Annotated[
        int, parameter("Maximum characters of a tool's output that the model sees.", metavar="N", minimum=1)
    ] = 16_384
    stop_repeats: Annotated[
        int | None,
        parameter("End a rollout that repeats the same tool calls N times in a row.", metavar="N", minimum=2),
    ] = None
    max_response_tokens: Annotated[
        int | None,
        parameter(
            "Maximum tokens of one rollout after its first prompt, of any kind.", minimum=1, on_command_line=False
        ),
    ] = None


DEFAULT_CONCURRENCY = 64


class Settings(msgspec.Struct, frozen=True):
    """How one start is operated. Nothing here changes what a score means.

    `base_urls` become `urls` before a round is written. `headers` are names of headers with the variables that hold
    their values, which are stored nowhere. `wire_names` are the names under which the endpoint is sent a parameter,
    where it does not take the usual one: `max_completion_tokens` for `max_tokens`. The judge has its own of both.
    """

    urls: Annotated[
        list[str],
        parameter(
            "PROVIDER/NAME, the URL of an endpoint (repeat it for replicas), or scripted:FILE.",
            "-m",
            "--model",
            metavar="MODEL",
            shown_default="the embedded model",
            group="model",
        ),
    ] = []
    base_urls: Annotated[
        list[str],
        parameter(
            "The URL of the endpoint that serves the model of -m; repeat it for replicas.",
            "--base-url",
            metavar="URL",
            group="model",
        ),
    ] = []
    concurrency: Annotated[
        int | str,
        parameter(
            "How many rollouts run at the same time.",
            "-c",
            "--concurrency",
            metavar="N|auto",
            shown_default=f"{DEFAULT_CONCURRENCY}; 16 for the embedded model",
        ),
    ] = DEFAULT_CONCURRENCY
    workers: Annotated[int, parameter("How many worker processes to start.", metavar="N", minimum=1)] = 1
    connect_s: Annotated[
        float,
        parameter(
            "Seconds to connect to the endpoint.", "--connect-timeout", metavar="S", minimum=0.001, group="limits"
        ),
    ] = 10.0
    call_s: Annotated[
        float, parameter("Seconds for one model call.", "--call-timeout", metavar="S", minimum=0.001, group="limits")
    ] = 600.0
    outage_s: Annotated[
        float,
        parameter(
            "Seconds without an answer from any endpoint after which the run stops.",
            "--outage",
            metavar="S",
            minimum=0.0,
            group="limits",
        ),
    ] = 300.0
    api_key_env: Annotated[
        str, parameter("The environment variable that holds the key.", metavar="NAME", group="model")
    ] = "OPENAI_API_KEY"
    headers: Annotated[
        dict[str, str],
        parameter(
            "Send a header whose value is in an environment variable; may be repeated.",
            "--header",
            metavar="NAME=ENV_VAR",
            group="model",
        ),
    ] = {}
    order: Annotated[
        str,
        parameter(
            "Begin with the tasks whose rollouts were longest in an earlier run; later rounds of a run know their own.",
            metavar="profile:RUN",
        ),
    ] = ""
    routing: Annotated[
        Routing,
        parameter(
            "With several replicas: affinity sends the samples of a task to one, which computes the prompt once; "
            "least-loaded spreads them.",
            metavar="NAME",
            group="model",
        ),
    ] = "affinity"
    wire_names: dict[str, str] = {}
    attempts: dict[str, int] = {}
    retry: list[str] = msgspec.field(default_factory=lambda: ["infra"])
    fail_fast: Annotated[bool, parameter("Stop at the first failed rollout.", "--fail-fast/--no-fail-fast")] = False
    max_failures: Annotated[str | None, parameter("Stop after more failed rollouts than this.", metavar="N|P%")] = None
    price: Annotated[
        str | None,
        parameter(
            "The price of a million tokens, for the cost of the run; calls of roles have their own prices.",
            metavar="in=P,out=P[,cached=P]",
            group="limits",
        ),
    ] = None
    max_cost: Annotated[
        float | None,
        parameter("Stop when the run has cost more than this, by --price.", metavar="X", minimum=0.0, group="limits"),
    ] = None
    hosts: int | None = None
    offline: Annotated[
        bool, parameter("Download nothing, not even the embedded model.", "--offline/--no-offline", group="model")
    ] = False
    judge_urls: Annotated[
        list[str],
        parameter(
            "A model that judges answers which the rules reject, named as with -m.",
            "--judge",
            metavar="MODEL",
            group="judge",
        ),
    ] = []
    judge_key_env: Annotated[
        str, parameter("The environment variable that holds the judge's key.", metavar="NAME", group="judge")
    ] = "JUDGE_API_KEY"
    judge_sampling: Annotated[
        dict[str, JSON],
        parameter(
            "Send another parameter to the judge, or omit one with NAME=null; may be repeated.",
            metavar="KEY=VALUE",
            group="judge",
        ),
    ] = {}
    judge_headers: dict[str, str] = {}
    judge_wire_names: dict[str, str] = {}
    judge_s: Annotated[
        float,
        parameter(
            "Seconds for all judge calls of one rollout.",
            "--judge-timeout",
            metavar="S",
            minimum=0.001,
            group="judge",
        ),
    ] = 300.0
    roles: Annotated[
        dict[str, RoleSettings],
        parameter(
            "The model of a role that the environment asks, named as with -m, or one of its settings as "
            "NAME.KEY=VALUE; may be repeated. --judge MODEL is --role judge=MODEL.",
            "--role",
            metavar="NAME=MODEL",
            group="roles",
        ),
    ] = {}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is requested when a run is started, apart from its environment.

    On the command line the settings' `--model` and `--judge` stand for `model` and `judge`.
    """

    samples: Annotated[
        int, parameter("How many times each task is run.", "-k", "--samples", metavar="N", minimum=1)
    ] = 1
    limit: Annotated[int | None, parameter("Use only the first N tasks.", "-n", "--limit", metavar="N", minimum=1)] = (
        None
    )
    out: Annotated[
        str,
        parameter(
            "The run directory, which must be new.",
            "-o",
            "--out",
            metavar="DIR",
            shown_default="a new folder in runs/",
            group="output",
        ),
    ]
    model: list[str] = []
    model_name: Annotated[
        str,
        parameter(
            "The name of the model at the endpoint.", metavar="NAME", shown_default="its only model", group="model"
        ),
    ] = ""
    judge: list[str] = []
    judge_name: Annotated[
        str,
        parameter(
            "The name of the judge at its endpoint.", metavar="NAME", shown_default="its only model", group="judge"
        ),
    ] = ""
    settings: Settings = Settings()
    sampling: Sampling = Sampling()
    seed: Annotated[int, parameter("The base seed; every sample derives its own.", metavar="N", group="sampling")] = 0
    data: Annotated[
        str | None, parameter("Your own rows: a JSONL, CSV or Parquet file, or hf://org/name.", metavar="FILE")
    ] = None
    template: Annotated[
        str | None,
        parameter(
            "A text file with the prompt; {field} is replaced from the row.", "--prompt-template", metavar="FILE"
        ),
    ] = None
    allow_network: Annotated[
        bool, parameter("Let containers have the network that their tasks ask for.", "--allow-network")
    ] = False
    tasks: Annotated[list[str] | None, parameter("Run only this task; may be repeated.", "--task", metavar="ID")] = None
    sample: Annotated[
        int | None, parameter("Run only this sample of each task, counted from 0.", metavar="N", minimum=0)
    ] = None
    limits: Limits = Limits()
    agent: Annotated[
        str,
        parameter(
            "A program that runs every rollout in place of the built-in agent; for tasks in containers also oracle, "
            "which runs their solutions, or nop, which does nothing.",
            metavar="program:COMMAND|oracle|nop",
            shown_default="what the environment needs",
            group="model",
        ),
    ] = ""
    tool_format: Annotated[
        Literal["auto"] | ToolFormat,
        parameter(
            "How tools are called. native: the server parses calls; schema: as JSON text constrained by a schema; "
            "text: as free text; auto: schema for the embedded model, else native.",
            metavar="NAME",
            group="model",
        ),
    ] = "auto"
    continue_tokens: Annotated[
        bool,
        parameter("Send later turns as the exact token ids of the earlier ones, where vLLM can.", group="model"),
    ] = False


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a start begins, and who is told of it; not stored."""

    wait_s: Annotated[
        float,
        parameter("Seconds to wait for a model server that is still starting.", "--wait", metavar="S", minimum=0.0),
    ] = 0.0
    probe: Annotated[
        bool, parameter("Request one short completion before anything is written.", "--probe/--no-probe")
    ] = True
    log: Annotated[
        list[str],
        parameter(
            "Log the run to wandb, mlflow, tensorboard or an installed tracker; may be repeated.",
            metavar="NAME",
            group="output",
        ),
    ] = []


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model servers of a run. `shared` is how many jobs of their own they have; 0: each worker starts its own.

    `replicas` servers run on each node that serves, the node's GPUs split between them. Or one server runs on several
    `nodes` of a job: its first process is on the first of them, and the others join it there.
    """

    kind: Annotated[
        ServerKind,
        parameter("Start model servers in the jobs: vllm, sglang or command.", "--serve", metavar="KIND"),
    ]
    name: str
    model_path: Annotated[
        str, parameter("The weights that vllm or sglang serves.", metavar="PATH", goes_with="vllm or sglang")
    ] = ""
    tensor_parallel: Annotated[
        int, parameter("How many GPUs one copy of the model uses.", metavar="N", minimum=1, goes_with="vllm or sglang")
    ] = 1
    data_parallel: Annotated[
        int,
        parameter("How many copies of the model one server holds.", metavar="N", minimum=1, goes_with="vllm or sglang"),
    ] = 1
    replicas: Annotated[int, parameter("How many servers share the GPUs of a node.", metavar="N", minimum=1)] = 1
    nodes: Annotated[int, parameter("Run one server on N nodes.", "--nodes-per-server", metavar="N", minimum=1)] = 1
    shared: Annotated[
        int,
        parameter(
            "Start N jobs with servers for all workers, instead of one server for each worker.",
            "--shared-servers",
            metavar="N",
            minimum=1,
        ),
    ] = 0
    args: Annotated[
        list[str],
        parameter(
            "Add a word to the server's command; may be repeated.",
            "--server-arg",
            metavar="WORD",
            goes_with="vllm or sglang",
        ),
    ] = []
    command: Annotated[
        list[str],
        parameter(
            "The command of --serve command; {host}, {port} and {name} are replaced.",
            "--server-command",
            metavar="WORDS",
            goes_with="command",
        ),
    ] = []
    ready_s: Annotated[
        float,
        parameter("Seconds for a server to get ready.", "--ready-within", metavar="S", minimum=1),
    ] = 3600.0


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the workers of a run work, and what goes along; `serve` has the fields of ServerSpec that were given."""

    on: Annotated[str | None, parameter("Where the workers run: local, slurm or ray.", metavar="PLACE")] = None
    address: Annotated[
        str,
        parameter("The Ray cluster to join, with --on ray.", metavar="HOST:PORT", goes_with="--on ray"),
    ] = "auto"
    cluster: Annotated[Path | None, parameter("The profile of the cluster, a YAML file.", metavar="FILE")] = None
    after: Annotated[
        list[str], parameter("Start after this job or run has succeeded; may be repeated.", metavar="JOB|RUN")
    ] = []
    pack: Annotated[Path | None, parameter("Send a copy of this project folder with the jobs.", metavar="DIR")] = None
    install: Annotated[
        bool, parameter("Install Rollbook and the packed folder's requirements.txt in the jobs, once.")
    ] = False
    sandbox: Annotated[
        bool, parameter("Start a sandbox server next to each worker, outside of its image.", "--with-sandbox")
    ] = False
    sandbox_packages: Annotated[
        list[str],
        parameter("A package that sandboxed code may import; may be repeated.", "--sandbox-package", metavar="NAME"),
    ] = []
    gpus: Annotated[int | None, parameter("How many GPUs each job gets.", metavar="N", minimum=0)] = None
    serve: dict[str, JSON] | None = None
