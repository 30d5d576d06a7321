"""Harbor's task folders, played by the oracle, by nobody and by a scripted model in real containers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from base_image import CRASH_FIRST_PROCESS, IMAGE, RUNTIME, list_left, podman_only

import rollbook
from rollbook.containers import ImageBuild
from rollbook.core import choose_hint

TASKS = Path(__file__).parents[1] / "tasks"
BROKEN = Path(__file__).parents[1] / "broken_tasks"
LIMITS = Path(__file__).parents[1] / "limit_tasks"
NAMES = sorted(folder.name for folder in TASKS.iterdir())


def play(out: Path, path: Path, agent: str, **options: object) -> dict[str, rollbook.Rollout]:
    rollbook.run(f"harbor:{path}", agent=agent, out=str(out), concurrency=3, allow_shortfall=True, **options)
    return {rollout.task.id: rollout for rollout in rollbook.load(out).rollouts()}


def rewards(rollouts: dict[str, rollbook.Rollout]) -> dict[str, float]:
    return {name: rollout.score.reward for name, rollout in rollouts.items() if rollout.score}


def test_the_oracle_gets_every_reward_and_its_artifacts_are_kept(tmp_path: Path) -> None:
    rollouts = play(tmp_path / "run", TASKS, "oracle")
    assert rewards(rollouts) == dict.fromkeys(NAMES, 1.0)
    parts = {name: rollout.score.parts for name, rollout in rollouts.items() if rollout.score and rollout.score.parts}
    assert parts == {"several-rewards": {"tidy": 1.0}, "named-reward": {"speed": 0.5}}
    kept = next((tmp_path / "run" / "artifacts").glob("kept-artifacts*"))
    found = {str(path.relative_to(kept)): path.read_text() for path in kept.rglob("*") if path.is_file()}
    assert found["artifacts/app/report/summary.txt"] == "ok\n"
    assert found["artifacts/renamed/notes.md"] == "notes\n"
    assert found["artifacts/logs/artifacts/extra.txt"] == "published\n"
    assert found["verifier/reward.txt"] == "1\n"
    notes = rollouts["kept-artifacts"].outcome["steps"][0]["notes"]
    assert len(notes) == 1
    assert "/app/none" in notes[0]
    assert [step["name"] for step in rollouts["two-steps"].outcome["steps"]] == ["first", "second"]
    assert not list((tmp_path / "run" / "artifacts").glob("two-steps*/**/tests-of-the-first-step"))
    assert list_left() == []


def test_nobody_gets_a_reward_for_nothing(tmp_path: Path) -> None:
    rollouts = play(tmp_path / "run", TASKS, "nop")
    assert rewards(rollouts) == dict.fromkeys(NAMES, 0.0)
    assert len(rollouts["two-steps"].outcome["steps"]) == 1  # the second is not reached
    assert list_left() == []


@pytest.mark.parametrize(
    ("task", "kind", "attempts", "says"),
    [
        ("no-reward", "verifier_error", 1, r"neither reward.json nor reward.txt \(exit code 3\): looked"),
        ("bad-reward", "invalid_reward", 1, "no number"),
        ("linked-reward", "verifier_error", 1, "neither"),
        ("late-tests", "verifier_timeout", 2, "longer than 1 s"),
        ("broken-build", "image_error", 1, "Dockerfile cannot be built"),
        ("missing-image", "image_error", 1, "localhost/rollbook-test/none:1"),
        pytest.param("missing-workdir", "image_error", 1, "/nowhere", marks=podman_only),  # docker makes the folder
        ("never-healthy", "container_error", 3, "healthcheck failed 3 times: exit code 1: ill"),
    ],
)
def test_a_failure_is_never_a_score(tmp_path: Path, task: str, kind: str, attempts: int, says: str) -> None:
    rollbook.run(f"harbor:{BROKEN / task}", agent="oracle", out=str(tmp_path / "run"), allow_shortfall=True)
    (failure,) = [failure for _, _, failure in rollbook.load(tmp_path / "run").failures()]
    assert failure.kind == kind
    assert re.search(says, failure.message), failure.message
    if kind in ("verifier_error", "invalid_reward"):  # reverify could not run these tests again
        assert failure.message.endswith("fix them, then start a new run")
        assert choose_hint(kind, failure.message) == ""
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    assert len([line for line in lines if line.get("failure")]) == attempts
    assert not [line for line in lines if line.get("reward") is not None]
    assert list_left() == []


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"tool_calls": [{"id": "1", "function": {"name": name, "arguments": json.dumps(arguments)}}]}


def test_a_model_plays_a_terminal_task_of_many_turns(tmp_path: Path) -> None:
    from support.turns import serve_turns

    turns = [
        call("bash", command="cd /app; x=1; export y=2; ls"),
        call("bash", command="pwd; echo $x$y; cat sorting.py"),
        call("bash", command="sleep 60", timeout_s=1),
        call("bash", command="false"),
        call("bash", command="i=0; while [ $i -lt 9999 ]; do echo line $i; i=$((i+1)); done"),
        call("bash", command="exit 4"),
        call("edit_file", path="/app/sorting.py", old="not there", new=""),
        call("edit_file", path="/app/sorting.py", old="sorted(numbers)", new="sorted(numbers, reverse=True)"),
        call("bash", command="cat /app/sorting.py"),
        {"answer": "It is fixed."},
    ]
    with serve_turns(turns) as url:
        out = tmp_path / "run"
        rollbook.run(f"harbor:{TASKS / 'fix-program'}", model=url, out=str(out))
    (rollout,) = rollbook.load(out).rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert said[0] == "sorting.py"
    assert said[1].startswith("/app\n12\ndef largest")
    assert "[ended after 1 s]" in said[2]
    assert said[3] == "[exit code 1]"
    assert said[4].startswith("line 0\n")
    assert said[4].endswith("line 9998")
    assert "bytes left out here" in said[4]
    assert said[5] == "[exit code 4]\n[the shell ended; the next command runs in a new one]"
    assert "occurs 0 times" in said[6]
    assert "reverse=True" in said[8]
    assert rollout.score
    assert rollout.score.reward == 1.0


def test_the_deadline_of_the_agent_ends_it_and_its_work_is_scored(tmp_path: Path) -> None:
    from support.turns import serve_turns

    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "write-word", task], check=True)
    (task / "task.toml").write_text(
        (task / "task.toml").read_text().replace("timeout_sec = 60.0", "timeout_sec = 3.0", 1)
    )
    turns = [call("bash", command="echo hello > word.txt"), *[call("bash", command="sleep 2")] * 5, {"answer": "x"}]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{task}", model=url, out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.ended == "agent_timeout"
    assert rollout.score
    assert rollout.score.reward == 1.0


def test_storage_over_the_limit_ends_the_agent_and_its_work_is_scored(tmp_path: Path) -> None:
    rollouts = play(tmp_path / "run", LIMITS / "too-much-disk", "oracle")
    assert [(rollout.ended, rollout.attempt) for rollout in rollouts.values()] == [("storage_limit", 1)]
    assert rewards(rollouts) == {"too-much-disk": 0.5}  # the tests find what was written before, and write 15 MB more
    assert list_left() == []


def test_storage_has_a_limit_also_if_the_task_names_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.environments.harbor.harbor.DEFAULT_STORAGE_MB", 20)
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", LIMITS / "too-much-disk", task], check=True)
    (task / "task.toml").write_text((task / "task.toml").read_text().replace("storage_mb = 20\n", ""))
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.ended == "storage_limit"


def test_memory_eaten_and_shells_killed_by_the_agent_are_scored(tmp_path: Path) -> None:
    from support.turns import serve_turns

    turns = [
        call("bash", command="cd /app; tail /dev/zero"),
        call("bash", command="kill -9 $PPID $$"),
        call("edit_file", path="/app/word.txt", old="", new="hello"),
        call("bash", command="kill -9 $PPID $$"),
        call("bash", command="x=1; while :; do x=$x$x; done"),
        call("bash", command="pwd"),
        {"answer": "done"},
    ]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{TASKS / 'write-word'}", model=url, out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert said[0].endswith("[exit code 137]")
    assert "the shell was killed" in said[1]
    assert "wrote /app/word.txt" in said[2]
    assert "the shell was killed" in said[3]
    assert "ended" in said[4] or "allocate" in said[4] or "killed" in said[4], said[4]
    assert said[5] == "/app"
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)


def play_with_little_memory(folder: Path, turns: list[dict[str, object]]) -> rollbook.Rollout:
    from support.turns import serve_turns

    task = folder / "task"
    subprocess.run(["cp", "-r", TASKS / "write-word", task], check=True)
    config = (task / "task.toml").read_text().replace("memory_mb = 256", "memory_mb = 40")
    (task / "task.toml").write_text(config.replace("timeout_sec = 60.0", "timeout_sec = 20.0", 1))
    with serve_turns([*turns, {"answer": "x"}]) as url:
        rollbook.run(f"harbor:{task}", model=url, out=str(folder / "run"))
    (rollout,) = rollbook.load(folder / "run").rollouts()
    return rollout


def test_a_container_without_memory_for_any_process_is_scored(tmp_path: Path) -> None:
    fill = "echo hello > /app/word.txt; while :; do printf %4096s >> /dev/shm/x; done"  # no process holds this memory
    rollout = play_with_little_memory(tmp_path, [call("bash", command=fill)] * 8)
    # The kernel kills the shells, or refuses to write: then the loop lasts until the agent's time is over.
    assert rollout.ended in ("memory_limit", "agent_timeout")
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)


def test_an_agent_cannot_avoid_its_score_by_the_end_of_its_container_for_memory(tmp_path: Path) -> None:
    fill = "echo hello > /app/word.txt; head -c 20000000 /dev/zero > /dev/shm/x"
    sacrifice = f"{fill}; echo 1000 > /proc/1/oom_score_adj; tail /dev/zero"
    rollout = play_with_little_memory(tmp_path, [call("bash", command=sacrifice)])
    assert rollout.ended == "memory_limit"
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)


def test_an_agent_cannot_avoid_its_score_by_a_crash_of_the_first_process(tmp_path: Path) -> None:
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "write-word", task], check=True)
    (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\necho hello > /app/word.txt\n{CRASH_FIRST_PROCESS}\n")
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert (rollout.ended, rollout.attempt) == ("container_crash", 1)
    assert rollout.score
    assert rollout.score.reward == 1.0


def test_a_crash_of_the_first_process_while_the_tests_run_is_a_failure_of_the_tests(tmp_path: Path) -> None:
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "write-word", task], check=True)
    with (task / "environment" / "Dockerfile").open("a") as file:
        file.write('\nENTRYPOINT ["/bin/bash", "-c", "python3 -c pass; exec \\"$@\\"", "bash"]\n')
    # A module that the interpreter loads is work of the agent: the entrypoint runs it next to the tests.
    wait = "while not os.path.exists('/begun'):\n        time.sleep(0.05)\n    os.rename('/begun', '/ended')"
    crash = f"{wait}\n    os.system(open('/crash').read())\n    os._exit(0)"
    code = f"import os, time\nif not os.path.exists('/ended') and os.fork() == 0:\n    os.setsid()\n    {crash}\n"
    module = "$(python3 -c 'import os; print(os.path.dirname(os.__file__))')/sitecustomize.py"
    files = {"/crash": CRASH_FIRST_PROCESS, module: code}
    script = "".join(f"rm -f {path}; cat > {path} <<'END'\n{text}\nEND\n" for path, text in files.items())
    (task / "solution" / "solve.sh").write_text(f"#!/bin/bash\n{script}")
    (task / "tests" / "test.sh").write_text("#!/bin/bash\ntouch /begun\nsleep 30\necho 1 > /logs/verifier/reward.txt\n")
    play(tmp_path / "run", task, "oracle")
    ((_, _, failure),) = rollbook.load(tmp_path / "run").failures()
    assert failure.kind == "verifier_error"
    assert "the tests ended their container (container_crash)" in failure.message
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    assert len([line for line in lines if line.get("failure")]) == 1


def test_tests_that_write_too_much_are_a_failure_of_the_tests_at_once(tmp_path: Path) -> None:
    task = copy_task("write-word", tmp_path / "task", "memory_mb", "storage_mb = 20\nmemory_mb")
    fill = "for i in 1 2 3 4 5; do head -c 15000000 /dev/zero > /app/$i; done; sleep 60"
    (task / "tests" / "test.sh").write_text(f"#!/bin/bash\n{fill}\necho 1 > /logs/verifier/reward.txt\n")
    play(tmp_path / "run", task, "oracle")
    ((_, _, failure),) = rollbook.load(tmp_path / "run").failures()
    assert failure.kind == "verifier_error"
    assert "the tests ended their container (storage_limit)" in failure.message


FILL_PROCESSES = """(for i in $(seq 1500); do sleep 100 & done) 2>/dev/null &
until set -- /proc/[0-9]*; [ $# -ge 1020 ]; do :; done
kill -9 $PPID $$"""


@pytest.mark.parametrize(
    ("commands", "timeout_s", "ended"),
    [
        (["rm -f /bin/sh /bin/bash /usr/bin/dash; exit", "true", "true"], 30, ""),
        (["rm -f /bin/sh; sleep 100", "rm -f /bin/bash /usr/bin/dash; exit", "true"], 3, ""),
        ([FILL_PROCESSES, "true", "true"], 50, "process_limit"),
    ],
)
def test_an_agent_cannot_avoid_its_score_by_the_loss_of_its_shell(
    tmp_path: Path, commands: list[str], timeout_s: float, ended: str
) -> None:
    from support.turns import serve_turns

    first = call("bash", command="echo hello > /app/word.txt")
    turns = [first, *(call("bash", command=command, timeout_s=timeout_s) for command in commands), {"answer": "done"}]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{TASKS / 'write-word'}", model=url, out=str(tmp_path / "run"), allow_shortfall=True)
    assert [failure.message for _, _, failure in rollbook.load(tmp_path / "run").failures()] == []
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)
    assert rollout.ended in (ended, "")  # a few processes end with the shell: sometimes there is room for a new one


SIGNAL_ALL = """setsid nohup python3 -c "
import os
while not os.path.exists('/app/begin'): pass
while True:
    for name in os.listdir('/proc'):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            try: os.kill(int(name), {signal})
            except OSError: pass
" > /dev/null 2>&1 &"""


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_cannot_avoid_its_score_by_signals_to_the_editor(
    tmp_path: Path, signal_number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.turns import serve_turns

    monkeypatch.setattr("rollbook.containers.handle.INTERRUPT_S", 2.0)
    monkeypatch.setattr("rollbook.environments.harbor.terminal.EDIT_S", 2.0)
    monkeypatch.setattr("rollbook.environments.harbor.terminal.SHELL_S", 2.0)
    paths = ["/app/word.txt", "/app/begin", "/app/more", "/app/more"]
    turns = [call("edit_file", path=path, old="", new="hello") for path in paths]
    turns.insert(1, call("bash", command=SIGNAL_ALL.format(signal=int(signal_number))))
    with serve_turns([*turns, {"answer": "done"}]) as url:
        rollbook.run(f"harbor:{TASKS / 'write-word'}", model=url, out=str(tmp_path / "run"), allow_shortfall=True)
    assert [failure.message for _, _, failure in rollbook.load(tmp_path / "run").failures()] == []
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert said[0] == "wrote /app/word.txt, 5 characters"
    assert said[-1].startswith("[/app/more cannot be edited: ")
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)


def test_an_agent_cannot_avoid_its_score_by_stopping_its_shell_where_commands_have_little_time(tmp_path: Path) -> None:
    from support.turns import serve_turns

    turns = [
        call("edit_file", path="/app/word.txt", old="", new="hello"),
        call("bash", command=SIGNAL_ALL.format(signal=int(signal.SIGSTOP))),
        call("edit_file", path="/app/begin", old="", new="now"),
        call("bash", command="sleep 0.9"),
        {"answer": "done"},
    ]
    limits = rollbook.Limits(tool_s=1.0)
    with serve_turns(turns) as url:
        rollbook.run(
            f"harbor:{TASKS / 'write-word'}", model=url, out=str(tmp_path / "run"), limits=limits, allow_shortfall=True
        )
    assert [failure.message for _, _, failure in rollbook.load(tmp_path / "run").failures()] == []
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)


