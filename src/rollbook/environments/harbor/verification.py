"""Run the tests of a task where the agent cannot reach the verdict, and read what they decided.

The container is killed, so that no process of the agent is left. What could speak for the tests (the shell, the basic
programs, their libraries) is put back as the image has it. Then the container is started again, /tests and
/logs/verifier are made afresh, the tests run, and the rewards are read from outside.
"""

from __future__ import annotations

import asyncio
import io
import secrets
import shutil
import tarfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rollbook.containers import (
    Container,
    ContainerHandle,
    ContainerHost,
    clear_test_folders,
    is_machine_error,
    list_absolute,
    open_archive,
    restore_pristine_files,
    temporary_folder,
)
from rollbook.core import FAILURE_KINDS, START_ANEW
from rollbook.environments.harbor.healthchecks import wait_for_services, wait_until_healthy
from rollbook.environments.harbor.rewards import REWARD_FILES, read_rewards
from rollbook.environments.harbor.task_files import (
    Healthcheck,
    TaskStep,
    VerifierTable,
    find_script,
    read_first_line,
    resolve_variables,
    user_name,
)
from rollbook.errors import ContainerError, ImageError, RolloutFailed

TESTS, LOGS, VERIFIER_LOGS = "/tests", "/logs", "/logs/verifier"
SEARCH_PATHS = ("PATH", "LD_LIBRARY_PATH")
MAX_LOG_BYTES = 64 << 20
OUTPUT_CHARS = 4000
SETUP_S = 120.0
ENTRYPOINT_STARTS = 2
"""How often the entrypoint is started before tests, where it fails: once more, in case a command of ours was killed."""


class TestsResult(msgspec.Struct, omit_defaults=True):
    """What the tests decided: rewards, or why there are none. A field of a rollout's outcome."""

    __test__ = False

    rewards: dict[str, float] = {}
    failure: str = ""
    """A failure kind, where there are no rewards."""
    message: str = ""
    exit_code: int = 0
    output: str = ""
    """The end of what the tests printed."""
    seconds: float = 0.0
    restored: list[str] = []
    """What the agent had changed of the tests' own tools, and was put back."""
    notes: list[str] = []
    """What was not as the task says."""


async def run_shared_tests(
    handle: ContainerHandle,
    step: TaskStep,
    kept: Path | None,
    checks: Sequence[Healthcheck | None],
    ports: set[int],
    kept_changes: Sequence[str] = (),
) -> TestsResult:
    """Run the tests in the container that the agent left, which was killed; `kept` is where their logs go.

    `checks` and `ports` are of services that the entrypoint starts: the tests find them as the agent did.
    """
    entrypoint = await handle.image_entrypoint()
    env = resolve_variables(step.verifier.env)
    commands = [entrypoint, *(["sh", "-c", check.command] for check in checks if check), _read_interpreter(step.tests)]
    restored = await restore_pristine_files(handle, env.items(), commands, kept_changes)
    await clear_test_folders(handle)
    staged = f"/.rollbook-tests-{secrets.token_hex(8)}"
    await handle.put_archive("/", await asyncio.to_thread(pack_tests, step.tests, staged))
    notes = await _restart_for_tests(handle)
    if entrypoint and not notes:
        await wait_for_services(handle, checks, ports, user_name(step.agent.user))
    await _place_tests(handle, staged)
    result = await _run_script(handle, step.verifier, {**await _list_clean_searches(handle), **env}, kept)
    result.restored = restored
    result.notes += notes
    if result.failure and FAILURE_KINDS[result.failure].attempts == 1:
        result.message += f"; tests that share the agent's container cannot run again: fix them, then {START_ANEW}"
    return result


def _read_interpreter(folders: Sequence[Path]) -> list[str]:
    """Return the command that runs test.sh by its first line; of several folders the last one with it counts."""
    script = find_script(folders)
    first = read_first_line(script).decode(errors="replace") if script else ""
    return first[2:].split() if first.startswith("#!") else []


async def _restart_for_tests(handle: ContainerHandle) -> list[str]:
    """Start the container with its entrypoint; return a note where only a start without it works.

    An agent can break what the entrypoint needs. It must not avoid its score by that.
    """
    for _ in range(ENTRYPOINT_STARTS):
        try:
            await handle.restart()
        except ContainerError as error:
            why = str(error)
            await handle.kill()
        else:
            return []
    await handle.restart(entrypoint=False)
    return [f"the entrypoint did not start again: {why}"]


async def run_separate_tests(
    host: ContainerHost,
    container: Container,
    bundled: bool,
    step: TaskStep,
    kept: Path | None,
    artifacts: list[KeptArtifact],
) -> TestsResult:
    """Run the tests in a container of their own, which gets nothing of the agent but the artifacts."""
    handle = await host.start(container)
    try:
        if step.verifier.environment and step.verifier.environment.healthcheck:
            await wait_until_healthy(handle, step.verifier.environment.healthcheck, user_name(step.verifier.user))
        if bundled:
            await _require_tests(handle)
        for artifact in artifacts:
            await handle.upload(artifact.place, artifact.source)
        staged = f"/.rollbook-tests-{secrets.token_hex(8)}"
        if not bundled:
            await handle.put_archive("/", await asyncio.to_thread(pack_tests, step.tests, staged))
        await _place_tests(handle, "" if bundled else staged)
        return await _run_script(handle, step.verifier, resolve_variables(step.verifier.env), kept)
    finally:
        await host.remove(handle)


