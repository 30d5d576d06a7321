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
