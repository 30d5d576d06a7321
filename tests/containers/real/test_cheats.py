"""No cheat gets a reward here; in Harbor's way of verifying, in the agent's living container, most of them do."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

from base_image import IMAGE, list_left, podman_only
from cheats import (
    CHEATS,
    COMMAND_CHEATS,
    COMMAND_DOCKERFILE,
    COMMAND_HEALTHCHECK,
    COMMAND_TESTS,
    DESTRUCTIONS,
    DOCKERFILE,
    INSTRUCTION,
    LINK_CHEATS,
    LINK_TESTS,
    NEEDED_CHEATS,
    NEEDED_DOCKERFILE,
    NESTED_DESTRUCTIONS,
    NESTED_FOLDER,
    NUMBER_CHEATS,
    NUMBER_DOCKERFILE,
    TESTS,
    VOLUME_CHEATS,
    VOLUMES,
)

import rollbook
from rollbook.containers import Container, ContainerHandle, ContainerHost
from rollbook.errors import ContainerError

AT_ONCE = 3
COLLECT = '[[verifier.collect]]\ncommand = "cp /app/word.txt /logs/artifacts/"\ntimeout_sec = 5\n'
NOBODY = 'user = "nobody"'
VERIFIERS = {
    **dict.fromkeys(("no-users", "no-way-to-the-tests"), NOBODY),
    **dict.fromkeys((name for name in DESTRUCTIONS if name.startswith("access-list")), NOBODY),
    "hanging-collect": COLLECT,
    "programs-in-a-home": 'user = "judge"',
    "startup-files-of-a-number": "user = 4321",
}


def make_task(folder: Path, script: str, verifier: str = "") -> None:
    environment = '[environment]\nnetwork_mode = "no-network"\nmemory_mb = 256\n'
    files = {
        "task.toml": f"[verifier]\ntimeout_sec = 30\n{verifier}\n{environment}",
        "instruction.md": INSTRUCTION,
        "environment/Dockerfile": DOCKERFILE.format(image=IMAGE),
        "tests/test.sh": TESTS,
        "solution/solve.sh": f"#!/bin/bash\n{script}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_no_cheat_gets_a_reward(tmp_path: Path) -> None:
    for name, script in CHEATS.items():
        make_task(tmp_path / "tasks" / name, script, VERIFIERS.get(name, ""))
    make_task(tmp_path / "tasks" / "honest", "echo hello > /app/word.txt")
    expect_no_reward(tmp_path, CHEATS)


def test_no_link_in_place_of_the_answer_gets_a_reward(tmp_path: Path) -> None:
    honest = "mkdir /data; echo hello > /data/word; ln -s /data/word /app/word.txt"
    for name, script in {**LINK_CHEATS, "honest": honest}.items():
        task = tmp_path / "tasks" / name
        make_task(task, script)
        (task / "tests" / "expected.txt").write_text("hello\n")
        (task / "tests" / "test.sh").write_text(LINK_TESTS)
    expect_no_reward(tmp_path, LINK_CHEATS)


def test_no_cheat_with_a_library_that_only_programs_of_the_image_name_gets_a_reward(tmp_path: Path) -> None:
    for name, script in {**NEEDED_CHEATS, "honest": "echo hello > /app/word.txt"}.items():
        make_task(tmp_path / "tasks" / name, script)
        with (tmp_path / "tasks" / name / "environment" / "Dockerfile").open("a") as file:
            file.write(NEEDED_DOCKERFILE)
    expect_no_reward(tmp_path, NEEDED_CHEATS)


def test_no_cheat_in_the_home_of_a_user_that_is_a_number_gets_a_reward(tmp_path: Path) -> None:
    for name, script in {**NUMBER_CHEATS, "honest": "echo hello > /app/word.txt"}.items():
        task = tmp_path / "tasks" / name
        make_task(task, script)
        with (task / "task.toml").open("a") as file:
            file.write('[agent]\nuser = "root"\n')
        with (task / "environment" / "Dockerfile").open("a") as file:
            file.write(NUMBER_DOCKERFILE)
    expect_no_reward(tmp_path, NUMBER_CHEATS)


@podman_only
def test_no_cheat_in_a_volume_of_the_image_gets_a_reward(tmp_path: Path) -> None:
    for name, script in {**VOLUME_CHEATS, "honest": "echo hello > /app/word.txt"}.items():
        make_task(tmp_path / "tasks" / name, script)
        with (tmp_path / "tasks" / name / "environment" / "Dockerfile").open("a") as file:
            file.write(VOLUMES)
    expect_no_reward(tmp_path, VOLUME_CHEATS)


def test_no_cheat_with_the_programs_that_commands_run_gets_a_reward(tmp_path: Path) -> None:
    for name, script in {**COMMAND_CHEATS, "honest": "echo hello > /app/word.txt"}.items():
        task = tmp_path / "tasks" / name
        make_task(task, script)
        with (task / "task.toml").open("a") as file:
            file.write(COMMAND_HEALTHCHECK)
        (task / "environment" / "Dockerfile").write_text(COMMAND_DOCKERFILE.format(image=IMAGE))
        (task / "tests" / "test.sh").write_text(COMMAND_TESTS)
    expect_no_reward(tmp_path, COMMAND_CHEATS)


def expect_no_reward(tmp_path: Path, cheats: Mapping[str, str]) -> None:
    """Run all tasks of a folder: cheats are scored 0 or fail, the honest one gets its reward, nothing is left."""
    out = tmp_path / "run"
    rollbook.run(
        f"harbor:{tmp_path / 'tasks'}", agent="oracle", out=str(out), concurrency=AT_ONCE, allow_shortfall=True
    )
    run = rollbook.load(out)
    scores = {rollout.task.id: rollout.score.reward for rollout in run.rollouts() if rollout.score}
    failures = {task: failure for task, _, failure in run.failures()}
    print(f"{len(cheats)} cheats: {sum(scores.get(name) == 0 for name in cheats)} scored 0, {len(failures)} failed")
    for task, failure in failures.items():
        print(f"  {task}: {failure.kind}: {failure.message[:150]}")
    assert scores.pop("honest") == 1.0
    assert [name for name, reward in scores.items() if reward] == []
    assert set(scores) | set(failures) == set(cheats)
    assert list_left() == []


def test_no_destruction_avoids_a_score(tmp_path: Path) -> None:
    for name, script in DESTRUCTIONS.items():
        make_task(tmp_path / "tasks" / name, script, VERIFIERS.get(name, ""))
    expect_scores(tmp_path, DESTRUCTIONS)


def test_no_destruction_of_a_folder_around_the_working_folder_avoids_a_score(tmp_path: Path) -> None:
    for name, script in NESTED_DESTRUCTIONS.items():
        task = tmp_path / "tasks" / name
        make_task(task, script)
        with (task / "task.toml").open("a") as file:
            file.write(f'workdir = "{NESTED_FOLDER}"\n')
        with (task / "environment" / "Dockerfile").open("a") as file:
            file.write(f"RUN mkdir -p {NESTED_FOLDER}\n")
    expect_scores(tmp_path, NESTED_DESTRUCTIONS)


def expect_scores(tmp_path: Path, scripts: Mapping[str, str]) -> None:
    """Run all tasks of a folder: all are scored 0 at the first attempt, and nothing is left."""
    out = tmp_path / "run"
    rollbook.run(
        f"harbor:{tmp_path / 'tasks'}", agent="oracle", out=str(out), concurrency=AT_ONCE, allow_shortfall=True
    )
    run = rollbook.load(out)
    assert {task: failure.message for task, _, failure in run.failures()} == {}
    scores = {rollout.task.id: (rollout.score.reward, rollout.attempt) for rollout in run.rollouts() if rollout.score}
    assert scores == dict.fromkeys(scripts, (0.0, 1))
    assert list_left() == []


def test_an_agent_cannot_avoid_its_score_by_permissions_of_a_folder_on_the_way_to_the_program_of_the_tests(
    tmp_path: Path,
) -> None:
    task = tmp_path / "task"
    make_task(task, "chmod 700 /opt/venv /opt/venv/bin", 'user = "judge"')
    with (task / "environment" / "Dockerfile").open("a") as file:
        file.write("RUN mkdir -p /opt/venv/bin && ln -s /usr/bin/python3 /opt/venv/bin/python\n")
    (task / "tests" / "test.sh").write_text(
        "#!/opt/venv/bin/python\nopen('/logs/verifier/reward.txt', 'w').write('0.5')\n"
    )
    rollbook.run(f"harbor:{task}", agent="oracle", out=str(tmp_path / "run"), allow_shortfall=True)
    assert [rollout.score.reward for rollout in rollbook.load(tmp_path / "run").rollouts() if rollout.score] == [0.5]


def test_tests_run_with_the_group_that_their_user_has_in_the_image(tmp_path: Path) -> None:
    task = tmp_path / "task"
    make_task(task, "sed -i '/^judge:/s/:[0-9]*:[0-9]*:/:1000:0:/' /etc/passwd; id judge", 'user = "judge"')
    (task / "tests" / "test.sh").write_text("#!/bin/bash\nid -g > /logs/verifier/reward.txt\n")
    rollbook.run(f"harbor:{task}", agent="oracle", out=str(tmp_path / "run"))
    assert [rollout.score.reward for rollout in rollbook.load(tmp_path / "run").rollouts() if rollout.score] == [1000.0]


def test_tests_have_the_time_zone_of_the_image(tmp_path: Path) -> None:
    task = tmp_path / "task"
    make_task(task, "readlink /etc/localtime; ln -sfn /evil /etc/localtime")
    (task / "tests" / "test.sh").write_text(
        "#!/bin/bash\nreadlink /etc/localtime | grep -c evil > /logs/verifier/reward.txt\n"
    )
    rollbook.run(f"harbor:{task}", agent="oracle", out=str(tmp_path / "run"))
    assert [rollout.score.reward for rollout in rollbook.load(tmp_path / "run").rollouts() if rollout.score] == [0.0]


def test_a_folder_in_place_of_a_file_does_no_harm_to_work_that_is_done(tmp_path: Path) -> None:
    make_task(tmp_path / "task", "echo hello > /app/word.txt; rm /etc/issue; mkdir -p /etc/issue/sub")
    rollbook.run(f"harbor:{tmp_path / 'task'}", agent="oracle", out=str(tmp_path / "run"))
    assert [rollout.score.reward for rollout in rollbook.load(tmp_path / "run").rollouts() if rollout.score] == [1.0]


WRITE_REWARD = "echo $((!$?)) > /logs/verifier/reward.txt\n"
SERVICE = """import socket, time
time.sleep(2)
server = socket.create_server(("127.0.0.1", 8099))
while True:
    server.accept()[0].sendall(b"0.5")
