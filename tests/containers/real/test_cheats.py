"""No cheat gets a reward here; in Harbor's way of verifying, in the agent's living container, most of them do."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
from pathlib import Path

from base_image import IMAGE, list_left
from cheats import CHEATS, DESTRUCTIONS, DOCKERFILE, INSTRUCTION, TESTS

import rollbook
from rollbook.containers import Container, ContainerHandle, ContainerHost
from rollbook.errors import ContainerError

AT_ONCE = 3
COLLECT = '[[verifier.collect]]\ncommand = "cp /app/word.txt /logs/artifacts/"\ntimeout_sec = 5\n'
VERIFIERS = {"no-users": 'user = "nobody"', "no-way-to-the-tests": 'user = "nobody"', "hanging-collect": COLLECT}


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
        make_task(tmp_path / "tasks" / name, script)
    make_task(tmp_path / "tasks" / "honest", "echo hello > /app/word.txt")
    out = tmp_path / "run"
    rollbook.run(
        f"harbor:{tmp_path / 'tasks'}", agent="oracle", out=str(out), concurrency=AT_ONCE, allow_shortfall=True
    )
    run = rollbook.load(out)
    scores = {rollout.task.id: rollout.score.reward for rollout in run.rollouts() if rollout.score}
    failures = {task: failure for task, _, failure in run.failures()}
    print(f"{len(CHEATS)} cheats: {sum(scores.get(name) == 0 for name in CHEATS)} scored 0, {len(failures)} failed")
    for task, failure in failures.items():
        print(f"  {task}: {failure.kind}: {failure.message[:150]}")
    assert scores.pop("honest") == 1.0
    assert [name for name, reward in scores.items() if reward] == []
    assert set(scores) | set(failures) == set(CHEATS)
    assert list_left() == []


def test_no_destruction_avoids_a_score(tmp_path: Path) -> None:
    for name, script in DESTRUCTIONS.items():
        make_task(tmp_path / "tasks" / name, script, VERIFIERS.get(name, ""))
    out = tmp_path / "run"
    rollbook.run(
        f"harbor:{tmp_path / 'tasks'}", agent="oracle", out=str(out), concurrency=AT_ONCE, allow_shortfall=True
    )
    run = rollbook.load(out)
    assert {task: failure.message for task, _, failure in run.failures()} == {}
    scores = {rollout.task.id: (rollout.score.reward, rollout.attempt) for rollout in run.rollouts() if rollout.score}
    assert scores == dict.fromkeys(DESTRUCTIONS, (0.0, 1))
    assert list_left() == []


def test_a_folder_in_place_of_a_file_does_no_harm_to_work_that_is_done(tmp_path: Path) -> None:
    make_task(tmp_path / "task", "echo hello > /app/word.txt; rm /etc/issue; mkdir -p /etc/issue/sub")
    rollbook.run(f"harbor:{tmp_path / 'task'}", agent="oracle", out=str(tmp_path / "run"))
    assert [rollout.score.reward for rollout in rollbook.load(tmp_path / "run").rollouts() if rollout.score] == [1.0]


def test_the_entrypoint_is_started_again_for_tests_only_where_it_starts_services(tmp_path: Path) -> None:
    check = '[environment.healthcheck]\ncommand = "true"\n'
    for name, more in (("plain", ""), ("services", check)):
        task = tmp_path / "tasks" / name
        make_task(task, "true")
        (task / "task.toml").write_text((task / "task.toml").read_text() + more)
        dockerfile = (task / "environment" / "Dockerfile").read_text()
        entrypoint = """ENTRYPOINT ["bash", "-c", "echo >> /starts; exec \\"$@\\"", "bash"]\n"""
        (task / "environment" / "Dockerfile").write_text(f"{dockerfile}\n{entrypoint}")
        (task / "tests" / "test.sh").write_text("#!/bin/bash\nwc -l < /starts > /logs/verifier/reward.txt\n")
    rollbook.run(f"harbor:{tmp_path / 'tasks'}", agent="oracle", out=str(tmp_path / "run"))
    run = rollbook.load(tmp_path / "run")
    starts = {rollout.task.id: rollout.score.reward for rollout in run.rollouts() if rollout.score}
    assert starts == {"plain": 1.0, "services": 2.0}


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