def test_an_agent_whose_background_process_prints_without_end_is_scored(tmp_path: Path) -> None:
    from support.turns import serve_turns

    turns = [
        call("edit_file", path="/app/word.txt", old="", new="hello"),
        call("bash", command="yes & sleep 1"),
        call("bash", command="rm /no/such/file"),
        {"answer": "done"},
    ]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{TASKS / 'write-word'}", model=url, out=str(tmp_path / "run"), allow_shortfall=True)
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)
    assert "[exit code 1]" in [message.text for message in rollout.messages if message.role == "tool"][-1]
    assert list_left() == []


def test_an_agent_cannot_avoid_its_score_by_removing_the_group_of_the_verifier(tmp_path: Path) -> None:
    user = '[verifier]\nuser = "nobody:nogroup"'
    task = copy_task("write-word", tmp_path / "task", "[verifier]", user)
    (task / "solution" / "solve.sh").write_text("echo hello > /app/word.txt; sed -i /^nogroup/d /etc/group")
    assert rewards(play(tmp_path / "run", task, "oracle")) == {"task": 1.0}


def test_a_full_disk_of_the_host_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbook.containers.host.LEAST_FREE_BYTES", 1 << 60)
    play(tmp_path / "run", TASKS / "write-word", "oracle")
    failures = [failure for _, _, failure in rollbook.load(tmp_path / "run").failures()]
    assert [failure.kind for failure in failures] == ["container_error"]
    assert "the disk of this machine is full" in failures[0].message


