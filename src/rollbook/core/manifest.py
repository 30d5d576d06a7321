"""What a run means (run.json), how each start of it is operated (rounds/NNNN.json), its keys (plan.json), and the
records of its workers: leases, heartbeats, seals.

The plan is a list of parts, each a block of keys that is cut into chunks; workers claim chunks. A seal names exactly
which bytes of which files say that a chunk is finished for its round. The class names and
docstrings are part of the JSON Schemas in core/schemas.

A built-in environment is stored as `builtin:NAME` with its scoring version, so that its module can move and its text
can change without a run losing its environment. Runs made before that stored `module:Class` and the sha256 of the
module's file; those of the last such revision are read as scoring version 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import msgspec

from rollbook.core.journal_lines import SCHEMA_VERSION
from rollbook.core.json import JSON
from rollbook.core.run_options import Limits, Sampling, Settings, ToolFormat


class Terms(msgspec.Struct, frozen=True):
    """The settings of one environment of a blend; the only environment of a run has those of the run.

    `prefix` precedes the ids of its tasks in the book; the environment itself does not see it.
    """

    prefix: str
    samples: int
    sampling: Sampling
    limits: Limits
    tool_format: ToolFormat


class EnvironmentSpec(msgspec.Struct, frozen=True):
    """An environment as an import spec plus JSON arguments; never a pickle.

    `target` is module:Class, or builtin:NAME for an environment that is part of Rollbook. `snapshot` names the folder
    of the run directory that holds the user's own source, put first on the import path; None for installed packages.
    `digest` is the sha256 of the source it was loaded from. `tools` are the tool schemas that models are shown;
    `offers`: its tasks may have further tools; `replies`: it answers the model; `plays`: it runs whole rollouts itself;
    `appeals`: it asks a judge if the run has one. `terms` are its own settings in a blend; None: those of the run.
    `report_by` is the field of its tasks, as a dotted path, by which its numbers are reported. `container`: its
    rollouts have containers, which are used until the agent is done (state) or verified in too (verify).
    """

    spec: str
    target: str
    args: dict[str, JSON] = {}
    digest: str = ""
    snapshot: str | None = None
    origin: str = ""
    verify: str = "sync"
    state: str = "none"
    tools: list[JSON] = []
    offers: bool = False
    replies: bool = False
    plays: bool = False
    appeals: bool = False
    terms: Terms | None = None
    report_by: str = ""
    container: str = ""

    def __post_init__(self) -> None:
        target, digest = translate_target(self.target, self.digest)
        msgspec.structs.force_setattr(self, "target", target)
        msgspec.structs.force_setattr(self, "digest", digest)

    def is_same_source(self, other: EnvironmentSpec) -> bool:
        """Return whether both are the same source with the same arguments."""
        return (self.target, self.args, self.digest) == (other.target, other.args, other.digest)


class Rescored(msgspec.Struct, frozen=True):
    """How another run's rollouts were scored again: `only` is failed, scored or all.

    `kept` are the verifiers, by environment, of the rollouts that were not scored again.
    """

    only: str
    kept: dict[str, list[EnvironmentSpec]] = {}


class ModelSpec(msgspec.Struct, frozen=True):
    """The model; no URL and no secret. `kind` is chat, anthropic, embedded, scripted or remote (runs elsewhere)."""

    name: str
    kind: str = "chat"
    digest: str = ""


class RoleSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model of a role, such as a simulated user. `sampling` are the parameters that the run sets for its calls."""

    model: ModelSpec
    sampling: dict[str, JSON] = {}


class AgentSpec(msgspec.Struct, frozen=True):
    """An external program that runs the rollouts: its command, and a digest of the files that the command names.

    `inside`: it runs in the container of each rollout. `name` is that of a built-in one instead: oracle or nop.
    """

    command: list[str] = []
    digest: str = ""
    inside: bool = False
    name: str = ""


