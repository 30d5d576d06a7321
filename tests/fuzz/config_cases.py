"""Files that people write, with known content: task.toml of a Harbor task, and blends of environments."""

from __future__ import annotations

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from fuzz.cases import Case, JSONValue, MakeCase, draw_name, draw_text
from rollbook.engine.blends import read_blend, task_shares
from rollbook.environments.harbor import read_task
from rollbook.environments.harbor.task_files import parse_size_mb


def write_toml(tables: dict[str, JSONValue], prefix: str = "") -> str:
    """Write tables as TOML; lists of tables as [[NAME]]. A text of JSON is one of TOML."""
    plain, nested = "", ""
    for name, value in tables.items():
        if isinstance(value, dict):
            nested += f"[{prefix}{name}]\n{write_toml(value, f'{prefix}{name}.')}"
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            nested += "".join(f"[[{prefix}{name}]]\n{write_toml(each, f'{prefix}{name}.')}" for each in value)
        elif value is not None:
            plain += f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    return plain + nested


def pick(draw: random.Random, fields: dict[str, JSONValue]) -> dict[str, JSONValue]:
    """Return some of the fields."""
    return {name: value for name, value in fields.items() if draw.random() < 0.6}


def draw_seconds(draw: random.Random) -> float:
    return round(draw.uniform(0.5, 900), 1)


def draw_network(draw: random.Random) -> dict[str, JSONValue]:
    return pick(
        draw, {"network_mode": draw.choice(("public", "no-network", "allowlist")), "allowed_hosts": ["a.b", "c"]}
    )


def draw_agent(draw: random.Random) -> dict[str, JSONValue]:
    return pick(draw, {"timeout_sec": draw_seconds(draw), "user": draw.choice(("root", 1000))}) | draw_network(draw)


def draw_verifier(draw: random.Random) -> dict[str, JSONValue]:
    fields = {"timeout_sec": draw_seconds(draw), "env": {draw_name(draw): draw_text(draw)}, "user": draw_name(draw)}
    return pick(draw, {**fields, "environment_mode": draw.choice(("shared", "separate"))}) | draw_network(draw)


def draw_container(draw: random.Random) -> dict[str, JSONValue]:
    check = {"command": draw_text(draw), "retries": draw.randint(1, 9), "interval_sec": draw_seconds(draw)}
    server = {"name": draw_name(draw), "transport": "stdio", "command": draw_text(draw), "args": [draw_text(draw)]}
    fields: dict[str, JSONValue] = {
        "cpus": float(draw.randint(1, 8)), "memory_mb": draw.randint(64, 9999), "storage_mb": draw.randint(64, 9999),
        "build_timeout_sec": draw_seconds(draw), "docker_image": draw_name(draw), "workdir": f"/{draw_name(draw)}",
        "allow_internet": draw.random() < 0.5, "env": {draw_name(draw): draw_text(draw)}, "gpus": draw.randint(0, 2),
        "healthcheck": check, "mcp_servers": [server] * draw.randint(1, 2),
    }  # fmt: skip
    return pick(draw, fields) | draw_network(draw)


def draw_config(draw: random.Random) -> dict[str, JSONValue]:
    """Return what a task.toml may say."""
    steps = [{"name": f"s{n}", "agent": draw_agent(draw), "min_reward": draw.random()} for n in range(2)]
    fields: dict[str, JSONValue] = {
        "version": "1.0", "source": draw_text(draw), "artifacts": ["/a", "/b"], "metadata": {"level": draw_text(draw)},
        "agent": draw_agent(draw), "verifier": draw_verifier(draw), "environment": draw_container(draw),
        "solution": {"env": {draw_name(draw): draw_text(draw)}}, "steps": steps,
        "multi_step_reward_strategy": draw.choice(("mean", "final")),
    }  # fmt: skip
    return pick(draw, fields)


def find_difference(written: JSONValue, found: JSONValue, where: str = "") -> str:
    """Return the first place where what was read is not what was written; what was not written has its default."""
    if isinstance(written, dict) and isinstance(found, dict):
        names = (f"{where}.{name}" for name in written)
        pairs = zip(written.values(), (found.get(name) for name in written), names, strict=True)
        return next((text for each in pairs if (text := find_difference(*each))), "")
    if isinstance(written, list) and isinstance(found, list) and len(written) == len(found):
        triples = ((one, other, f"{where}[{n}]") for n, (one, other) in enumerate(zip(written, found, strict=True)))
        return next((text for each in triples if (text := find_difference(*each))), "")
    return "" if written == found else f"{where}: {found!r}, not {written!r}"


def make_task(draw: random.Random) -> Case:
    """Every field of a task.toml has its value; the network is that of the table, else of the older switch."""
    written = draw_config(draw)
    text = write_toml(written)
    with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
        Path(folder, "task.toml").write_text(text)
        task = read_task(Path(folder))
        steps = task.steps
    container: dict[str, JSONValue] = written.get("environment", {})
    closed = "no-network" if container.get("allow_internet") is False else "public"
    own: dict[str, JSONValue] = written.get("agent", {})
    agents: list[dict[str, JSONValue]] = [step["agent"] for step in written.get("steps", [])]
    timeouts = [agent.get("timeout_sec", own.get("timeout_sec")) for agent in agents] or [own.get("timeout_sec")]
    found = (
        find_difference(written, msgspec.to_builtins(task.config)),
        task.config.environment.network,
        task.config.environment.memory_limit_mb,
        [step.agent.timeout_sec for step in steps],
    )
    return Case(text, found, ("", container.get("network_mode", closed), container.get("memory_mb"), timeouts))


def make_size(draw: random.Random) -> Case:
    number, unit = draw.randint(1, 64), draw.choice("KkMmGg")
    megabytes = {"k": number / 1024, "m": number, "g": number * 1024}[unit.lower()]
    return Case(f"{number}{unit}", parse_size_mb(f" {number}{unit} "), int(megabytes))


def make_blend(draw: random.Random) -> Case:
    """Tasks are shared out by weight, rounded down; what remains goes to the largest remainders."""
    weights, total = [draw.randint(1, 9) for _ in range(draw.randint(1, 4))], draw.randint(1, 99)
    entries = [{"env": draw_name(draw), "weight": weight, "samples": draw.randint(1, 9)} for weight in weights]
    lines = [f"  - {{env: {e['env']}, weight: {e['weight']}, samples: {e['samples']}}}" for e in entries]
    with TemporaryDirectory(prefix="rollbook-fuzz-") as folder:
        path = Path(folder, "blend.yaml")
        path.write_text("\n".join([f"tasks: {total}", "environments:", *lines]))
        blend = read_blend(path)
    shares = [total * weight // sum(weights) for weight in weights]
    remainders = sorted(range(len(weights)), key=lambda n: (-(total * weights[n] % sum(weights)), n))
    for n in remainders[: total - sum(shares)]:
        shares[n] += 1
    found = [{"env": e.env, "weight": e.weight, "samples": e.samples} for _, e in blend.entries]
    return Case(lines, (blend.tasks, found, task_shares(blend)), (total, entries, shares))


CASES: dict[str, MakeCase] = {"task.toml": make_task, "size": make_size, "blend": make_blend}