def test_a_task_with_public_network_is_refused_before_the_start(tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", TASKS / "write-word", tmp_path / "task"], check=True)
    (tmp_path / "task" / "task.toml").write_text("")
    command = [
        sys.executable,
        "-m",
        "rollbook",
        "run",
        f"harbor:{tmp_path}/task",
        "--agent",
        "nop",
        "-o",
        f"{tmp_path}/r",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "--allow-network" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert subprocess.run([*command, "--allow-network"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("task", ["write-word", "users-and-variables", "two-steps"])
def test_a_program_inside_reaches_its_model_and_nothing_else(
    tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {
        "write-word": "echo hello > /app/word.txt",
        "users-and-variables": "cd; echo $(id -un) $COLOUR > who.txt",
        "two-steps": "echo one > /app/one.txt; echo two > /app/two.txt",
    }
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"answer": commands[task], "prompt_ids": [1], "ids": [2, 3], "logprobs": [0.0, 0.0]}))
    monkeypatch.setenv("SECRET_OF_THE_HOST", "1")
    monkeypatch.chdir(Path(__file__).parent)
    out = tmp_path / "run"
    agent = "program:bash agent.sh"
    rollbook.run(f"harbor:{TASKS / task}", agent=agent, model=f"scripted:{script}", out=str(out))
    (rollout,) = rollbook.load(out).rollouts(tokens=True)
    assert rollout.score
    assert rollout.score.reward == 1.0
    assert len(rollout.turns) == (4 if task == "two-steps" else 2)
    assert [turn.ids for turn in rollout.turns] == [[2, 3]] * len(rollout.turns)
    assert rollout.messages[-1].text == "done"
    assert list_left() == []


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("exec python3 -c 'x = bytearray(10**9)'", "memory_limit"),
        ("kill -9 -1", ""),
        ("f() { f | f & }; f; f; sleep 3; exit 1", "process_limit"),
    ],
)
def test_what_a_program_does_to_its_container_is_scored(
    tmp_path: Path, command: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.jsonl"
    answer = f"echo hello > /app/word.txt; {command}"
    script.write_text(json.dumps({"answer": answer, "prompt_ids": [1], "ids": [2, 3], "logprobs": [0.0, 0.0]}))
    monkeypatch.chdir(Path(__file__).parent)
    out = tmp_path / "run"
    rollbook.run(
        f"harbor:{TASKS / 'write-word'}", agent="program:bash agent.sh", model=f"scripted:{script}", out=str(out)
    )
    (rollout,) = rollbook.load(out).rollouts()
    assert rollout.score
    assert (rollout.score.reward, rollout.ended or "", rollout.attempt) == (1.0, ended, 1)
    assert list_left() == []


@pytest.mark.parametrize(
    ("attack", "mode", "ended"),
    [
        ("rm -rf /logs/agent; touch /logs/agent", "shared", ""),
        ("rm -rf /logs/agent; ln -s /proc /logs/agent", "shared", ""),
        ("rm -rf /logs; ln -s /nowhere /logs", "shared", ""),
        ("rm /logs/agent/task.json; mkfifo /logs/agent/task.json", "shared", ""),
        ("rm -rf /.rollbook-agent; ln -s /etc /.rollbook-agent", "shared", ""),
        ("cp /bin/false /usr/bin/rm", "separate", "broken_files"),
    ],
)
def test_what_a_program_does_in_one_step_does_not_avoid_the_score_of_the_next(
    tmp_path: Path, attack: str, mode: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "two-steps", task], check=True)
    if mode == "separate":
        tests = 'environment_mode = "separate"\n'
        config = (
            (task / "task.toml")
            .read_text()
            .replace("min_reward = 1.0\n", f'artifacts = ["/app/one.txt"]\n[steps.verifier]\n{tests}', 1)
        )
        (task / "task.toml").write_text(config)
    answer = f"if [ -e one.txt ]; then echo two > two.txt; exit 0; fi; echo one > one.txt; {attack}; exit 0"
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"answer": answer, "prompt_ids": [1], "ids": [2, 3], "logprobs": [0.0, 0.0]}))
    monkeypatch.chdir(Path(__file__).parent)
    rollbook.run(f"harbor:{task}", agent="program:bash agent.sh", model=f"scripted:{script}", out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert (rollout.score.reward, rollout.ended or "", rollout.attempt) == (0.5 if ended else 1.0, ended, 1)
    assert list_left() == []


def test_logs_of_tests_that_are_too_large_are_left_out_but_not_the_reward(tmp_path: Path) -> None:
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "write-word", task], check=True)
    with (task / "tests" / "test.sh").open("a") as file:
        file.write("\nhead -c 70M /dev/zero > /logs/verifier/big.log\n")
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.score
    assert rollout.score.reward == 1.0
    (note,) = rollout.outcome["steps"][0]["tests"]["notes"]
    assert note.startswith("the logs of the tests are not kept: /logs/verifier is larger than")
    kept = [path.name for path in (tmp_path / "run" / "artifacts").rglob("*") if path.is_file()]
    assert "big.log" not in kept


