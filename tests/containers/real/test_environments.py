"""Environments with a container, from the command line to the journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from base_image import IMAGE, list_left, list_of

import rollbook
from support.turns import serve_turns

HERE = Path(__file__).parent


def call(command: str, id: str = "1") -> dict[str, object]:
    arguments = json.dumps({"command": command})
    return {"tool_calls": [{"id": id, "function": {"name": "bash", "arguments": arguments}}]}


def write_script(folder: Path, *lines: dict[str, object]) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{path}"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "rollbook", *words]
    return subprocess.Popen(argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_model_works_in_a_container_and_verify_sees_what_it_did(tmp_path: Path) -> None:
    lines = [call("echo 'echo w0' > say.sh; pwd"), {"answer": "done"}]
    model = write_script(tmp_path, *lines)
    out = tmp_path / "run"
    rollbook.run(f"{HERE}/terminal_env.py:Terminal", model=model, samples=4, out=str(out), concurrency=2)
    run = rollbook.load(out)
    rewards = {line.score.reward for line in run.rollouts() if line.score}
    texts = [message.text for line in run.rollouts() for message in line.messages if message.role == "tool"]
    assert rewards == {1.0, 0.0}  # half of the samples begin with the second line, and do nothing
    assert set(texts) == {"/root\n"}
    assert list_left() == []


def test_a_container_that_dies_is_a_failure_with_three_attempts(tmp_path: Path) -> None:
    model = write_script(tmp_path, {"answer": "done"})
    ended = start(tmp_path, "run", f"{HERE}/terminal_env.py:Terminal?fail=open", "-m", model, "-o", "run")
    output = ended.communicate()[0]
    assert ended.returncode == 3, output
    assert "container_error" in output
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    failures = [line["failure"]["kind"] for line in lines if line.get("failure")]
    assert failures == ["container_error"] * 3
    assert list_left() == []


def test_an_image_that_is_missing_is_a_failure_with_one_attempt(tmp_path: Path) -> None:
    model = write_script(tmp_path, {"answer": "done"})
    os.environ["TERMINAL_IMAGE"] = "localhost/rollbook-test/none:1"
    try:
        ended = start(tmp_path, "run", f"{HERE}/terminal_env.py:Terminal", "-m", model, "-o", "run")
        output = ended.communicate()[0]
    finally:
        del os.environ["TERMINAL_IMAGE"]
    assert ended.returncode == 3, output
    assert "image_error" in output
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    assert [line["failure"]["kind"] for line in lines if line.get("failure")] == ["image_error"]


def test_plain_methods_use_a_container(tmp_path: Path) -> None:
    turns = [call("echo $STATE; sleep 30; echo late"), call("echo hello > word.txt; false"), {"answer": "done"}]
    with serve_turns(turns) as url:
        rollbook.run(f"{HERE}/plain_env.py:Plain", model=url, out=str(tmp_path / "run"), samples=1)
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert said[0].startswith("opened\n")
    assert said[0].endswith(" True]")
    assert said[1] == "[1 False]"
    assert rollout.score
    assert rollout.score.reward == 1.0
    assert list_left() == []


def test_plain_rollouts_with_containers_run_at_the_same_time(tmp_path: Path) -> None:
    (tmp_path / "meet").mkdir()
    with serve_turns([call("echo hello > /root/word.txt"), {"answer": "done"}]) as url:
        spec = f"{HERE}/plain_env.py:Plain?meet={tmp_path}/meet"
        rollbook.run(spec, model=url, out=str(tmp_path / "run"), samples=3, concurrency=3)
    scores = [rollout.score for rollout in rollbook.load(tmp_path / "run").rollouts()]
    assert [score.reward for score in scores if score] == [1.0] * 3


@pytest.mark.parametrize(
    ("fault", "kind", "says"),
    [
        ("exit", "environment_error", "exited with status 9 during open"),
        ("hang", "environment_error", "open took longer than 20 s"),
        ("type", "environment_error", "TypeError: "),
        ("method", "environment_error", "TypeError: "),
    ],
)
def test_plain_methods_that_fail_leave_nothing(tmp_path: Path, fault: str, kind: str, says: str) -> None:
    out, model = tmp_path / "run", write_script(tmp_path, {"answer": "done"})
    rollbook.run(f"{HERE}/plain_env.py:Plain?fault={fault}", model=model, out=str(out), allow_shortfall=True)
    (failure,) = [failure for _, _, failure in rollbook.load(out).failures()]
    assert failure.kind == kind
    assert says in failure.message
    assert list_left() == []


def test_the_solution_of_a_plain_environment_gets_its_reward(tmp_path: Path) -> None:
    for agent, reward in (("oracle", 1.0), ("nop", 0.0)):
        rollbook.run(f"{HERE}/plain_env.py:Plain", agent=agent, out=str(tmp_path / agent))
        (rollout,) = rollbook.load(tmp_path / agent).rollouts()
        assert rollout.score
        assert rollout.score.reward == reward
    checked = start(tmp_path, "check", f"{HERE}/plain_env.py:Plain")
    output = checked.communicate()[0]
    assert checked.returncode == 0, output
    assert list_left() == []


def test_the_example_of_the_documentation_runs(tmp_path: Path) -> None:
    page = (HERE.parents[2] / "docs" / "containers.md").read_text()
    source = page.partition("```python title=words.py\n")[2].partition("```")[0]
    (tmp_path / "words.py").write_text(source.replace("debian:bookworm", IMAGE))
    with serve_turns([call("echo hello > /root/word.txt"), {"answer": "done"}]) as url:
        rollbook.run(f"{tmp_path}/words.py:Words", model=url, out=str(tmp_path / "run"), concurrency=2)
    scores = {rollout.task.id: rollout.score for rollout in rollbook.load(tmp_path / "run").rollouts()}
    assert {name: score.reward for name, score in scores.items() if score} == {"hello": 1.0, "world": 0.0}
    assert list_left() == []


def wait_for_containers(pid: int) -> None:
    deadline = time.monotonic() + 60
    while not list_of(pid):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_until_nothing_is_left() -> None:
    deadline = time.monotonic() + 60
    while left := list_left():
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def test_nothing_is_left_after_ctrl_c_or_kill_and_the_run_resumes(tmp_path: Path) -> None:
    model = write_script(tmp_path, {"answer": "done", "delay_s": 2})
    run = start(tmp_path, "run", f"{HERE}/terminal_env.py:Terminal", "-m", model, "-o", "run", "-k", "6", "-c", "2")
    wait_for_containers(run.pid)
    run.send_signal(signal.SIGINT)
    output = run.communicate()[0]
    assert run.returncode in (75, 130), output
    wait_until_nothing_is_left()
    run = start(tmp_path, "resume", "run")
    wait_for_containers(run.pid)
    run.kill()
    run.communicate()
    wait_until_nothing_is_left()
    run = start(tmp_path, "resume", "run")
    output = run.communicate()[0]
    assert run.returncode == 0, output
    assert len([r for r in rollbook.load(str(tmp_path / "run")).rollouts() if r.score]) == 6
    assert list_left() == []
