"""What a run means (frozen in run.json) and how each start of it is operated (rounds/NNNN.json)."""

from __future__ import annotations

import msgspec

from rollbook.core.json import JSON
from rollbook.core.seal import Extent


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


class EnvironmentSpec(msgspec.Struct, frozen=True):
    """An environment as an import spec plus JSON arguments; never a pickle.

    `target` is module:Class. `snapshot` names the folder of the run directory that holds the user's own source, put
    first on the import path; None for installed packages. `digest` is the sha256 of the source it was loaded from.
    """

    spec: str
    target: str
    args: dict[str, JSON] = {}
    digest: str = ""
    snapshot: str | None = None
    origin: str = ""
    verify: str = "sync"
    state: str = "none"


class ModelSpec(msgspec.Struct, frozen=True):
    """Who answers: `kind` is chat, embedded or scripted; no URL and no secret."""

    name: str
    kind: str = "chat"
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


class Round(msgspec.Struct, frozen=True):
    """rounds/NNNN.json: one start of a run."""

    schema: int
    number: int
    started: float
    settings: Settings
    meaning: str = ""
    """The sha256 of run.json when this round began: no later round goes on with another meaning."""
