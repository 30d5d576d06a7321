"""The real NeMo Gym, both ways: its servers under our engine, our servers under its agents, its tools on our files.

`make test-gym` runs this in an environment that has the package; elsewhere it is skipped. Rewards of our own agent are
compared with those of Gym's agents for the same rows and a model that says the same to both.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from rollbook.book import Book, rollouts
from rollbook.gym.client import export_gym, import_gym
from rollbook.gym.client.export_run import CollectionFiles
from support.real_gym import RealGym, Step, find_free_port, prompt_of, scripted_model
from support.sums import write_sums

PACKAGE = importlib.util.find_spec("nemo_gym")
pytestmark = pytest.mark.skipif(
    PACKAGE is None, reason="NEMO GYM IS NOT INSTALLED here: `make test-gym` installs it and runs these tests"
)
VERSION = tuple(map(int, version("nemo-gym").split(".")[:2])) if PACKAGE else (0, 0)

ROLLBOOK = (sys.executable, "-m", "rollbook")
MODEL = "responses_api_models/vllm_model"
SERVERS = {
    "mcqa": "mcqa",
    "example_session_state_mgmt": "example_session_state_mgmt",
    "example_multi_step": "example_multi_step",
    "example_tool_call_multireward": "example_tool_call_multireward",
    "equivalence_rule": "lc",
    "workplace_assistant": "workplace_assistant",
}
"""Resources servers of the package, and the name of each one's configuration."""

STEPPED = "example_multi_turn_gymnasium"
OVER_MCP = "example_mcp_weather"
"""Its tools come by MCP, which no agent of Gym without a key plays: there is nothing to compare with but its rule."""


def config_of(server: str, name: str = "") -> str:
    return f"resources_servers/{server}/configs/{name or server}.yaml"


