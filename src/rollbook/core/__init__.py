"""The domain types: task, message, turn, score, failure, rollout, plan, and the records of a run directory.

No I/O and no clock. Every package may import core; core imports only `rollbook.errors`. The JSON Schemas in
`core/schemas` are generated from these types and change only together with `SCHEMA_VERSION`.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.core.failure import (
        FAILURE_KINDS,
        Failure,
        FailureKind,
        FailureSide,
        attempts_allowed,
        check_retry_rules,
        choose_exit_code,
        reopens,
    )
    from rollbook.core.journal_lines import (
        SCHEMA_VERSION,
        FailedLine,
        ScoredLine,
        TokenRef,
        TurnLine,
        add_crc,
        has_crc,
        is_crc_right,
        make_failed_line,
        make_scored_line,
        make_turn_line,
    )
    from rollbook.core.json import JSON, JSON_ERRORS, decode, encode, encode_line, encode_pretty, iterate_lines
    from rollbook.core.manifest import (
        AgentSpec,
        Chunk,
        Chunks,
        EnvironmentSpec,
        Extent,
        Held,
        Lease,
        Manifest,
        ModelSpec,
        Part,
        Plan,
        Presence,
        Rescored,
        Round,
        Seal,
        Terms,
        make_part,
    )
    from rollbook.core.rollout import Rollout, Score, Timing, Turn, Usage, as_score, require_finite
    from rollbook.core.run_options import (
        RESERVED_SAMPLING_KEYS,
        ClusterOptions,
        Limits,
        RunOptions,
        RunParameter,
        Sampling,
        ServerKind,
        ServerSpec,
        Settings,
        ToolFormat,
        list_parameters,
    )
    from rollbook.core.seeds import derive_seed
    from rollbook.core.stored_targets import BUILTIN_PREFIX, scoring_digest, translate_target
    from rollbook.core.task import Function, Message, Task, TaskLine, ToolCall, as_messages
    from rollbook.core.yaml_file import YamlEntry, YamlFile
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "BUILTIN_PREFIX",
    "FAILURE_KINDS",
    "JSON",
    "JSON_ERRORS",
    "RESERVED_SAMPLING_KEYS",
    "SCHEMA_VERSION",
    "AgentSpec",
    "Chunk",
    "Chunks",
    "ClusterOptions",
    "EnvironmentSpec",
    "Extent",
    "FailedLine",
    "Failure",
    "FailureKind",
    "FailureSide",
    "Function",
    "Held",
    "Lease",
    "Limits",
    "Manifest",
    "Message",
    "ModelSpec",
    "Part",
    "Plan",
    "Presence",
    "Rescored",
    "Rollout",
    "Round",
    "RunOptions",
    "RunParameter",
    "Sampling",
    "Score",
    "ScoredLine",
    "Seal",
    "ServerKind",
    "ServerSpec",
    "Settings",
    "Task",
    "TaskLine",
    "Terms",
    "Timing",
    "TokenRef",
    "ToolCall",
    "ToolFormat",
    "Turn",
    "TurnLine",
    "Usage",
    "YamlEntry",
    "YamlFile",
    "add_crc",
    "as_messages",
    "as_score",
    "attempts_allowed",
    "check_retry_rules",
    "choose_exit_code",
    "decode",
    "derive_seed",
    "encode",
    "encode_line",
    "encode_pretty",
    "has_crc",
    "is_crc_right",
    "iterate_lines",
    "list_parameters",
    "make_failed_line",
    "make_part",
    "make_scored_line",
    "make_turn_line",
    "reopens",
    "require_finite",
    "scoring_digest",
    "translate_target",
]
