"""Every field of task.toml that Harbor has is read or refused: none is ignored silently.

The names are those of harbor 0.25.0, schema 1.4. `python tests/environments/harbor/test_fields.py`, with a Python that
has the package, prints what differs from the installed version.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HARBOR = {
    "TaskConfig": (
        "schema_version task metadata verifier agent environment solution source multi_step_reward_strategy steps"
        " artifacts"
    ),
    "PackageInfo": "name version description authors keywords",
    "AgentConfig": "network_mode allowed_hosts timeout_sec user",
    "VerifierConfig": "network_mode allowed_hosts timeout_sec env user environment_mode environment collect",
    "VerifierCollectConfig": "command service timeout_sec user",
    "EnvironmentConfig": (
        "network_mode allowed_hosts build_timeout_sec docker_image os cpus memory_mb storage_mb gpus gpu_types tpu"
        " mcp_servers env skills_dir healthcheck workdir allow_internet"
    ),
    "HealthcheckConfig": "command interval_sec timeout_sec start_period_sec start_interval_sec retries",
    "MCPServerConfig": "name transport url command args headers",
    "SolutionConfig": "env",
    "StepConfig": "name agent verifier min_reward healthcheck artifacts",
    "ArtifactConfig": "source destination exclude service",
}
"""Fields by the names of Harbor's classes. Those of `tpu` are not listed: it is refused."""

TABLES = {
    "TaskConfig": "TaskConfig",
    "PackageInfo": "DescriptionTable",
    "AgentConfig": "AgentTable",
    "VerifierConfig": "VerifierTable",
    "VerifierCollectConfig": "Collect",
    "EnvironmentConfig": "EnvironmentTable",
    "HealthcheckConfig": "Healthcheck",
    "MCPServerConfig": "McpTable",
    "SolutionConfig": "SolutionTable",
    "StepConfig": "StepTable",
    "ArtifactConfig": "Artifact",
}
OLDER = {"TaskConfig": {"version"}, "EnvironmentConfig": {"memory", "storage"}}
WITHOUT_EFFECT = {("TaskConfig", "task"), ("TaskConfig", "source")}
WITHOUT_EFFECT |= {("PackageInfo", field) for field in HARBOR["PackageInfo"].split()}
"""What describes a task and changes nothing in how it runs, in Harbor either."""


@pytest.mark.parametrize("name", HARBOR)
def test_the_fields_are_those_of_harbor(name: str) -> None:
    from rollbook.environments.harbor import task_files

    ours = set(getattr(task_files, TABLES[name]).__struct_fields__)
    assert ours == {*HARBOR[name].split(), *OLDER.get(name, ())}


@pytest.mark.parametrize(
    "field", sorted({field for name in HARBOR for field in HARBOR[name].split() if (name, field) not in WITHOUT_EFFECT})
)
def test_every_field_is_used(field: str) -> None:
    """A field that no code reads would be ignored."""
    import rollbook.environments.harbor.task_files as module

    folder = Path(module.__file__).parent
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    assert f".{field}" in source or f'"{field}"' in source


def print_differences() -> None:
    """Compare the lists with the installed package."""
    from harbor.models.task import config  # type: ignore[import-not-found]

    for name, fields in HARBOR.items():
        now, then = set(getattr(config, name).model_fields), set(fields.split())
        print(f"{name}: new {sorted(now - then)}, gone {sorted(then - now)}")


if __name__ == "__main__":
    print_differences()