def test_a_folder_in_place_of_a_file_takes_its_place_in_the_container_of_separate_tests(tmp_path: Path) -> None:
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "separate-image", task], check=True)
    config = (task / "task.toml").read_text()
    (task / "task.toml").write_text(config.replace("/app/answer.txt", "/etc/issue"))
    (task / "solution" / "solve.sh").write_text("#!/bin/bash\nrm -f /etc/issue; mkdir -p /etc/issue/x\n")
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.score
    assert rollout.score.reward == 0.0


@pytest.mark.parametrize(
    ("entrypoint", "reward"),
    [
        ('"/usr/bin/tini", "-g", "--"', 1.0),
        ('"/usr/bin/tini", "--", "bash", "-c", "exec \\"$@\\"", "bash"', 1.0),
        ('"bash", "-c", "\\"$@\\"; exit 3", "bash"', None),
    ],
)
def test_an_entrypoint_that_runs_commands_as_its_child_is_an_image_error(
    tmp_path: Path, entrypoint: str, reward: float | None
) -> None:
    task = tmp_path / "task"
    subprocess.run(["cp", "-r", TASKS / "write-word", task], check=True)
    with (task / "environment" / "Dockerfile").open("a") as file:
        file.write(f"\nENTRYPOINT [{entrypoint}]\n")
    found = play(tmp_path / "run", task, "oracle")
    assert rewards(found) == ({"task": reward} if reward else {})
    failures = [failure for _, _, failure in rollbook.load(tmp_path / "run").failures()]
    expected = [] if reward else [("image_error", True)]
    assert [(each.kind, "runs commands as its child" in each.message) for each in failures] == expected
    assert list_left() == []


