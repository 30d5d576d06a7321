"""A framework's configuration as NeMo Evaluator has it: which package holds the harness, and who judges."""

from __future__ import annotations

from collections.abc import Mapping

from rollbook.core.json import JSON
from rollbook.errors import UsageError


def package_of(config: Mapping[str, JSON]) -> str:
    """The package of the harness: `framework.pkg_name`."""
    package = _inside(config, "framework", "pkg_name")
    if not isinstance(package, str) or not package:
        raise UsageError("framework_config has no framework.pkg_name: the package that holds the harness")
    return package


def harness_arguments(config: Mapping[str, JSON]) -> dict[str, JSON]:
    """What the harness is told besides its evaluation: the judge, by its URL, its model and the name of its key.

    The key itself travels in the environment alone.
    """
    judge = _inside(config, "defaults", "config", "params", "extra", "judge")
    if not isinstance(judge, dict) or not judge.get("url"):
        return {}
    told = {
        "backend": judge.get("backend") or "openai",
        "url": judge["url"],
        "model": judge.get("model_id") or judge.get("model"),
        "api_key_name": judge.get("api_key_name") or judge.get("api_key"),
    }
    return {"judge_config": {name: value for name, value in told.items() if value is not None}}


def _inside(value: JSON, *names: str) -> JSON:
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
