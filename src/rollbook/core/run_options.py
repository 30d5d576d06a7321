"""The parameters of a run, each defined once: its type, default, range, help text and name on the command line.

The command line is generated from these structs (`rollbook.cli.options`). `run`, `Collector` and `submit` take the same
names with the same defaults. Sampling, Limits, Settings and ServerSpec are stored in run directories; their class
names, docstrings and descriptions are part of the JSON Schemas in core/schemas.

Annotations are evaluated here, not kept as text: evaluating the text takes 7 ms at every start of a command.
"""

from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from rollbook.core.json import JSON

ToolFormat: TypeAlias = Literal["native", "schema", "text"]
"""How tools are offered and called: by the server's own fields, as JSON text held to a schema, or as free text."""
ServerKind = Literal["vllm", "sglang", "command"]

RESERVED_SAMPLING_KEYS = frozenset(("seed", "n", "model", "messages"))
"""What an endpoint takes and nobody may give as sampling: the run decides it."""


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """What a field says besides its type, default and description.

    `flags` are its names on the command line, by default `--field-name`. `shown_default` is what help shows in brackets
    where the default alone does not say it. `goes_with` names the option, or the kind of model server, that it needs.

    The range is not msgspec's: a stored value out of range must stay readable.
    """

    flags: tuple[str, ...] = ()
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    shown_default: str = ""
    goes_with: str = ""
    on_command_line: bool = True


def parameter(description: str, *flags: str, **details: Any) -> msgspec.Meta:
    """Make the annotation of a field; `description` is its help text, `details` are fields of Parameter."""
    return msgspec.Meta(description=description, extra={"parameter": Parameter(flags=flags, **details)})


class RunParameter(msgspec.Struct, frozen=True):
    """A field of one of these structs, with all that is said of it."""

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
        found[field.name] = RunParameter(field.name, kinds, default, meta.description, meta.extra["parameter"])
    return found


