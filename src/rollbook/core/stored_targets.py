"""How run directories name the environments that are part of Rollbook, and how they named them before.

A built-in environment is stored as `builtin:NAME` with its scoring version, so that its module can move and its text
can change without a run losing its environment. Runs made before that stored `module:Class` and the sha256 of the
module's file; those of the last such revision are read as scoring version 1.
"""

from __future__ import annotations

BUILTIN_PREFIX = "builtin:"

_FIRST_VERSION_TARGETS = {
    "rollbook.environments.code:Code": ("code", "f7bbcbbe878db9f94844a82a1ae5bc79a27754382cceb49a310b9ceb6c65c530"),
    "rollbook.environments.gsm8k:GSM8K": ("gsm8k", "f990bf825ccbc437a06b78485e02c6502c0483e108806c386fbc7f9874ea7a9a"),
    "rollbook.wire.gym.driving.managed:ManagedServer": (
        "gym",
        "33eda3bcadfdaf31ac10af07eba8474ef2a54b362842277dcf37609b8bd636fc",
    ),
    "rollbook.wire.gym.driving.agent:RemoteAgent": (
        "gym+agent",
        "038acbe894486b55953923d9fd85d56dd75a9249c3e2fdaad9569cca15da1d13",
    ),
    "rollbook.wire.gym.driving.routed:RoutedAgents": (
        "gym+head",
        "0b06d531dcc0243804426b0a35e2d32980ede228fceb9191e2a7bf4a30c6d193",
    ),
    "rollbook.wire.gym.driving.stepped:SteppedServer": (
        "gym+step",
        "a587862d023b7df4ab43ac2679b1479ae2a13cbb63f61a274d9e171f3114ae70",
    ),
    "rollbook.wire.gym.driving.imported:Imported": (
        "gym-import",
        "cd9f9e46c1b2ea291632acddd8948f10dca58431382d1f802f0f7758627a5950",
    ),
    "rollbook.wire.gym.harness:HarnessEnvironment": (
        "harness",
        "b95ceffc17bec443ec045eaf5c3667e6e8fd07cceeb6d1e0045682983d40e066",
    ),
    "rollbook.wire.gym.driving.server:RemoteServer": (
        "http",
        "94db287555587824af1bf3d78939daa58eb362c99cd5fcefb1210ce22e940cd5",
    ),
    "rollbook.environments.humaneval:HumanEval": (
        "humaneval",
        "d9f749b72e29c1969b4b965e08d25bf45c154012323beba1a7fadc6c0a0a926f",
    ),
    "rollbook.environments.json_schema:JSONSchema": (
        "json_schema",
        "0bf82488f81120b56d478775d60ba6d01bb0243ead072ced22e66ed97d9aefd2",
    ),
    "rollbook.environments.math:Math": ("math", "2e700759d4209b5cd520abf9f5360af498de32223063fc463a2aec9eb8d8c0a4"),
    "rollbook.environments.mcqa:MCQA": ("mcqa", "8b0e5d5575cbe8b304ea12ab45e4c039245b9b8ddfd6328c62ba90561726b7fe"),
    "rollbook.environments.openenv:OpenEnv": (
        "openenv",
        "440d7cc4562db66c90725bdd038f42c9bb519bdb605f0f227055a434ff125a48",
    ),
    "rollbook.environments.python_tool:PythonTool": (
        "python_tool",
        "3b25250f1bd9d74e48d8039ae92e6814dfca5d933d36610e7eb5b2453fb62c4b",
    ),
    "rollbook.environments.reasoning_gym:ReasoningGym": (
        "reasoning_gym",
        "a3c54cf975a1ea374e5be6e156c9adc14b229299203a833ee0c3b2fd6e3ef28b",
    ),
    "rollbook.environments.string_match:StringMatch": (
        "string_match",
        "a6607285eab401a1e6e34056b9c24156ad94771adb8ef1897f1faf81b9604629",
    ),
    "rollbook.environments.verifiers:Verifiers": (
        "verifiers",
        "c6a1425a599ed8739a3c67184e8965f8aab89c9106af367864901b8724c81a3c",
    ),
    "rollbook.environments.workplace.workplace:Workplace": (
        "workplace",
        "8176d4e3ccaf282ef41742189f0680f5d6aecb510d81b15fc58a28260341bc77",
    ),
}
"""Old target: the built-in's name, and the sha256 of its file when that meant scoring version 1."""


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
    return BUILTIN_PREFIX + name, scoring_digest(1) if digest == first else digest