async def _require_tests(handle: ContainerHandle) -> None:
    """ImageError if the image of separate tests lacks them: as in Harbor, an image of their own must have them."""
    script = f"{TESTS}/test.sh"
    if (await handle.run(f"test -f {script}", user="0", timeout_s=SETUP_S)).exit_code:
        why = "the tests of the task folder are copied only where the tests have no image or Dockerfile of their own"
        raise ImageError(f"the image of the separate tests has no {script}; {why}")


class KeptArtifact(msgspec.Struct, frozen=True):
    """An artifact of the agent: its path inside, and where it is kept here."""

    source: str
    place: Path


async def restart_usable(handle: ContainerHandle) -> None:
    """Start a container again that was killed; where the agent broke its shell, as the image has what that needs."""
    try:
        await handle.restart()
    except ContainerError:
        await handle.kill()
        await restore_pristine_files(handle)
        await handle.restart()


async def _list_clean_searches(handle: ContainerHandle) -> dict[str, str]:
    """Return the search paths of the container that have relative elements, without those."""
    searches = {name: value for name, value in await handle.environment() if name in SEARCH_PATHS}
    return {name: clean for name, value in searches.items() if (clean := list_absolute(value)) != value}


async def _run_script(
    handle: ContainerHandle, verifier: VerifierTable, env: Mapping[str, str], kept: Path | None
) -> TestsResult:
    result = await _execute(handle, verifier, env)
    await _collect(handle, result, kept)
    return result


def pack_tests(folders: list[Path], name: str) -> bytes:
    """Return an archive of the tests under a name that the agent could not know; later folders go over earlier ones."""
    archive = io.BytesIO()
    with open_archive(archive) as tar:
        for folder in folders:
            tar.add(folder, arcname=name.lstrip("/"), filter=_prepare_entry)
    return archive.getvalue()


def _prepare_entry(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o755 if entry.isdir() or entry.name.endswith(".sh") else 0o644
    return entry


async def _place_tests(handle: ContainerHandle, staged: str) -> None:
    """Replace whatever is at /tests and /logs/verifier: here only the image's or a volume's, that of agents is gone."""
    moves = [f"rm -rf {TESTS}", f"mv {staged} {TESTS}"] if staged else [f"chmod +x {TESTS}/test.sh"]
    moves += [f"if [ -h {LOGS} ] || [ ! -d {LOGS} ]; then rm -rf {LOGS}; fi", f"rm -rf {VERIFIER_LOGS}"]
    moves += [f"mkdir -p {VERIFIER_LOGS}", f"chmod 777 {VERIFIER_LOGS}", f"chmod a+rx / {LOGS} {TESTS}"]
    result = await handle.run(" && ".join(moves), user="0", timeout_s=SETUP_S)
    if result.exit_code:
        raise ContainerError(f"the tests cannot be put in place: {result.text.strip()[-300:]}")


async def _execute(handle: ContainerHandle, verifier: VerifierTable, env: Mapping[str, str]) -> TestsResult:
    began = time.monotonic()
    user = user_name(verifier.user)
    try:
        ran = await handle.run(f"{TESTS}/test.sh", timeout_s=verifier.timeout_sec, user=user, env=env)
    except ContainerError as error:
        if (limit := await handle.find_limit()) not in ("container_crash", "storage_limit"):
            raise
        return TestsResult(failure="verifier_error", message=f"the tests ended their container ({limit}): {error}")
    result = TestsResult(exit_code=ran.exit_code, output=ran.text[-OUTPUT_CHARS:], seconds=time.monotonic() - began)
    if ran.timed_out:
        result.failure = "verifier_timeout"
        result.message = f"tests/test.sh took longer than {verifier.timeout_sec:g} s"
    return result


async def _collect(handle: ContainerHandle, result: TestsResult, kept: Path | None) -> None:
    """Read the rewards, and keep the logs of the tests."""
    with temporary_folder("verifier-") as name:
        folder = Path(name)
        try:
            result.notes += await _download_logs(handle, folder)
            if not result.failure:
                result.rewards = read_rewards(folder / "verifier")
        except (OSError, ValueError, tarfile.TarError) as error:
            if is_machine_error(error):
                raise ContainerError(f"{VERIFIER_LOGS} cannot be copied: {error}") from error
            result.failure, result.message = "verifier_error", f"/logs/verifier cannot be read: {error}"
        except RolloutFailed as error:
            result.failure, result.message = error.kind, _explain(error.message, result)
        if kept is not None and (folder / "verifier").is_dir():
            await asyncio.to_thread(_keep_logs, folder / "verifier", kept, result.output)


async def _download_logs(handle: ContainerHandle, folder: Path) -> list[str]:
    """Copy what the tests wrote; only the rewards, with a note, where that is too much to keep."""
    try:
        await handle.download(VERIFIER_LOGS, folder, max_bytes=MAX_LOG_BYTES)
    except ValueError as error:
        await asyncio.to_thread(shutil.rmtree, folder / "verifier", ignore_errors=True)
        for name in REWARD_FILES:
            with suppress(FileNotFoundError):
                await handle.download(f"{VERIFIER_LOGS}/{name}", folder / "verifier", max_bytes=MAX_LOG_BYTES)
        return [f"the logs of the tests are not kept: {error}"]
    return []


def _explain(message: str, result: TestsResult) -> str:
    end = result.output.strip()[-500:]
    return f"{message} (exit code {result.exit_code}): {end}" if end else f"{message} (exit code {result.exit_code})"


def _keep_logs(logs: Path, kept: Path, output: str) -> None:
    shutil.copytree(logs, kept / "verifier", dirs_exist_ok=True)
    (kept / "verifier" / "test-stdout.txt").write_text(output)