"""


def make_service_task(task: Path, script: str) -> None:
    """Make a task whose entrypoint starts a slow service; the reward is what it answers, -1 if nothing listens."""
    make_task(task, script)
    (task / "environment" / "serve.py").write_text(SERVICE)
    (task / "environment" / "start.sh").write_text('#!/bin/bash\nset -e\npython3 /opt/serve.py &\nexec "$@"\n')
    dockerfile = (task / "environment" / "Dockerfile").read_text()
    more = 'COPY serve.py /opt/serve.py\nCOPY start.sh /start.sh\nENTRYPOINT ["bash", "/start.sh"]\n'
    (task / "environment" / "Dockerfile").write_text(f"{dockerfile}\n{more}")
    ask = "(exec 3<>/dev/tcp/127.0.0.1/8099 && cat <&3) 2>/dev/null || echo -1"
    (task / "tests" / "test.sh").write_text(f"#!/bin/bash\n({ask}) > /logs/verifier/reward.txt\n")


def test_tests_find_the_services_of_the_entrypoint_as_the_agent_left_them(tmp_path: Path) -> None:
    """The service listens two seconds after its start, for the agent and again for the tests."""
    wait = "until (exec 3<>/dev/tcp/127.0.0.1/8099) 2>/dev/null; do sleep 0.2; done"
    cheat = "sed -i s/0.5/1.0/ /opt/serve.py"
    scripts = {
        "honest": wait,
        "cheats": f"{wait}\n{cheat}",
        "ends-the-script": f"{wait}\n{cheat}\necho exit 1 > /start.sh",
        "breaks-the-service": "rm -rf /usr/bin/python3*",
    }
    for name, script in scripts.items():
        make_service_task(tmp_path / "tasks" / name, script)
    rollbook.run(f"harbor:{tmp_path / 'tasks'}", agent="oracle", out=str(tmp_path / "run"))
    run = rollbook.load(tmp_path / "run")
    rewards = {rollout.task.id: rollout.score.reward for rollout in run.rollouts() if rollout.score}
    assert rewards == {"honest": 0.5, "cheats": 0.5, "ends-the-script": 0.5, "breaks-the-service": -1.0}


def test_an_entrypoint_that_the_agent_changed_does_not_see_the_tests_of_a_step(tmp_path: Path) -> None:
    task = tmp_path / "task"
    make_task(task, "true")
    (task / "task.toml").write_text(
        'multi_step_reward_strategy = "final"\n[environment]\nnetwork_mode = "no-network"\nmemory_mb = 256\n'
        '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    )
    (task / "tests" / "expected.txt").write_text("the answer\n")  # of both steps
    steal = (
        "printf '#!/bin/bash\\ncp -r /tests /logs/verifier /stolen\\nexec \"$@\"\\n' > /entrypoint.sh; mkdir /stolen"
    )
    for name, script in (("one", steal), ("two", "cp /stolen/tests/expected.txt /app/two.txt")):
        files = {
            "instruction.md": "Write the answer.\n",
            "tests/test.sh": f"#!/bin/bash\ncmp /app/{name}.txt /tests/expected.txt\n{WRITE_REWARD}",
            "solution/solve.sh": f"#!/bin/bash\n{script}\n",
        }
        for path, text in files.items():
            (task / "steps" / name / path).parent.mkdir(parents=True, exist_ok=True)
            (task / "steps" / name / path).write_text(text)
    rollbook.run(f"harbor:{task}", agent="oracle", out=str(tmp_path / "run"))
    assert [rollout.score.reward for rollout in rollbook.load(tmp_path / "run").rollouts() if rollout.score] == [0.0]


def test_an_agent_cannot_avoid_its_score_by_an_entrypoint_that_fails_the_second_time(tmp_path: Path) -> None:
    make_task(tmp_path / "task", "echo hello > /app/word.txt; touch /stop")
    dockerfile = (tmp_path / "task" / "environment" / "Dockerfile").read_text()
    entrypoint = """ENTRYPOINT ["bash", "-c", "[ ! -e /stop ] && exec \\"$@\\"", "bash"]\n"""
    (tmp_path / "task" / "environment" / "Dockerfile").write_text(f"{dockerfile}\n{entrypoint}")
    rollbook.run(f"harbor:{tmp_path / 'task'}", agent="oracle", out=str(tmp_path / "run"))
    (rollout,) = rollbook.load(tmp_path / "run").rollouts()
    assert rollout.score.reward == 1.0
    assert "entrypoint did not start again" in str(rollout.outcome)


async def verify_in_place(handle: ContainerHandle) -> float | None:
    """Verify as Harbor 0.25 does: remove old rewards, upload the tests into the living container, run them, read."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("tests/test.sh")
        entry.size, entry.mode = len(TESTS), 0o755
        tar.addfile(entry, io.BytesIO(TESTS.encode()))
    assert handle.host
    runtime = handle.host.runtime
    remove = "rm -f -- /logs/verifier/reward.txt /logs/verifier/reward.json"
    if (await runtime.call("exec", handle.name, "bash", "-c", remove, timeout_s=30)).code:
        return None
    try:
        await handle.put_archive("/", archive.getvalue())
    except ContainerError:
        return None
    script = "(/tests/test.sh) > /logs/verifier/test-stdout.txt 2>&1"
    await runtime.call("exec", handle.name, "bash", "-c", "chmod +x /tests/test.sh", timeout_s=30)
    try:
        await runtime.call("exec", handle.name, "bash", "-c", script, timeout_s=30)
    except ContainerError:
        return None
    await asyncio.sleep(0.5)
    for name in ("reward.json", "reward.txt"):
        try:
            text = (await handle.read_archived(f"/logs/verifier/{name}")).decode()
            value = json.loads(text)
            return float(value["reward"] if isinstance(value, dict) else value)
        except (FileNotFoundError, ValueError):
            continue
    return None


def test_most_cheats_pass_where_tests_run_beside_the_agent(tmp_path: Path) -> None:
    make_task(tmp_path, "true")
    rewarded: list[str] = []

    async def try_cheat(host: ContainerHost, name: str, script: str, slots: asyncio.Semaphore) -> None:
        async with slots:
            container = Container(build=str(tmp_path / "environment"), memory_mb=256, entrypoint=True)
            handle = await host.start(container)
            await handle.run("mkdir -p /logs/verifier")
            await handle.run(script, timeout_s=30)
            if await verify_in_place(handle) == 1.0:
                rewarded.append(name)
            await host.remove(handle)

    async def main() -> None:
        host, slots = ContainerHost(), asyncio.Semaphore(AT_ONCE)
        await host.open()
        try:
            async with asyncio.TaskGroup() as group:
                for name, script in CHEATS.items():
                    group.create_task(try_cheat(host, name, script, slots))
        finally:
            await host.close()

    asyncio.run(main())
    print(f"{len(rewarded)} of {len(CHEATS)} cheats are rewarded in place: {', '.join(sorted(rewarded))}")
    assert len(rewarded) >= 10