def test_a_program_cannot_read_a_file_of_root_by_a_link_in_place_of_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = copy_task("write-word", tmp_path / "task", "[agent]", '[agent]\nuser = "nobody"')
    with (task / "environment" / "Dockerfile").open("a") as file:
        file.write("RUN chmod 777 /app && chmod 700 /root && echo 7hidden7 > /root/secret\n")
    answer = "echo hello > /app/word.txt; ln -sf /root/secret /logs/agent/answer.txt; ROLLBOOK_ANSWER=/dev/null"
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"answer": answer, "prompt_ids": [1], "ids": [2, 3], "logprobs": [0.0, 0.0]}))
    monkeypatch.chdir(Path(__file__).parent)
    rollbook.run(f"harbor:{task}", agent="program:bash agent.sh", model=f"scripted:{script}", out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert rollout.score.reward == 1.0
    assert not any("7hidden7" in message.text for message in rollout.messages)


def test_an_answer_of_a_program_that_is_too_large_is_left_out_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = "echo hello > /app/word.txt; ROLLBOOK_ANSWER=/dev/null; head -c 1048577 /dev/zero > /logs/agent/answer.txt"
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"answer": answer, "prompt_ids": [1], "ids": [2, 3], "logprobs": [0.0, 0.0]}))
    monkeypatch.chdir(Path(__file__).parent)
    task, agent = TASKS / "write-word", "program:bash agent.sh"
    rollbook.run(f"harbor:{task}", agent=agent, model=f"scripted:{script}", out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert rollout.score.reward == 1.0
    assert rollout.text == "[ROLLBOOK_ANSWER is left out: /logs/agent/answer.txt is larger than 1048576 bytes]"


def test_a_user_of_the_agent_that_the_image_lacks_is_an_image_error(tmp_path: Path) -> None:
    task = copy_task("write-word", tmp_path / "task", "[agent]", '[agent]\nuser = "ghost"')
    assert play(tmp_path / "run", task, "nop") == {}
    (failure,) = [failure for _, _, failure in rollbook.load(tmp_path / "run").failures()]
    assert failure.kind == "image_error"
    assert "[agent] user = 'ghost': the image has no such user" in failure.message
    by_number = copy_task("write-word", tmp_path / "number", "[agent]", "[agent]\nuser = 4321")
    assert rewards(play(tmp_path / "run2", by_number, "nop")) == {"number": 0.0}


def kill_clients_once(mark: str) -> None:
    """Wait for a process with a mark in its command line, and kill every `exec` of the runtime that we started."""
    while not any(mark in line for _, line in list_processes()):
        time.sleep(0.1)
    for pid, line in list_processes():
        if line.startswith(f"{RUNTIME} exec") and pid in list_children():
            os.kill(pid, signal.SIGKILL)


def list_processes() -> list[tuple[int, str]]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append((int(path.name), (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found


def list_children() -> list[int]:
    lists = Path("/proc/self/task").glob("*/children")
    return [int(pid) for path in lists for pid in path.read_text().split()]


@pytest.mark.parametrize("agent", ["", "program:bash agent.sh"])
def test_a_client_that_is_killed_on_this_machine_is_a_failure_and_no_score(
    tmp_path: Path, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.turns import serve_turns

    monkeypatch.chdir(Path(__file__).parent)
    mark = f"sleep 9.{os.getpid()}{bool(agent):d}"
    work = f"echo hello > /app/word.txt; {mark}"
    turns = [{"answer": work}] if agent else [call("bash", command=work), {"answer": "done"}]
    killer = threading.Thread(target=kill_clients_once, args=(mark,), daemon=True)
    killer.start()
    with serve_turns(turns) as url:
        options = {"agent": agent} if agent else {}
        rollbook.run(f"harbor:{TASKS / 'write-word'}", model=url, out=str(tmp_path / "run"), **options)
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    failures = [line["failure"] for line in lines if line.get("failure")]
    assert [failure["kind"] for failure in failures] == ["container_error"]
    assert "killed on this machine" in failures[0]["message"]
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 2)
    assert list_left() == []


def copy_task(name: str, folder: Path, old: str, new: str) -> Path:
    subprocess.run(["cp", "-r", TASKS / name, folder], check=True)
    config = (folder / "task.toml").read_text()
    assert old in config
    (folder / "task.toml").write_text(config.replace(old, new, 1))
    return folder


def test_an_image_of_separate_tests_without_tests_is_an_image_error(tmp_path: Path) -> None:
    task = tmp_path / "task"
    shutil.copytree(TASKS / "separate-tests", task)
    config = (task / "task.toml").read_text()
    own = f'[verifier.environment]\ndocker_image = "{IMAGE}"\nnetwork_mode = "no-network"\n'
    (task / "task.toml").write_text(f"{config}\n{own}")
    play(tmp_path / "run", task, "oracle")
    ((_, _, failure),) = rollbook.load(tmp_path / "run").failures()
    assert failure.kind == "image_error"
    assert "the image of the separate tests has no /tests/test.sh" in failure.message
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    assert len([line for line in lines if line.get("failure")]) == 1


def test_the_deadline_of_the_agent_ends_the_oracle_and_its_work_is_scored(tmp_path: Path) -> None:
    task = copy_task("write-word", tmp_path / "task", "timeout_sec = 60.0", "timeout_sec = 3.0")
    with (task / "solution" / "solve.sh").open("a") as file:
        file.write("\nsleep 100\n")
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.ended == "agent_timeout"
    assert rollout.score
    assert rollout.score.reward == 1.0


def test_a_drain_does_not_wait_for_a_build(tmp_path: Path) -> None:
    seconds = str(1_000_000 + time.time_ns() % 1_000_000)
    task, out = tmp_path / "task", tmp_path / "run"
    shutil.copytree(TASKS / "write-word", task)
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nRUN sleep {seconds}\n")
    command = [sys.executable, "-m", "rollbook", "run", f"harbor:{task}", "--agent", "oracle", "-k", "2"]
    worker = subprocess.Popen([*command, "-o", str(out)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not any(f"sleep {seconds}" in words for _, words in list_processes()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    worker.send_signal(signal.SIGINT)
    said = worker.communicate(timeout=30)[1]
    assert worker.returncode == 75, said
    assert "interrupted with 2 rollouts to go: rollbook resume" in said
    assert not any(f"sleep {seconds}" in words for _, words in list_processes())
    assert not list(rollbook.load(out).failures())
    assert list_left() == []


def test_the_healthcheck_of_a_separate_container_of_tests_is_awaited(tmp_path: Path) -> None:
    check = '[verifier.environment.healthcheck]\ncommand = "echo ill; false"\nretries = 1\n'
    config = (TASKS / "separate-image" / "task.toml").read_text()
    task = copy_task("separate-image", tmp_path / "task", config, f"{config}\n{check}")
    play(tmp_path / "run", task, "oracle")
    (failure,) = [failure for _, _, failure in rollbook.load(tmp_path / "run").failures()]
    assert failure.kind == "container_error"
    assert "healthcheck failed 1 times: exit code 1: ill" in failure.message


def test_artifacts_never_take_the_place_of_others(tmp_path: Path) -> None:
    artifacts = """artifacts = [
  "/app/report",
  { source = "/app/notes", destination = "app/summary" },
  { source = "/app/report/", destination = "app/notes" },
]"""
    before = (TASKS / "kept-artifacts" / "task.toml").read_text().partition("\n")[0]
    task = copy_task("kept-artifacts", tmp_path / "task", before, artifacts)
    (task / "solution" / "solve.sh").write_text(
        "mkdir -p /app/report /app/notes; echo ok > /app/report/summary.txt; echo n > /app/notes/n.md\n"
    )
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    (kept,) = (tmp_path / "run" / "artifacts").iterdir()
    found = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    names = {"app/report/summary.txt", "app/summary/n.md", "app/notes/summary.txt"}
    assert {name for name in found if "/app/" in name} == {f"artifacts/{name}" for name in names}
    assert rollout.outcome["steps"][0]["notes"] == []


COPY_FAILS = """#!/bin/bash
case "$*" in
  "cp rollbook-"*":/{path} -") echo "Error: copying: read /var/lib/x: input/output error" >&2; exit 125 ;;
esac
exec {runtime} "$@"
"""


@pytest.mark.parametrize("path", ["app/answer.txt", "logs/verifier"])
def test_files_that_this_machine_cannot_copy_are_a_failure_and_no_score(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / RUNTIME
    program.parent.mkdir()
    program.write_text(COPY_FAILS.format(path=path, runtime=shutil.which(RUNTIME)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert play(tmp_path / "run", TASKS / "separate-tests", "oracle") == {}
    ((_, _, failure),) = rollbook.load(tmp_path / "run").failures()
    assert failure.kind == "container_error"
    assert f"/{path} cannot be copied: Error: copying: read /var/lib/x: input/output error" in failure.message
    assert list_left() == []


def test_artifacts_and_tests_may_have_any_size(tmp_path: Path) -> None:
    """An archive of 30,000 or 256,000 bytes is filled up with zeros that podman does not read."""
    task = copy_task("separate-tests", tmp_path / "task", '"/app/answer.txt"', '"/app/long.bin"')
    (task / "tests" / "data.bin").write_bytes(bytes(256_000))
    solve = task / "solution" / "solve.sh"
    solve.write_text(f"{solve.read_text()}\nhead -c 30000 /dev/zero > long.bin\n")
    test = task / "tests" / "test.sh"
    sizes = '"$(stat -c %s /tests/data.bin /app/long.bin | xargs)" = "256000 30000"'
    test.write_text(f"#!/bin/bash\n[ {sizes} ]\necho $((!$?)) > /logs/verifier/reward.txt\n")
    assert rewards(play(tmp_path / "run", task, "oracle")) == {"task": 1.0}


@pytest.mark.parametrize(
    ("fill", "why"),
    [
        ("head -c 9000000 /dev/zero > /logs/artifacts/big", "is larger than 1048576 bytes"),
        # podman follows the link, docker copies it
        ("rm -rf /logs/artifacts; ln -s / /logs/artifacts", "is larger than 1048576 bytes|it is a link"),
    ],
)
def test_an_artifact_that_is_too_large_is_left_out_and_the_work_is_scored(
    tmp_path: Path, fill: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.environments.harbor.artifacts.MAX_ARTIFACT_BYTES", 1 << 20)
    subprocess.run(["cp", "-r", TASKS / "write-word", tmp_path / "task"], check=True)
    (tmp_path / "task" / "solution" / "solve.sh").write_text(f"#!/bin/bash\necho hello > word.txt; {fill}\n")
    (rollout,) = play(tmp_path / "run", tmp_path / "task", "oracle").values()
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)
    notes = rollout.outcome["steps"][0]["notes"]
    assert all(note.startswith("artifact /logs/artifacts: ") for note in notes)
    assert re.search(why, notes[-1])


LINKED_WORK = "mkdir work; echo 7 > work/a; ln work/a work/b; ln -s b answer.txt; mv answer.txt work; ln -s / work/out"


def test_separate_tests_find_the_files_that_links_of_an_artifact_lead_to(tmp_path: Path) -> None:
    task = copy_task("separate-tests", tmp_path / "task", '"/app/answer.txt"', '"/app/work"')
    (task / "solution" / "solve.sh").write_text(f"{LINKED_WORK}; echo running > /run/live.txt\n")
    test = task / "tests" / "test.sh"
    test.write_text(test.read_text().replace("/app/answer.txt", "/app/work/answer.txt"))
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.score
    assert rollout.score.reward == 1.0
    note = "artifact /app/work: links that lead elsewhere or special files are left out: work/out"
    assert rollout.outcome["steps"][0]["notes"] == [note]
    assert reverify(tmp_path / "run", tmp_path / "again") == ([1.0], [])


def test_an_agent_cannot_avoid_its_score_by_work_that_the_setup_of_the_next_step_fails_on(tmp_path: Path) -> None:
    task = copy_task("two-steps", tmp_path / "task", 'command = "test -f /app/given.txt"', 'command = "true"')
    (task / "steps" / "first" / "solution" / "solve.sh").write_text(
        "#!/bin/bash\necho one > one.txt; mkdir setup.txt\n"
    )
    (task / "steps" / "second" / "tests" / "test.sh").write_text("#!/bin/bash\necho 0.25 > /logs/verifier/reward.txt\n")
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (0.625, 1)
    (note, *_) = rollout.outcome["steps"][1]["notes"]
    assert note.startswith("setup.sh of step second: exit code 1")


def test_the_setup_of_the_first_step_that_fails_is_a_failure(tmp_path: Path) -> None:
    task = copy_task("two-steps", tmp_path / "task", "[environment]", "[environment]")
    (task / "steps" / "first" / "workdir").mkdir()
    (task / "steps" / "first" / "workdir" / "setup.sh").write_text("exit 3\n")
    assert play(tmp_path / "run", task, "oracle") == {}
    ((_, _, failure),) = rollbook.load(tmp_path / "run").failures()
    assert failure.kind == "container_error"
    assert "setup.sh of step first: exit code 3" in failure.message


def test_nothing_of_the_tests_of_a_step_is_left_for_the_agent_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "7hidden7"
    monkeypatch.setenv("ROLLBOOK_TEST_SECRET", secret)
    variables = '[verifier.env]\nTOKEN = "${ROLLBOOK_TEST_SECRET}"\n\n[environment]'
    task = copy_task("two-steps", tmp_path / "task", "[environment]", variables)
    with (task / "tests" / "judge.sh").open("a") as file:
        file.write("\nsetsid sleep 1000 >/dev/null 2>&1 &\n")
    search = """import glob, os, re
word = "7hidden" + "7"
for path in set(glob.glob("/proc/[0-9]*/")) - {f"/proc/{os.getpid()}/"}:
    try:
        maps, memory = open(path + "maps").read(), open(path + "mem", "rb", 0)
        for start, end in re.findall(r"([0-9a-f]+)-([0-9a-f]+) rw", maps):
            memory.seek(int(start, 16))
            if word.encode() in memory.read(int(end, 16) - int(start, 16)):
                print("found", path)
    except (OSError, OverflowError):
        pass
"""
    solve = task / "steps" / "second" / "solution" / "solve.sh"
    (solve.parent / "search.py").write_text(search)
    look = "python3 /solution/search.py; cat /proc/[0-9]*/comm; ls -d /tests"
    solve.write_text(f"{solve.read_text()}{{ {look}; }} > /logs/artifacts/seen 2>&1\n")
    (rollout,) = play(tmp_path / "run", task, "oracle").values()
    assert rollout.score
    assert rollout.score.reward == 1.0
    (seen,) = (tmp_path / "run" / "artifacts").rglob("seen")
    assert "found" not in seen.read_text()
    assert "sleep" not in seen.read_text()
    assert "cannot access '/tests'" in seen.read_text()
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()


def test_check_tells_sound_tasks_from_broken_ones(tmp_path: Path) -> None:
    def check(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "rollbook", "check", f"harbor:{path}", "--json"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    sound = check(TASKS / "write-word")
    assert sound.returncode == 0, sound.stderr
    subprocess.run(["cp", "-r", TASKS / "write-word", tmp_path / "task"], check=True)
    (tmp_path / "task" / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (tmp_path / "task" / "solution" / "solve.sh").write_text("true\n")
    given = check(tmp_path / "task")
    assert given.returncode == 3
    faults = [each["check"] for each in json.loads(given.stdout)["findings"] if each["verdict"] == "unsound"]
    assert faults == ["doing nothing gets no reward"]
    broken = check(BROKEN / "no-reward")
    faults = [each["check"] for each in json.loads(broken.stdout)["findings"] if each["verdict"] == "unsound"]
    assert faults == ["tests give a reward"]


def test_a_run_is_extended_and_scored_again_by_another_reward(tmp_path: Path) -> None:
    task, out = TASKS / "several-rewards", tmp_path / "run"
    play(out, task, "oracle")
    command = [sys.executable, "-m", "rollbook"]
    again = [*command, "extend", str(out), "-k", "2"]
    assert subprocess.run(again, capture_output=True, check=False).returncode == 0
    assert len([rollout for rollout in rollbook.load(out).rollouts() if rollout.score]) == 2
    other = [*command, "reverify", str(out), "--env", f"harbor:{task}?reward=tidy", "-o", str(tmp_path / "other")]
    ended = subprocess.run(other, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    scores = [rollout.score for rollout in rollbook.load(tmp_path / "other").rollouts()]
    assert [(score.reward, score.parts) for score in scores if score] == [(1.0, {"reward": 1.0})] * 2


def reverify(run: Path, out: Path) -> tuple[list[float], list[str]]:
    """Score a run again; return its rewards and failures."""
    command = [sys.executable, "-m", "rollbook", "reverify", str(run), "-o", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr, ended.stderr
    assert list_left() == []
    book = rollbook.load(out)
    failures = [f"{failure.kind}: {failure.message}" for _, _, failure in book.failures()]
    return [rollout.score.reward for rollout in book.rollouts() if rollout.score], failures


def test_separate_tests_run_again_from_the_artifacts_of_the_run(tmp_path: Path) -> None:
    task, run = tmp_path / "separate-tests", tmp_path / "run"
    shutil.copytree(TASKS / "separate-tests", task)
    rollbook.run(f"harbor:{task}", agent="oracle", samples=2, out=str(run), allow_shortfall=True)
    test = task / "tests" / "test.sh"
    test.write_text(test.read_text() + "\necho 0.25 > /logs/verifier/reward.txt\n")
    assert reverify(run, tmp_path / "again") == ([0.25, 0.25], [])
    rewards, failures = reverify(tmp_path / "again", tmp_path / "third")
    assert rewards == []
    assert "`rollbook reverify` made never does: reverify the first run again" in failures[0]
    kept = next(path for path in (run / "artifacts").glob("*/artifacts/**/*") if path.is_file())
    kept.write_text("forged")
    rewards, (failure,) = reverify(run, tmp_path / "forged")
    assert rewards == [0.25]
    assert re.fullmatch("verifier_error: the artifacts in .* were changed or removed", failure)


def test_tests_do_not_run_again_without_an_artifact_that_was_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rollbook.environments.harbor.artifacts.MAX_ARTIFACT_BYTES", 10)
    run = tmp_path / "run"
    play(run, TASKS / "separate-tests", "oracle")
    rewards, (failure,) = reverify(run, tmp_path / "again")
    assert rewards == []
    assert failure.startswith("verifier_error: the run does not keep the artifact /app/answer.txt")


@pytest.mark.parametrize(
    ("task", "word"), [("tool-server", "green-root---polite"), ("tool-server-by-url", "green-by-url")]
)
def test_the_model_has_the_tools_of_the_mcp_servers_of_its_task(
    tmp_path: Path, task: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from support.turns import serve_turns

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    turns = [
        call("word_of", colour="green"),
        call("word_of", shade="dark"),
        call("edit_file", path="/app/word.txt", old="", new=word),
        {"answer": "done"},
    ]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{TASKS / task}", model=url, out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert said[0] == word
    assert "do not fit" in said[1]
    assert rollout.score
    assert rollout.score.reward == 1.0
    assert list_left() == []


@pytest.mark.parametrize("signal_name", ["KILL", "STOP"])
def test_an_agent_that_ends_an_mcp_server_of_its_task_is_scored(tmp_path: Path, signal_name: str) -> None:
    from support.turns import serve_turns

    end = f"for p in /proc/[0-9]*; do grep -q words.sh $p/cmdline && kill -{signal_name} ${{p#/proc/}}; done; echo sent"
    turns = [
        call("edit_file", path="/app/word.txt", old="", new="green-root---polite"),
        call("bash", command=end),
        call("word_of", colour="green"),
        {"answer": "done"},
    ]
    limits = rollbook.Limits(tool_s=5.0)
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{TASKS / 'tool-server'}", model=url, out=str(tmp_path / "run"), limits=limits)
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert ("took longer than 5 s" if signal_name == "STOP" else "not reachable") in said[-1]
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)
    assert list_left() == []


SERVER_STEPS = """
[[steps]]
name = "first"

[[steps]]
name = "second"
"""


@pytest.mark.parametrize("change", ["rm /srv/words.sh", "sed -i s/word_of/bash/ /srv/words.sh"])
def test_an_agent_that_breaks_the_mcp_server_of_its_next_step_is_scored(tmp_path: Path, change: str) -> None:
    from support.turns import serve_turns

    task = copy_task("tool-server", tmp_path / "task", "[agent]", "[agent]")
    with (task / "task.toml").open("a") as file:
        file.write(SERVER_STEPS)
    for name in ("first", "second"):
        (task / "steps" / name).mkdir(parents=True)
        (task / "steps" / name / "instruction.md").write_text(f"The {name} step.\n")
    work = f"echo green-root---polite > /app/word.txt; {change}"
    turns = [call("bash", command=work), {"answer": "done"}, call("word_of", colour="green"), {"answer": "done"}]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{task}", model=url, out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    said = [message.text for message in rollout.messages if message.role == "tool"]
    assert "word_of is not reachable: its server did not start again" in said[-1]
    assert rollout.score
    assert (rollout.score.reward, rollout.attempt) == (1.0, 1)


def test_an_agent_that_writes_too_much_by_a_tool_of_an_mcp_server_is_scored(tmp_path: Path) -> None:
    from support.turns import serve_turns

    task = copy_task("tool-server", tmp_path / "task", "memory_mb = 256", "memory_mb = 256\nstorage_mb = 20")
    server = task / "environment" / "words.sh"
    fill = "for i in 1 2 3 4; do head -c 15000000 /dev/zero > /app/$i; done; sleep 30"
    server.write_text(
        server.read_text().replace('*\'"method":"tools/call"\'*)', f'*\'"method":"tools/call"\'*) {fill}', 1)
    )
    turns = [call("word_of", colour="green"), {"answer": "done"}]
    with serve_turns(turns) as url:
        rollbook.run(f"harbor:{task}", model=url, out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert (rollout.ended, rollout.attempt) == ("storage_limit", 1)
    assert rollout.score
    assert rollout.score.reward == 0.0


@pytest.mark.parametrize(
    ("command", "kind", "attempts", "says"),
    [
        ("/srv/none.sh", "image_error", 1, "MCP server words: the image has no command /srv/none.sh"),
        ("no-such-program", "image_error", 1, "MCP server words: the image has no command no-such-program"),
        ("/bin/false", "environment_error", 3, "MCP server words"),
    ],
)
def test_an_mcp_server_that_does_not_start_is_a_failure(
    tmp_path: Path, command: str, kind: str, attempts: int, says: str
) -> None:
    task = copy_task("tool-server", tmp_path / "task", "/srv/words.sh", command)
    play(tmp_path / "run", task, "nop")
    failures = [failure for _, _, failure in rollbook.load(tmp_path / "run").failures()]
    assert [(failure.kind, says in failure.message) for failure in failures] == [(kind, True)]
    lines = [json.loads(line) for path in tmp_path.glob("run/journals/*.jsonl") for line in path.open()]
    assert len([line for line in lines if line.get("failure")]) == attempts
    assert list_left() == []


@podman_only
def test_every_rollout_is_accounted_for_and_nothing_is_left_after_kills_at_random() -> None:
    benchmark = Path(__file__).parents[3] / "benchmarks" / "containers.py"
    command = [sys.executable, str(benchmark), "--soak", "--rollouts", "12", "--seed", "3"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_several_workers_share_a_run_and_a_build(tmp_path: Path) -> None:
    subprocess.run(["cp", "-r", TASKS / "write-word", tmp_path / "task"], check=True)
    dockerfile = tmp_path / "task" / "environment" / "Dockerfile"
    dockerfile.write_text(f"{dockerfile.read_text()}RUN echo {tmp_path} > /stamp\n")
    words = [
        "run",
        f"harbor:{tmp_path}/task",
        "--agent",
        "oracle",
        "-k",
        "6",
        "--workers",
        "2",
        "-o",
        f"{tmp_path}/run",
    ]
    ended = subprocess.run([sys.executable, "-m", "rollbook", *words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rollouts = list(rollbook.load(tmp_path / "run").rollouts())
    assert [rollout.score.reward for rollout in rollouts if rollout.score] == [1.0] * 6
    assert len(list((tmp_path / "run" / "workers").glob("*.json"))) == 2
    assert list_left() == []
    image = ImageBuild(str(tmp_path / "task" / "environment")).image
    subprocess.run([RUNTIME, "image", "rm", "--force", image], capture_output=True, check=True)