def _split_union(kind: object) -> tuple[object, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


class Sampling(msgspec.Struct, frozen=True):
    """How the model is sampled; always sent in full, so that no server default can decide."""

    temperature: Annotated[float, parameter("Sampling temperature.", metavar="T", minimum=0.0)] = 1.0
    top_p: Annotated[float, parameter("Nucleus sampling.", metavar="P", minimum=0.0, maximum=1.0)] = 1.0
    max_tokens: Annotated[int, parameter("Tokens of one answer.", metavar="N", minimum=1)] = 1024
    extra: Annotated[
        dict[str, JSON],
        parameter("Anything else the endpoint takes; may be repeated.", "--sampling", metavar="KEY=VALUE"),
    ] = {}


class Limits(msgspec.Struct, frozen=True):
    """Every limit that can change a score."""

    verify_s: Annotated[float, parameter("One verification.", "--verify-timeout", metavar="S", minimum=0.001)] = 30.0
    tool_s: Annotated[
        float,
        parameter("One tool call, reply or other step of the state.", "--tool-timeout", metavar="S", minimum=0.001),
    ] = 60.0
    rollout_s: Annotated[float, parameter("One whole rollout.", "--timeout", metavar="S", minimum=0.001)] = 3600.0
    memory_mb: Annotated[int, parameter("One environment process.", minimum=1, on_command_line=False)] = 2048
    max_turns: Annotated[
        int, parameter("Model calls of one rollout with tools or replies.", metavar="N", minimum=1)
    ] = 32
    max_tokens_total: Annotated[
        int | None, parameter("Tokens of all answers of one rollout together.", metavar="N", minimum=1)
    ] = None
    tool_chars: Annotated[
        int, parameter("Characters of a tool's output that the model is shown.", metavar="N", minimum=1)
    ] = 16_384
    stop_repeats: Annotated[
        int | None, parameter("End a rollout at the same tool calls N times running.", metavar="N", minimum=2)
    ] = None
    max_response_tokens: Annotated[
        int | None,
        parameter("Tokens of one rollout after its first prompt, of any kind.", minimum=1, on_command_line=False),
    ] = None


DEFAULT_CONCURRENCY = 64


class Settings(msgspec.Struct, frozen=True):
    """How one start is operated. Nothing here changes what a score means."""

    urls: Annotated[
        list[str],
        parameter(
            "An OpenAI-compatible endpoint, or scripted:FILE; repeated: replicas.",
            "-m",
            "--model",
            metavar="URL",
            shown_default="new run: the embedded model",
        ),
    ] = []
    concurrency: Annotated[
        int | str,
        parameter(
            "Rollouts at once.",
            "-c",
            "--concurrency",
            metavar="INT|auto",
            shown_default=f"new run: {DEFAULT_CONCURRENCY}; 16 for the embedded model",
        ),
    ] = DEFAULT_CONCURRENCY
    workers: Annotated[int, parameter("Worker processes, here or there.", metavar="N", minimum=1)] = 1
    connect_s: Annotated[float, parameter("One connection.", "--connect-timeout", metavar="S", minimum=0.001)] = 10.0
    call_s: Annotated[float, parameter("One model call.", "--call-timeout", metavar="S", minimum=0.001)] = 600.0
    outage_s: Annotated[float, parameter("How long no endpoint may answer.", "--outage", metavar="S", minimum=0.0)] = (
        300.0
    )
    api_key_env: Annotated[str, parameter("The variable that holds the key.", metavar="NAME")] = "OPENAI_API_KEY"
    attempts: dict[str, int] = {}
    retry: list[str] = msgspec.field(default_factory=lambda: ["infra"])
    fail_fast: Annotated[bool, parameter("Stop at the first rollout that fails.", "--fail-fast/--no-fail-fast")] = False
    max_failures: Annotated[str | None, parameter("Stop when more rollouts than this have failed.", metavar="N|P%")] = (
        None
    )
    hosts: int | None = None
    offline: Annotated[bool, parameter("Download nothing; not even the embedded model.", "--offline/--no-offline")] = (
        False
    )
    judge_urls: Annotated[
        list[str],
        parameter("The endpoint that is asked where the rule says no; repeated: replicas.", "--judge", metavar="URL"),
    ] = []
    judge_key_env: Annotated[str, parameter("The variable with the judge's key.", metavar="NAME")] = "JUDGE_API_KEY"
    price: Annotated[
        str | None,
        parameter("What a million tokens cost; judge calls are not counted.", metavar="in=P,out=P[,cached=P]"),
    ] = None
    max_cost: Annotated[
        float | None, parameter("Stop when the run has cost more than this.", metavar="X", minimum=0.0)
    ] = None
    judge_s: Annotated[
        float, parameter("All questions about one rollout.", "--judge-timeout", metavar="S", minimum=0.001)
    ] = 300.0


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for when a run is started, apart from its environment.

    On the command line the settings' `--model` and `--judge` stand for `model` and `judge`.
    """

    samples: Annotated[int, parameter("Tries at each task.", "-k", "--samples", metavar="N", minimum=1)] = 1
    limit: Annotated[
        int | None, parameter("Only the first so many tasks.", "-n", "--limit", metavar="N", minimum=1)
    ] = None
    out: Annotated[
        str,
        parameter(
            "The run directory; must be new.", "-o", "--out", metavar="DIR", shown_default="default: under runs/"
        ),
    ]
    model: list[str] = []
    model_name: Annotated[
        str, parameter("What the endpoint calls it.", metavar="NAME", shown_default="default: its only model")
    ] = ""
    judge: list[str] = []
    judge_name: Annotated[
        str, parameter("What the judge is called there.", metavar="NAME", shown_default="default: its only model")
    ] = ""
    settings: Settings = Settings()
    sampling: Sampling = Sampling()
    seed: Annotated[int, parameter("Decides every sample's own seed.", metavar="N")] = 0
    data: Annotated[
        str | None, parameter("Rows of your own: JSONL, CSV, Parquet, or hf://org/name.", metavar="FILE")
    ] = None
    template: Annotated[
        str | None,
        parameter("Makes each row's prompt: {field} stands for its field.", "--prompt-template", metavar="FILE"),
    ] = None
    tasks: Annotated[list[str] | None, parameter("Only this task; may be repeated.", "--task", metavar="ID")] = None
    sample: Annotated[int | None, parameter("Only this sample of each task, from 0.", metavar="K", minimum=0)] = None
    limits: Limits = Limits()
    agent: Annotated[
        str,
        parameter(
            "An outside program that plays every rollout.",
            metavar="program:COMMAND",
            shown_default="default: what the environment needs",
        ),
    ] = ""
    tool_format: Annotated[
        Literal["auto"] | ToolFormat,
        parameter(
            "native: the server parses tool calls; schema: as JSON text held to a schema; text: as free text; "
            "auto: schema for the embedded model, else native.",
            metavar="NAME",
        ),
    ] = "auto"
    continue_tokens: Annotated[
        bool, parameter("Ask later turns with the very ids of the earlier ones, where vLLM can.")
    ] = False


class StartOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a start begins; not stored."""

    wait_s: Annotated[
        float,
        parameter("How long to wait for a model server that is still starting.", "--wait", metavar="S", minimum=0.0),
    ] = 0.0
    probe: Annotated[
        bool, parameter("Ask the model one short completion before anything is written.", "--probe/--no-probe")
    ] = True


class ServerSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model servers of a run. `shared` is how many jobs of their own they have; 0: each worker starts its own.

    `replicas` servers run on each node that serves, the node's GPUs split between them. Or one server runs on several
    `nodes` of a job: its first process is on the first of them, and the others join it there.
    """

    kind: Annotated[
        ServerKind,
        parameter("Serve the model in the jobs themselves: vllm, sglang or command.", "--serve", metavar="KIND"),
    ]
    name: str
    model_path: Annotated[
        str, parameter("The weights that vllm or sglang serves.", metavar="PATH", goes_with="vllm or sglang")
    ] = ""
    tensor_parallel: Annotated[
        int, parameter("GPUs that one copy of the model takes.", metavar="N", minimum=1, goes_with="vllm or sglang")
    ] = 1
    data_parallel: Annotated[
        int, parameter("Copies of the model within one server.", metavar="N", minimum=1, goes_with="vllm or sglang")
    ] = 1
    replicas: Annotated[int, parameter("Servers on each node; its GPUs are split.", metavar="N", minimum=1)] = 1
    nodes: Annotated[
        int, parameter("One server on N nodes, joined by its own means.", "--nodes-per-server", metavar="N", minimum=1)
    ] = 1
    shared: Annotated[
        int,
        parameter(
            "Jobs that serve all workers, instead of each worker its own.", "--shared-servers", metavar="N", minimum=1
        ),
    ] = 0
    args: Annotated[
        list[str],
        parameter(
            "One more word for the server's command; may be repeated.",
            "--server-arg",
            metavar="WORD",
            goes_with="vllm or sglang",
        ),
    ] = []
    command: Annotated[
        list[str],
        parameter(
            "What --serve command runs: {host}, {port}, {name} stand.",
            "--server-command",
            metavar="WORDS",
            goes_with="command",
        ),
    ] = []
    ready_s: Annotated[
        float,
        parameter("A server's time to get ready.", "--ready-within", metavar="S", minimum=1, shown_default="3600"),
    ] = 3600.0


class ClusterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the workers of a run work, and what goes along; `serve` has the fields of ServerSpec that were given."""

    on: Annotated[str | None, parameter("Where workers run: local, slurm or ray.", metavar="PLACE")] = None
    address: Annotated[
        str,
        parameter(
            "With --on ray: the cluster to join.", metavar="HOST:PORT", shown_default="auto", goes_with="--on ray"
        ),
    ] = "auto"
    cluster: Annotated[Path | None, parameter("The cluster's profile, a YAML file.", metavar="FILE")] = None
    after: Annotated[
        list[str], parameter("Start after this job or run ended well; may be repeated.", metavar="JOB|RUN")
    ] = []
    pack: Annotated[Path | None, parameter("A project folder that goes along, as it is now.", metavar="DIR")] = None
    install: Annotated[bool, parameter("Jobs install Rollbook, and the packed folder's requirements.txt, once.")] = (
        False
    )
    sandbox: Annotated[
        bool, parameter("A sandbox server beside each worker, outside of the worker's image.", "--with-sandbox")
    ] = False
    sandbox_packages: Annotated[
        list[str],
        parameter("With --with-sandbox: code may import it; may be repeated.", "--sandbox-package", metavar="NAME"),
    ] = []
    gpus: Annotated[int | None, parameter("GPUs of each job.", metavar="N", minimum=0)] = None
    serve: dict[str, JSON] | None = None
