"""Episodes of OpenEnv servers: against one that speaks as they do, and against the real package where there is one.

OPENENV_PYTHON=.venv/bin/python of an environment with `openenv` 0.10 runs the same tests with it.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollbook import Shortfall, UsageError, run
from rollbook.environments.registry import parse_spec, resolve
from support.alive import read_pid
from support.openenv_stub import Stub
from support.tool_environment import call, write_talk

REAL = os.environ.get("OPENENV_PYTHON")
needs_real = pytest.mark.skipif(not REAL, reason="OPENENV_PYTHON names no Python with the package openenv")
both = pytest.mark.parametrize("kind", ["stub", pytest.param("real", marks=needs_real)])


@pytest.fixture
def serve_env(tmp_path: Path, kind: str) -> Iterator[Any]:
    """A function that starts a server by name and returns its URL."""
    stubs: list[Stub] = []
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> str:
        if kind == "stub":
            stubs.append(Stub(name).__enter__())
            return stubs[-1].url
        script = Path(__file__).parents[1] / "support" / "openenv_server.py"
        processes.append(subprocess.Popen([str(REAL), str(script), name, str(tmp_path / name)]))
        return f"http://127.0.0.1:{read_pid(tmp_path / name, 60)}"

    yield start
    for stub in stubs:
        stub.__exit__()
    for process in processes:
        process.kill()
        process.wait()


def lines(folder: Path) -> dict[str, dict[str, Any]]:
    found = [json.loads(line) for p in folder.glob("journals/*.jsonl") for line in p.read_text().splitlines()]
    return {line["task"]: line for line in found}


@both
def test_a_model_acts_by_one_tool_and_is_paid_by_the_environment(serve_env: Any, tmp_path: Path, kind: str) -> None:
    url = serve_env("guess")
    numbers = range(3, 6)
    guesses = [call("step", {"number": n}, n) for n in numbers]
    wrong = [call("step", {"number": "x"}), call("step", {"number": 5})]
    talks = {f"episode-{seed:05d}": [*guesses, "so"] for seed in range(4, 8)} | {"episode-00008": [wrong, "so"]}
    script = write_talk(tmp_path, talks)
    report = run(f"openenv:{url}?episodes=5&seed=4&sessions=2", script, out=tmp_path / "run", concurrency=8).report
    assert report.scored == 5
    found = lines(tmp_path / "run")
    assert found["episode-00004"]["messages"][0]["content"] == (
        'A guessing game.\n\n{"words":"Guess my number, episode 4."}\n\nAct by calling tools until the episode is over.'
    )
    tool_messages = [m["content"] for m in found["episode-00008"]["messages"] if m["role"] == "tool"]
    assert "Expected `integer`, got `string`" in tool_messages[0]
    assert [found["episode-00008"][key] for key in ("reward", "parts")] == [0.0, {"steps": 1.0, "done": 0.0}]
    rewards = [found[f"episode-{seed:05d}"]["reward"] for seed in range(4, 8)]
    assert rewards == [float(random.Random(seed).randrange(10) in numbers) for seed in range(4, 8)] == [1, 0, 0, 1]


@both
def test_tools_of_an_environment_are_offered_as_they_are(serve_env: Any, tmp_path: Path, kind: str) -> None:
    url = serve_env("shop")
    talk = [call("buy", {"what": "tea"}), call("buy", {"what": "cake", "count": 2}), call("buy", {"what": "x"}), "so"]
    script = write_talk(tmp_path, {"episode-00000": talk})
    run(f"openenv:{url}?episodes=1&prompt=Buy.", script, out=tmp_path / "run")
    line = lines(tmp_path / "run")["episode-00000"]
    assert [m["content"] for m in line["messages"] if m["role"] == "tool"] == [
        "1 bought",
        "3 bought\nThe episode is over.",
        "The episode is over.",
    ]
    assert (line["reward"], line["outcome"]) == (1.0, {"rewards": [0.5, 0.5], "steps": 2, "done": True})
    run(f"openenv:{url}?episodes=1&prompt=Buy.&reward=last", script, out=tmp_path / "last")
    assert lines(tmp_path / "last")["episode-00000"]["reward"] == 0.5


@both
def test_an_environment_that_breaks_is_a_failure_and_no_score(serve_env: Any, tmp_path: Path, kind: str) -> None:
    script = write_talk(tmp_path, {"episode-00000": [call("step", {"number": -1}), "so"]})
    with pytest.raises(Shortfall):
        run(f"openenv:{serve_env('guess')}?episodes=1", script, out=tmp_path / "run")
    failure = lines(tmp_path / "run")["episode-00000"]["failure"]
    assert (failure["kind"], failure["where"]) == ("environment_error", "tool step")
    assert "the machine broke" in failure["message"]


@pytest.mark.parametrize("kind", ["stub"])
def test_a_seed_that_does_not_hold_and_an_end_without_reward_are_failures(
    serve_env: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support import openenv_stub as stub

    spec = f"openenv:{serve_env('guess')}?episodes=1"
    script = write_talk(tmp_path, {"episode-00000": [call("step", {"number": 1})] * 3 + ["so"]})
    monkeypatch.setattr(stub.Guess, "step", lambda self, action: stub.said({"words": "Over."}, None, True))
    with pytest.raises(Shortfall):
        run(spec, script, out=tmp_path / "silent")
    assert "gave no reward" in lines(tmp_path / "silent")["episode-00000"]["failure"]["message"]
    times = iter(range(100))
    monkeypatch.setattr(stub.Guess, "reset", lambda self, data: stub.said({"words": str(next(times))}))
    with pytest.raises(Shortfall):
        run(spec, script, out=tmp_path / "moody")
    assert (
        "differs from the one when the run was planned"
        in lines(tmp_path / "moody")["episode-00000"]["failure"]["message"]
    )


def test_a_url_stands_behind_the_name() -> None:
    written = parse_spec("openenv:http://host:80?episodes=9&reset=%7B%22level%22%3A1%7D")
    assert (written.target, written.part, written.args) == (
        "openenv",
        "http://host:80",
        {"episodes": 9, "reset": {"level": 1}},
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("openenv:localhost", "write openenv:http://host:port"),
        ("openenv:http://a?reward=most", "sum or last"),
        ("openenv:http://127.0.0.1:9?episodes=1", "OpenEnv server http://127.0.0.1:9/metadata: "),
    ],
)
def test_what_is_wrong_is_told_in_one_line(spec: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        list(resolve(spec).instance.tasks())