class Manifest(msgspec.Struct, frozen=True):
    """run.json: what produced the numbers."""

    schema: int
    run: str
    created: float
    environments: dict[str, EnvironmentSpec]
    model: ModelSpec
    sampling: Sampling
    samples: int
    seed: int
    limits: Limits
    versions: dict[str, str]
    tasks: Extent | None = None
    """The tasks as planned: this many bytes from the start of tasks.jsonl."""
    parent: str = ""
    """The run whose rollouts were scored again to make this one."""
    rescored: Rescored | None = None
    tool_format: ToolFormat = "native"
    judge: ModelSpec | None = None
    """The model that is asked when the verifier's rule rejects an answer."""
    agent: AgentSpec | None = None
    """The agent for all environments; None: the one that each of them needs."""
    continue_tokens: bool = False
    """Whether later turns are sent the ids of earlier ones, which can differ from the ids that a template gives."""
    roles: dict[str, RoleSpec] = {}
    """The models that environments ask by role, apart from the judge."""

    @property
    def mixed(self) -> bool:
        """Whether more than one verifier made the scores of this run."""
        kept = self.rescored.kept if self.rescored else {}
        return any(not by.is_same_source(self.environments[name]) for name, several in kept.items() for by in several)


class Round(msgspec.Struct, frozen=True):
    """rounds/NNNN.json: one start of a run."""

    schema: int
    number: int
    started: float
    settings: Settings
    meaning: str = ""
    """The sha256 of run.json when this round began: a later round refuses another meaning."""


MAX_CHUNK_KEYS = 256


class Part(msgspec.Struct, frozen=True):
    """A block of keys: tasks[0] <= row in tasks.jsonl < tasks[1], samples[0] <= sample < samples[1].

    `chunks` are the sizes of consecutive chunks over the block's keys, task by task.
    """

    tasks: tuple[int, int]
    samples: tuple[int, int]
    chunks: list[int]

    @property
    def keys(self) -> int:
        """How many keys the block holds."""
        return (self.tasks[1] - self.tasks[0]) * (self.samples[1] - self.samples[0])


class Plan(msgspec.Struct, frozen=True):
    """All blocks; `extend` appends one, nothing is ever changed."""

    schema: int
    parts: list[Part]

    @property
    def requested(self) -> int:
        """How many rollouts are requested in all."""
        return sum(part.keys for part in self.parts)

    @property
    def samples(self) -> int:
        """The highest number of samples of a task: `extend` may have added some."""
        return max((part.samples[1] for part in self.parts), default=0)

    def describe_damage(self) -> str:
        """Return what contradicts itself; empty if nothing does. A wrong number would lose rollouts, or add some.

        >>> Plan(2, [Part((0, 2), (0, 2), [2, 3])]).describe_damage()
        'part 1 has 4 rollouts, but its chunks have 5'
        """
        if problem := describe_unknown_schema(self.schema):
            return problem
        for number, part in enumerate(self.parts, 1):
            (first, end), (low, high) = part.tasks, part.samples
            if not (0 <= first <= end and 0 <= low <= high and all(size > 0 for size in part.chunks)):
                return f"part {number} has an impossible range"
            if sum(part.chunks) != part.keys:
                return f"part {number} has {part.keys} rollouts, but its chunks have {sum(part.chunks)}"
        repeated = find_repeated_part(self.parts)
        return f"part {repeated} requests a rollout that another part requests too" if repeated else ""


def describe_unknown_schema(schema: int) -> str:
    """Return why a file of this schema cannot be read; empty if it can."""
    return "" if 1 <= schema <= SCHEMA_VERSION else f"schema {schema}; this version reads 1 to {SCHEMA_VERSION}"


def find_repeated_part(parts: Sequence[Part]) -> int:
    """Return the number, from 1, of a part that has a key in common with another one; 0 if there is none.

    >>> find_repeated_part([Part((0, 4), (0, 2), [8]), Part((1, 2), (2, 3), [1]), Part((2, 9), (1, 3), [14])])
    3
    """
    if all(before.tasks[1] <= part.tasks[0] for before, part in pairwise(parts)):
        return 0  # the plan of a stream of new tasks has very many parts
    edges = [(edge, not at, part.samples, number) for number, part in enumerate(parts, 1) if part.keys
             for at, edge in enumerate(part.tasks)]  # fmt: skip
    present: list[tuple[int, int]] = []  # the samples of the parts that have the task at this edge: none overlap
    for _, begins, samples, number in sorted(edges):
        at = bisect_left(present, samples)
        if not begins:
            del present[at]
        elif any(low < samples[1] and samples[0] < high for low, high in present[max(0, at - 1) : at + 1]):
            return number
        else:
            present.insert(at, samples)
    return 0