def write_steps(server: str, row: dict[str, Any], good: bool) -> list[Step]:
    """What the model says to a row: something right, or something wrong."""
    match server:
        case "mcqa":
            wrong = "A" if row["expected_answer"] != "A" else "B"
            return [f"\\boxed{{{row['expected_answer'] if good else wrong}}}"]
        case "example_session_state_mgmt":
            count = row["expected_count"] - row["initial_count"] + (0 if good else 1)
            return [("increment_counter", {"count": count}), ("get_counter_value", {}), "done"]
        case "example_multi_step":
            values = row["expected_synonym_values"]
            call = ("extract_synonym_values", {"synonym_values": values if good else values[:1]})
            return [("get_synonym_value", {"synonym": "Vacant"}), call, "done"]
        case "example_tool_call_multireward":
            expected = row["expected_call"]
            return [(expected["name"], expected["arguments"] if good else {"town": "nowhere"}), "done"]
        case "workplace_assistant":
            calls = [(one["name"], json.loads(one["arguments"])) for one in row["ground_truth"]]
            return [*(calls if good else []), "done"]
        case "example_mcp_weather":
            city = row["verifier_metadata"]["expected_city"]
            sentence = f"The weather in {city} is sunny and 72 F."
            return [("get_weather", {"city": city}), sentence] if good else [sentence]
        case "equivalence_rule":
            return [row["expected_answer"] if good else "something else entirely"]
        case _:
            return [*["hm"] * len(row["follow_ups"]), row["expected_answer"] if good else "no idea"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Deployed:
    """Gym with the servers above and one of ours, and rows and a script for all of them."""

    def __init__(self, gym: RealGym, folder: Path, rows: dict[str, list[dict[str, Any]]]) -> None:
        self.gym, self.folder, self.rows = gym, folder, rows

    def write_rows(self, *servers: str) -> Path:
        """The rows of some servers in one file."""
        path = self.folder / f"{'+'.join(servers)}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for server in servers for row in self.rows[server]))
        return path

    def collect(self, data: Path, out: Path, head: int = 0) -> list[dict[str, Any]]:
        """What Gym's collector gets for rows from the agents of a head server."""
        out.parent.mkdir(exist_ok=True)
        self.gym.run("eval", "run", "--no-serve", "--input", str(data), "--output", str(out), head=head)
        return sorted(read_lines(out), key=lambda line: line["_ng_task_index"])

    def rollbook(self, *arguments: object) -> None:
        """Run a command of ours, which must succeed."""
        command = [*ROLLBOOK, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-4000:]

    def run_ours(self, spec: str, data: Path, out: Path, *options: object) -> list[float]:
        """The rewards of our own run of rows, in their order."""
        self.rollbook("run", spec, "--data", data, "-o", out, *options)
        done = {rollout.task.fields["_ng_task_index"]: rollout.reward for rollout in rollouts(Book(out))}
        return [done[index] for index in sorted(done)]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    assert PACKAGE
    assert PACKAGE.origin
    home, folder = Path(PACKAGE.origin).parents[1], tmp_path_factory.mktemp("real")
    script: dict[str, list[Step]] = {}
    rows = {server: read_example_rows(home, server, script) for server in (*SERVERS, STEPPED, OVER_MCP)}
    for number in range(10):
        script[f"What is {number} + {number}?"] = [str(2 * number + number % 2)]
    with scripted_model(script) as model, pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLBOOK_GYM", str(home))
        patch.setenv("ROLLBOOK_GYM_PYTHON", sys.executable)
        gym = RealGym(folder, folder / "ours", model)
        result = Deployed(gym, folder, rows)
        result.rollbook(
            *("gym-config", write_sums(folder), "--model", model, "--model-name", "scripted"),
            *("-o", folder / "ours" / "config.yaml"),
        )
        configs = [*(config_of(server, name) for server, name in SERVERS.items()), config_of(STEPPED)]
        agents = ["responses_api_agents/simple_agent", "responses_api_agents/gymnasium_agent"]
        try:
            gym.start(
                [*configs, str(folder / "ours" / "config.yaml")],
                [
                    *(f"resources_servers/{server}" for server in (*SERVERS, STEPPED)),
                    "resources_servers/Sums",
                    *agents,
                    MODEL,
                ],
            )
            yield result
        finally:
            gym.stop()


def read_example_rows(home: Path, server: str, script: dict[str, list[Step]]) -> list[dict[str, Any]]:
    """The example rows of a server, with the agent of its configuration; what the model says goes into the script."""
    import yaml

    config = yaml.safe_load((home / config_of(server, SERVERS.get(server, ""))).read_text())
    agent = next(name for name, block in config.items() if "responses_api_agents" in block)
    rows = read_lines(home / "resources_servers" / server / "data" / "example.jsonl")
    for number, row in enumerate(rows):
        row["agent_ref"] = {"type": "responses_api_agents", "name": agent}
        params = row["responses_create_params"].items()  # Gym 0.4's own model server fails on a null `metadata`
        row["responses_create_params"] = {name: value for name, value in params if value is not None}
        script[prompt_of(row["responses_create_params"]["input"])] = write_steps(server, row, number % 2 == 0)
    return rows


@pytest.fixture(scope="module")
def by_gym(deployed: Deployed) -> list[dict[str, Any]]:
    """What Gym's own agents got."""
    return deployed.collect(deployed.write_rows(*SERVERS), deployed.folder / "gym" / "run.jsonl")


@pytest.fixture(scope="module")
def by_us(deployed: Deployed) -> Path:
    """Our run of the same rows, on servers that we start ourselves."""
    first, *more = [config_of(server, name) for server, name in SERVERS.items()]
    out = deployed.folder / "by_us"
    spec = f"gym:{first}?config_paths={json.dumps(more)}"
    deployed.run_ours(spec, deployed.write_rows(*SERVERS), out, "-m", deployed.gym.model)
    return out


def test_our_agent_gets_the_rewards_of_gyms_own(deployed: Deployed, by_gym: list[dict[str, Any]], by_us: Path) -> None:
    ours = {r.task.fields["_ng_task_index"]: r for r in rollouts(Book(by_us))}
    theirs: dict[str, list[float]] = {}
    for line in by_gym:
        agent = line["agent_ref"]["name"]
        theirs.setdefault(agent, []).append(line["reward"])
        assert ours[line["_ng_task_index"]].reward == line["reward"], (agent, line["_ng_task_index"])
    assert len(theirs) == len(SERVERS)
    assert all(len({*rewards}) > 1 for rewards in theirs.values()), f"a script that tells nothing: {theirs}"
    assert len(ours) == len(by_gym) == sum(len(deployed.rows[server]) for server in SERVERS)


def test_steps_get_the_rewards_of_gyms_own_agent(deployed: Deployed) -> None:
    data = deployed.write_rows(STEPPED)
    theirs = deployed.collect(data, deployed.folder / "gym" / "stepped.jsonl")
    spec = f"gym+step:{config_of(STEPPED)}"
    ours = deployed.run_ours(spec, data, deployed.folder / "stepped", "-m", deployed.gym.model)
    assert ours == [line["reward"] for line in theirs]
    assert len({*ours}) > 1


def test_tools_that_come_by_mcp_reach_the_model(deployed: Deployed) -> None:
    data, out = deployed.write_rows(OVER_MCP), deployed.folder / "over_mcp"
    rewards = deployed.run_ours(f"gym:{config_of(OVER_MCP)}", data, out, "-m", deployed.gym.model)
    assert rewards == [float(number % 2 == 0) for number in range(len(rewards))]
    assert len(rewards) > 1


def test_gyms_agents_play_for_us(deployed: Deployed, by_gym: list[dict[str, Any]]) -> None:
    spec, out = f"gym+head://127.0.0.1:{deployed.gym.head}", deployed.folder / "head"
    assert deployed.run_ours(spec, deployed.write_rows(*SERVERS), out) == [line["reward"] for line in by_gym]


def test_gyms_agent_gets_our_own_rewards_from_our_server(deployed: Deployed) -> None:
    data = deployed.folder / "ours" / "data" / "Sums.jsonl"
    theirs = deployed.collect(data, deployed.folder / "gym" / "sums.jsonl")
    deployed.rollbook("run", write_sums(deployed.folder), "-m", deployed.gym.model, "-o", deployed.folder / "sums")
    ours = {rollout.task.id: rollout.reward for rollout in rollouts(Book(deployed.folder / "sums"))}
    assert {line["id"]: line["reward"] for line in theirs} == ours
    assert {*ours.values()} == {0.0, 1.0}


def test_gyms_collector_collects_from_our_agent(deployed: Deployed) -> None:
    options = ("--as", "agent", "-m", deployed.gym.model, "--head", "--port", "0", "--data-dir", "agent")
    serving = subprocess.Popen(
        [*ROLLBOOK, "serve", write_sums(deployed.folder), *options],
        cwd=deployed.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert serving.stdout
        port = int(serving.stdout.readline().rpartition(":")[2])
        lines = deployed.collect(
            deployed.folder / "agent" / "Sums.jsonl", deployed.folder / "gym" / "agent.jsonl", head=port
        )
    finally:
        serving.terminate()
        serving.wait(60)
    assert [line["reward"] for line in lines] == [float(number % 2 == 0) for number in range(10)]


def test_gym_profiles_our_export(deployed: Deployed, by_us: Path) -> None:
    out = deployed.folder / "profiled" / "run.jsonl"
    export_gym(by_us, out)
    deployed.gym.run("eval", "profile", "--inputs", str(CollectionFiles(out).inputs), "--rollouts", str(out))
    profiles = read_lines(out.with_name("run_reward_profiling.jsonl"))
    means = {line["mean/reward"] for line in profiles}
    assert len(profiles) == len(read_lines(out))
    assert len(means) > 1


def test_gym_aggregates_our_export_to_its_own_numbers(
    deployed: Deployed, by_gym: list[dict[str, Any]], by_us: Path
) -> None:
    out = deployed.folder / "aggregated" / "run.jsonl"
    export_gym(by_us, out)
    deployed.gym.run("eval", "aggregate", "--input-glob", str(out), "--output", str(out.with_name("merged.jsonl")))
    path = deployed.folder / "gym" / "run_aggregate_metrics.json"
    theirs, ours = (
        {entry["agent_ref"]["name"]: entry["agent_metrics"]["mean/reward"] for entry in json.loads(one.read_text())}
        for one in (path, out.with_name("merged_aggregate_metrics.json"))
    )
    assert ours == theirs
    assert len(ours) == len(SERVERS)


@pytest.mark.skipif(VERSION < (0, 5), reason="`gym eval reverify` IS NOT IN THIS VERSION of NeMo Gym, but since 0.5")
def test_gym_reverifies_our_export_to_the_same_rewards(deployed: Deployed) -> None:
    out, again = deployed.folder / "mcqa" / "run.jsonl", deployed.folder / "mcqa" / "again.jsonl"
    rows = deployed.folder / "anonymous.jsonl"
    rows.write_text("".join(json.dumps({**row, "agent_ref": None}) + "\n" for row in deployed.rows["mcqa"]))
    deployed.run_ours(f"gym:{config_of('mcqa')}", rows, deployed.folder / "only_mcqa", "-m", deployed.gym.model)
    export_gym(deployed.folder / "only_mcqa", out)
    deployed.gym.run(
        *("eval", "reverify", "--config", config_of("mcqa"), "--config", f"{MODEL}/configs/vllm_model.yaml"),
        *("--inputs", str(CollectionFiles(out).inputs), "--rollouts", str(out), "--output", str(again)),
        head=find_free_port(),  # it starts servers of its own
    )
    rewards = [
        {(line["_ng_task_index"], line["_ng_rollout_index"]): line["reward"] for line in read_lines(path)}
        for path in (out, again)
    ]
    assert rewards[0] == rewards[1]
    assert len({*rewards[0].values()}) == 2


def test_what_gym_collected_survives_an_import_and_an_export(deployed: Deployed, by_gym: list[dict[str, Any]]) -> None:
    source, again = deployed.folder / "gym" / "run.jsonl", deployed.folder / "again" / "run.jsonl"
    report = asyncio.run(import_gym(source, deployed.folder / "imported"))
    assert report.scored == len(by_gym)
    export_gym(deployed.folder / "imported", again)
    for one, other in ((source, again), (CollectionFiles(source).inputs, CollectionFiles(again).inputs)):
        lines = [sorted(json.dumps(line, sort_keys=True) for line in read_lines(path)) for path in (one, other)]
        assert lines[0] == lines[1]
