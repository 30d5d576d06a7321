"""What a run means (frozen in run.json) and how each start of it is operated (rounds/NNNN.json)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rollbook.core.json import JSON
from rollbook.core.seal import Extent

ToolFormat: TypeAlias = Literal["native", "schema", "text"]
"""How tools are offered and called: by the server's own fields, as JSON text held to a schema, or as free text."""

FIXED = frozenset(("seed", "n", "model", "messages"))
"""What an endpoint takes and nobody may give as sampling: the run decides it."""

LEAST: dict[str, float] = {
    "verify_s": 0.001,
    "tool_s": 0.001,
    "rollout_s": 0.001,
    "memory_mb": 1,
    "max_turns": 1,
    "max_tokens_total": 1,
    "tool_chars": 1,
    "stop_repeats": 2,
}
"""The least that each limit may be."""


class Sampling(msgspec.Struct, frozen=True):
    """How the model is sampled; always sent in full, so that no server default can decide."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024
    extra: dict[str, JSON] = {}


class Limits(msgspec.Struct, frozen=True):
    """Every limit that can change a score."""

    verify_s: float = 30.0
    tool_s: float = 60.0
    rollout_s: float = 3600.0
    memory_mb: int = 2048
    max_turns: int = 32
    """Model calls of one rollout."""
    max_tokens_total: int | None = None
    """Tokens that the model may write over all turns of one rollout."""
    tool_chars: int = 16_384
    """Characters of one tool's output that are shown to the model."""
    stop_repeats: int | None = None
    """The conversation ends when the model makes the same tool calls so many times running."""


class Terms(msgspec.Struct, frozen=True):
    """What one environment of a blend has of its own; the only environment of a run has the run's.

    `prefix` stands before the ids of its tasks in the book; the environment itself does not see it.
    """

    prefix: str
    samples: int
    sampling: Sampling
    limits: Limits
    tool_format: ToolFormat


class EnvironmentSpec(msgspec.Struct, frozen=True):
    """An environment as an import spec plus JSON arguments; never a pickle.

    `target` is module:Class. `snapshot` names the folder of the run directory that holds the user's own source, put
    first on the import path; None for installed packages. `digest` is the sha256 of the source it was loaded from.
    `tools` are the schemas of its tools as models are shown them; `offers` says that its tasks may have further ones,
    `replies` that it speaks back, `plays` that it carries out whole rollouts itself, `appeals` that it asks a judge
    where the run has one. `terms` are its own in a blend; None: those of the run.
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

    def same(self, other: EnvironmentSpec) -> bool:
        """Whether both are the same source with the same arguments."""
        return (self.target, self.args, self.digest) == (other.target, other.args, other.digest)


class Rescored(msgspec.Struct, frozen=True):
    """How another run's rollouts were scored again: `only` says which of them, failed, scored or all.

    `kept` are the verifiers, by environment, whose scores the rollouts that were not scored again have kept.
    """

    only: str
    kept: dict[str, list[EnvironmentSpec]] = {}


class ModelSpec(msgspec.Struct, frozen=True):
    """Who answers: `kind` is chat, embedded, scripted or remote (others play the rollouts); no URL and no secret."""

    name: str
    kind: str = "chat"
    digest: str = ""


class AgentSpec(msgspec.Struct, frozen=True):
    """An outside program that plays the rollouts: its command, and a digest of the files that the command names."""

    command: list[str]
    digest: str = ""


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
    """The tasks as they were planned: the first so many bytes of tasks.jsonl."""
    parent: str = ""
    """The run whose rollouts were scored again to make this one."""
    rescored: Rescored | None = None
    tool_format: ToolFormat = "native"
    judge: ModelSpec | None = None
    """Who is asked where the verifier's rule says no."""
    agent: AgentSpec | None = None
    """Who meets the environments; None: whoever each of them needs."""
    continue_tokens: bool = False
    """Whether later turns are asked with the ids of earlier ones, which can be other ids than a template gives."""

    @property
    def mixed(self) -> bool:
        """Whether the scores of this run are by more than one verifier."""
        kept = self.rescored.kept if self.rescored else {}
        return any(not by.same(self.environments[name]) for name, several in kept.items() for by in several)


class Settings(msgspec.Struct, frozen=True):
    """How one start is operated. Nothing here changes what a score means."""

    urls: list[str] = []
    concurrency: int | str = 64
    workers: int = 1
    connect_s: float = 10.0
    call_s: float = 600.0
    outage_s: float = 300.0
    api_key_env: str = "OPENAI_API_KEY"
    attempts: dict[str, int] = {}
    retry: list[str] = msgspec.field(default_factory=lambda: ["infra"])
    fail_fast: bool = False
    max_failures: str | None = None
    hosts: int | None = None
    offline: bool = False
    judge_urls: list[str] = []
    judge_key_env: str = "JUDGE_API_KEY"
    judge_s: float = 300.0
    """All that a judge is asked about one rollout."""


class Round(msgspec.Struct, frozen=True):
    """rounds/NNNN.json: one start of a run."""

    schema: int
    number: int
    started: float
    settings: Settings
    meaning: str = ""
    """The sha256 of run.json when this round began: no later round goes on with another meaning."""