class Chunk(msgspec.Struct, frozen=True):
    """A range of keys: the unit that a worker claims."""

    number: int
    part: Part
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many keys it holds."""
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield its keys as (row in tasks.jsonl, sample)."""
        width = self.part.samples[1] - self.part.samples[0]
        for position in range(self.start, self.stop):
            row, sample = divmod(position, width)
            yield self.part.tasks[0] + row, self.part.samples[0] + sample


class Chunks(Sequence[Chunk]):
    """The chunks of a plan by number, found in logarithmic time and stored as plain integers."""

    def __init__(self, plan: Plan) -> None:
        self._parts = plan.parts
        self._ends = [list(accumulate(part.chunks)) for part in plan.parts]
        self._first = [0, *accumulate(len(part.chunks) for part in plan.parts)]

    def __len__(self) -> int:
        return self._first[-1]

    def __getitem__(self, number: int) -> Chunk:  # type: ignore[override]
        if not 0 <= number < len(self):
            raise IndexError(number)
        at = bisect_right(self._first, number) - 1
        local = number - self._first[at]
        ends = self._ends[at]
        return Chunk(number, self._parts[at], ends[local - 1] if local else 0, ends[local])

    def interleave_parts(self) -> list[int]:
        """Return the numbers of all chunks in an order that advances every part at the same pace.

        >>> Chunks(Plan(1, [Part((0, 4), (0, 1), [2, 1, 1]), Part((4, 8), (0, 1), [2, 1, 1])])).interleave_parts()
        [0, 3, 1, 4, 2, 5]
        """
        done = [start / ends[-1] for ends in self._ends if ends for start in (0, *ends[:-1])]
        return sorted(range(len(done)), key=done.__getitem__)


def compute_chunk_sizes(keys: int, workers: int) -> list[int]:
    """Return chunk sizes, big ones first and singles last, so that the last worker to finish is not far behind.

    >>> compute_chunk_sizes(10, 1)
    [5, 2, 1, 1, 1]
    """
    sizes = []
    while keys:
        size = min(MAX_CHUNK_KEYS, max(1, keys // (2 * workers)))
        sizes.append(size)
        keys -= size
    return sizes


MIN_ORDERED_KEYS = 16
MAX_ORDERED_CHUNKS = 4096


def compute_ordered_sizes(tasks: int, samples: int, workers: int) -> list[int]:
    """Return the sizes of chunks that are claimed by the lengths of their tasks: of one task each, or of a few.

    A big chunk would hold short and long tasks alike. A tiny one costs as much as a big one.

    >>> compute_ordered_sizes(3, 20, 1), compute_ordered_sizes(20, 4, 1)
    ([20, 20, 20], [16, 16, 16, 16, 16])
    """
    keys = tasks * samples
    wanted = max(MIN_ORDERED_KEYS, samples, -(-keys // MAX_ORDERED_CHUNKS))
    size = min(MAX_CHUNK_KEYS, max(1, keys // (2 * workers)), samples * -(-wanted // samples))
    return [min(size, keys - start) for start in range(0, keys, size)]


def make_part(tasks: tuple[int, int], samples: tuple[int, int], workers: int, *, ordered: bool = False) -> Part:
    """Return a block of keys with its chunks sized for this many workers, `ordered` if lengths of tasks are known."""
    counts = tasks[1] - tasks[0], samples[1] - samples[0]
    if ordered:
        return Part(tasks, samples, compute_ordered_sizes(*counts, workers))
    return Part(tasks, samples, compute_chunk_sizes(counts[0] * counts[1], workers))


class Lease(msgspec.Struct, frozen=True):
    """A claim's content: the same for every claim of a worker, so that they can share one file."""

    worker: str
    round: int


class Held(msgspec.Struct):
    """What a worker has recorded so far in a chunk that it owns."""

    scored: int = 0
    failed: dict[str, int] = {}


class Presence(msgspec.Struct):
    """A worker's own record. The counter increases with every heartbeat; `state` is "left" after an orderly end."""

    id: str
    host: str
    boot: str
    namespace: str
    pid: int
    born: str
    round: int
    started: float
    counter: int = 0
    state: str = "working"
    place: str = ""
    """Its run directory, by device and inode as it sees them: a copy of the book has none of the original's workers."""
    in_flight: int = 0
    chunks: dict[int, Held] = {}
    wire_names: dict[str, str] = {}
    """The names under which its model's endpoint is sent parameters, where they are not the usual ones."""
    outage: str = ""
    """How long no model endpoint had answered it at its last heartbeat, and why; empty if one did."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens of its calls, as far as their servers tell, those that were cached."""


class Extent(msgspec.Struct, frozen=True):
    """How far a file was read when the chunk was sealed, and the sha256 of those bytes."""

    bytes: int
    sha256: str


class Seal(msgspec.Struct, frozen=True):
    """The state of a sealed chunk. Lines after the extents no longer change it."""

    round: int
    epoch: int
    scored: int
    failed: dict[str, int]
    dropped: int
    files: dict[str, Extent]
    damaged: dict[str, list[int]] = {}
    """Damaged lines that were found in these files, by the offsets just behind them: they do not count."""


BUILTIN_PREFIX = "builtin:"

_FIRST_VERSION_TARGETS = {
    "rollbook.environments.code:Code": ("code", "f7bbcbbe878db9f94844a82a1ae5bc79a27754382cceb49a310b9ceb6c65c530"),
    "rollbook.environments.gsm8k:GSM8K": ("gsm8k", "f990bf825ccbc437a06b78485e02c6502c0483e108806c386fbc7f9874ea7a9a"),
    "rollbook.wire.gym.driving.managed:ManagedServer": ("gym", "33eda3bcadfdaf31"),
    "rollbook.wire.gym.driving.agent:RemoteAgent": ("gym+agent", "038acbe894486b55"),
    "rollbook.wire.gym.driving.routed:RoutedAgents": ("gym+head", "0b06d531dcc02438"),
    "rollbook.wire.gym.driving.stepped:SteppedServer": ("gym+step", "a587862d023b7df4"),
    "rollbook.wire.gym.driving.imported:Imported": ("gym-import", "cd9f9e46c1b2ea29"),
    "rollbook.wire.gym.harness:HarnessEnvironment": ("harness", "b95ceffc17bec443"),
    "rollbook.wire.gym.driving.server:RemoteServer": ("http", "94db287555587824"),
    "rollbook.environments.humaneval:HumanEval": ("humaneval", "d9f749b72e29c196"),
    "rollbook.environments.json_schema:JSONSchema": ("json_schema", "0bf82488f81120b5"),
    "rollbook.environments.math:Math": ("math", "2e700759d4209b5cd520abf9f5360af498de32223063fc463a2aec9eb8d8c0a4"),
    "rollbook.environments.mcqa:MCQA": ("mcqa", "8b0e5d5575cbe8b304ea12ab45e4c039245b9b8ddfd6328c62ba90561726b7fe"),
    "rollbook.environments.openenv:OpenEnv": ("openenv", "440d7cc4562db66c"),
    "rollbook.environments.python_tool:PythonTool": ("python_tool", "3b25250f1bd9d74e"),
    "rollbook.environments.reasoning_gym:ReasoningGym": ("reasoning_gym", "a3c54cf975a1ea37"),
    "rollbook.environments.string_match:StringMatch": ("string_match", "a6607285eab401a1"),
    "rollbook.environments.verifiers:Verifiers": ("verifiers", "c6a1425a599ed873"),
    "rollbook.environments.workplace.workplace:Workplace": ("workplace", "8176d4e3ccaf282e"),
}
"""Old target: the built-in's name, and how the sha256 of its file began when that meant scoring version 1."""


def scoring_digest(version: int) -> str:
    """Return what is stored in place of a digest for a built-in environment.

    >>> scoring_digest(1)
    'scoring-version-1'
    """
    return f"scoring-version-{version}"


def translate_target(target: str, digest: str) -> tuple[str, str]:
    """Return the target and digest that a run would store today for a stored pair.

    A digest of another revision is kept as it is: it equals no scoring version, so the run is not continued by mistake.
    """
    if target not in _FIRST_VERSION_TARGETS:
        return target, digest
    name, first = _FIRST_VERSION_TARGETS[target]
    return BUILTIN_PREFIX + name, scoring_digest(1) if digest.startswith(first) else digest
