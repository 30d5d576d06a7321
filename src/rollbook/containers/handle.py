"""The handle of a running container: commands, files, snapshots, and a restart that ends everything inside."""

from __future__ import annotations

import asyncio
import io
import os
import secrets
import signal
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import msgspec

from rollbook.containers.archives import open_archive, unpack
from rollbook.containers.container import Container
from rollbook.containers.control_groups import (
    SHOW_GROUPS,
    MemoryWatch,
    find_kill_count,
    find_pipe,
    has_open,
    has_too_many_processes,
    kill_entered,
    lift_cpu_quota,
    list_processes,
)
from rollbook.containers.copies import OddAttributeError, copy_out, pack, pack_folders
from rollbook.containers.deleted_files import count_deleted_bytes
from rollbook.containers.disk_use import measure_folders
from rollbook.containers.layers import Layers, read_unlinked, remove_conflict
from rollbook.containers.owners import OWNER_LABEL, Owner, temporary_folder
from rollbook.containers.runtime import (
    LabelledObject,
    Runtime,
    open_env_file,
)
from rollbook.containers.shell import LAUNCH_COMMAND, MAIN_COMMAND, OUTPUT_BYTES, CommandResult, KeptShell, quote
from rollbook.errors import ContainerError, ImageError

if TYPE_CHECKING:
    from rollbook.containers.host import ContainerHost

COMMAND_S = 60.0
INTERRUPT_S = 30.0
COPY_S = 300.0
STORAGE_CHECK_S = 5.0
KILL_TO_ERROR_S = 3.0
"""Between a kill because of memory and the end of the container, or the error of a command, that it caused."""

EVENT_S = 0.3
"""The kernel reports the end of a control group a little later."""

UNMOUNT_CHECKS, UNMOUNT_CHECK_S, RELEASE_CHECKS = 300, 0.1, 20
INIT_PROGRAMS = frozenset({"tini", "tini-static", "dumb-init", "catatonit", "docker-init"})
INIT_OPTIONS = frozenset({"-e", "-p", "-r", "--rewrite"})
"""Options of these programs that a value follows."""

SNAPSHOT_NAME = "localhost/rollbook/snapshot"
RUNTIME_FAILED = 125
"""What the runtime exits with if it could not run a command inside, whatever the command."""

SHELL_WRITE_BYTES = 64 << 10
"""A shell needs memory of the container for what it writes, and long for much of it."""

MAX_FILE_BYTES = 64 << 20
MAX_DOWNLOAD_BYTES = 256 << 20


CRASH_SIGNALS = ("SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV", "SIGSYS")
CRASH_CODES = frozenset(128 + signal.Signals[name] for name in CRASH_SIGNALS)
"""The exit codes of a first process that crashed. Nobody outside sends these signals, but code inside that is root can
write over the memory of that process."""


_RUNTIME_FILES = "{{.HostsPath}}\n{{.HostnamePath}}\n{{.ResolvConfPath}}"


class EndState(
    msgspec.Struct,
    rename={"finished_at": "FinishedAt", "killed_by_memory": "OOMKilled", "exit_code": "ExitCode"},
):
    """How a container ended, as podman and docker say it."""

    finished_at: datetime
    killed_by_memory: bool
    """Whether there ever was a kill because of memory."""
    exit_code: int
    """That of the first process; 128 and a number if a signal ended it."""


class ContainerHandle:
    """A running container. `run` starts every command afresh; `open_shell` returns a shell that keeps its state."""

    def __init__(self, runtime: Runtime, container: Container, owner: Owner, artifacts: Path | None = None) -> None:
        self.container = container
        self.artifacts = artifacts
        """The folder of the run directory for what is kept of the rollout; created by the first writer."""
        self.host: ContainerHost | None = None
        """The host that started it, which can start more."""
        self.command_s = COMMAND_S
        """How long a command of the model may take: the limit of tool calls of the run."""
        self.name = f"rollbook-{secrets.token_hex(8)}"
        self._runtime, self._owner = runtime, owner
        self._main: KeptShell | None = None
        self._has_entrypoint = False
        self._shells: dict[str, KeptShell] = {}
        self._retired: dict[KeptShell, asyncio.Task[None]] = {}
        self._opened: set[KeptShell] = set()
        """Every shell but the main one. A caller that opened one may not have closed it."""
        self._started = 0.0
        self._user_ids: dict[str, str] = {}
        self._snapshots: list[LabelledObject] = []
        self._watcher: asyncio.Task[None] | None = None
        self._memory: MemoryWatch | None = None
        self._groups = ""
        """The control groups as the container sees them."""
        self._storage_bytes = container.storage_mb << 20
        self._written: list[str] | None = None
        self._wrote_too_much = False

    async def start(self) -> None:
        """Start the container, and wait for the shell that is its main process."""
        labels = {OWNER_LABEL: self._owner.label}
        words = await self.image_entrypoint()
        self._has_entrypoint = bool(words)
        shell, option, script, *more = [*LAUNCH_COMMAND, *words] if words else MAIN_COMMAND
        command = [shell, option, await self._make_volumes() + script, *more]
        with open_env_file(self.container.env) as env_file:
            await self._open_main(self._runtime.run_command(self.name, self.container, labels, command, env_file))
        if words:
            await self._require_first_process()

    async def _require_first_process(self) -> None:
        """Raise an ImageError if the entrypoint runs commands as its child.

        Our shell is such a command. Code inside cannot kill the first process of a container, but it can kill any other
        one, and if that is ours the container ends: an agent could avoid its score.
        """
        assert self._main
        parent = (await self._main.run("echo $PPID", COMMAND_S)).text.strip()
        if parent != "1":
            raise ImageError('the entrypoint of the image runs commands as its child: end it with `exec "$@"`')

    async def _make_volumes(self) -> str:
        """Return a script that makes the folders of volumes that the image only names, before anything else runs."""
        if not self._runtime.ignores_volumes:
            return ""
        volumes = await self._inspect_image("Volumes")
        return f"mkdir -p {' '.join(map(quote, volumes))} 2>/dev/null\n" if volumes else ""

    async def _open_main(self, command: Sequence[str], *, entrypoint: bool = True) -> None:
        main = KeptShell(command, self._interrupt)
        choice = ("entrypoint\n" if entrypoint else "shell\n") if self._has_entrypoint else ""
        await main.open(self.container.start_timeout_s, choice)
        self._main, self._started = main, time.monotonic()
        await self._watch_memory(main)
        if self._watcher is None:
            self._watcher = asyncio.create_task(self._watch_storage(), name="storage")

    async def _watch_memory(self, main: KeptShell) -> None:
        """Watch for kills because of memory, from before the agent begins."""
        if self._memory:
            self._memory.close()
        # The image's own shell tells them faster than the runtime. In a snapshot, and in a container that starts again,
        # an agent may have replaced the shell. With cgroup v2 a container sees no path of this machine.
        is_trusted = not self._groups and not self.container.image.startswith(SNAPSHOT_NAME)
        groups = (await main.run(SHOW_GROUPS, COMMAND_S)).text if is_trusted else ""
        self._groups = groups if find_kill_count(groups) else await self._runtime.read_groups(self.name)
        self._memory = MemoryWatch(self._groups)

    async def _watch_storage(self) -> None:
        """End the container once it has written more than it may: most file systems have no limit for a folder."""
        while True:
            await asyncio.sleep(STORAGE_CHECK_S)
            if not self._wrote_too_much and await self._count_written() > self._storage_bytes:
                self._wrote_too_much = True
                await self._lift_cpu_quota()
                await self._runtime.call("kill", self.name)

    async def _count_written(self) -> int:
        """Return how much of the disk the container uses; a command of the runtime for that costs ten times more."""
        try:
            if self._written is None:
                self._written = await self._find_written_folders()
            if self._written:
                deleted = await asyncio.to_thread(count_deleted_bytes, self._groups)
                return deleted + await measure_folders(self._written)
        except TimeoutError:
            return 0  # a disk that does not answer; the runtime would need longer still
        except (ContainerError, OSError, ValueError):
            pass
        command = ("container", "inspect", "--size", "--format", "{{.SizeRw}}", self.name)
        with suppress(ContainerError, ValueError):
            return int((await self._runtime.call(*command)).stdout)
        return 0

    async def _find_written_folders(self) -> list[str]:
        """Return where this machine has what the container writes: its layer, volumes of its image, and single files.

        Those are made by the runtime in a folder of its own, and mounted so that code inside can write to them.
        """
        if not (upper := (await self.find_layers()).get("UpperDir")):
            return []
        shown = await self._runtime.require("container", "inspect", "--format", "{{json .Mounts}}", self.name)
        mounts = msgspec.json.decode(shown, type=list[dict[str, object]] | None) or []
        volumes = [str(each["Source"]) for each in mounts if each.get("Type") == "volume"]
        named = await self._runtime.require("container", "inspect", "--format", _RUNTIME_FILES, self.name)
        files = [path for path in named.decode().splitlines() if path]
        files += (
            [os.path.join(os.path.dirname(files[0]), ".containerenv")] if files else []
        )  # podman names no path of it
        return [upper, *volumes, *(path for path in files if os.path.isfile(path))]

    async def allow_storage_again(self) -> None:
        """Let the container write as much again as it may: for tests, whatever the agent left."""
        self._storage_bytes = await self._count_written() + (self.container.storage_mb << 20)
        self._wrote_too_much = False

    @property
    def age_s(self) -> float:
        """How long ago the container was started, the last time."""
        return time.monotonic() - self._started

    async def is_running(self) -> bool:
        """Return whether the main process of the container is alive."""
        shown = await self._runtime.call("container", "inspect", "--format", "{{.State.Running}}", self.name)
        return shown.stdout.strip() == b"true"

    async def find_limit(self, *, within_s: float = KILL_TO_ERROR_S) -> str:
        """Return how the code inside ended its container or made it useless; nothing if it did not.

        That is storage_limit, memory_limit, process_limit, or container_crash if the first process crashed.

        Asked right after an error. With its memory or processes used up, a container may be alive and yet start no
        process. A kill because of memory counts if it came at most `within_s` before the error or the container's end:
        one that the agent survived is not why its container ended later.
        """
        if self._wrote_too_much:
            return "storage_limit"
        moment = time.time()
        if groups := await self._runtime.read_groups(self.name):
            if has_too_many_processes(groups):
                return "process_limit"
            return "memory_limit" if self._was_exhausted(moment, within_s) else ""
        return await self._explain_end(within_s)

    def _was_exhausted(self, moment: float, within_s: float) -> bool:
        last = self._memory.last_kill_time() if self._memory else None
        return last is not None and abs(moment - last) <= within_s

    async def _explain_end(self, within_s: float) -> str:
        """Return how the code inside ended the container, if it did; podman learns of its end a little later."""
        with suppress(ContainerError):
            await self._runtime.call("wait", self.name, timeout_s=30)
        shown = await self._runtime.call("container", "inspect", "--format", "{{json .State}}", self.name)
        if shown.code:
            return ""
        state = msgspec.json.decode(shown.stdout, type=EndState)
        if state.exit_code in CRASH_CODES:
            return "container_crash"
        return "memory_limit" if await self._ended_by_memory(state, within_s) else ""

    async def _ended_by_memory(self, state: EndState, within_s: float) -> bool:
        if not self._memory or not self._memory.is_active:
            return state.killed_by_memory  # all that is known where the kernel tells us nothing
        await asyncio.sleep(EVENT_S)
        if not self._memory.is_exact and not state.killed_by_memory:
            return False
        return self._was_exhausted(state.finished_at.timestamp(), within_s)

    async def _interrupt(self, script: str) -> None:
        command = ("exec", "--user", "0", self.name, "/bin/sh", "-c", script)
        with self._no_stuck_start():
            await self._runtime.call(*command, timeout_s=INTERRUPT_S)

    @contextmanager
    def _no_stuck_start(self) -> Iterator[None]:
        """Kill a process that the runtime could not start inside, in time or before its caller was cancelled.

        Code inside may have stopped it half-way. As long as it lives, docker answers no question about the container,
        and does not end it.
        """
        older = self._list_processes()
        try:
            yield
        except (ContainerError, asyncio.CancelledError):
            kill_entered(self._groups, older)
            raise

    async def end_processes(self) -> None:
        """Kill all processes inside but the first one; nothing if the container has ended."""
        with suppress(ContainerError):
            await self._interrupt("kill -9 -1")

    async def run(
        self,
        command: str,
        *,
        timeout_s: float = COMMAND_S,
        user: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        max_bytes: int = OUTPUT_BYTES,
        shell: KeptShell | None = None,
    ) -> CommandResult:
        """Run a command by bash (sh without one), with an own folder, variables and user; nothing of it stays.

        `shell` is one that `open_shell` returned, of another user for example.
        """
        shell = shell or await self._shell_of(user)
        settings = [f"cd {quote(workdir)} || exit 126"] if workdir else []
        settings += [f"export {name}={quote(value)}" for name, value in (env or {}).items()]
        script = "(" + "\n".join([*settings, f"eval {quote(command)}"]) + "\n)"
        before = self._list_processes()
        try:
            result = await shell.run(script, timeout_s, max_bytes, alone=True)
        except ContainerError:
            if self._wrote_too_much:
                why = f"the container wrote more than storage_mb={self.container.storage_mb}"
                raise ContainerError(why) from None
            raise
        now = self._list_processes()
        pipe = find_pipe(now, shell.session_pid, shell.descriptor) if now - before else ""
        if pipe and any(has_open(pid, pipe) for pid in now - before):
            self._retire(shell)
        return result

    def _list_processes(self) -> set[int]:
        with suppress(OSError):
            return set(list_processes(self._groups))
        return set()

    def _retire(self, shell: KeptShell) -> None:
        """Run later commands in another shell: processes that the last one left may print into the pipe of this one.

        They live on, and what they print is dropped. Shells of `open_shell` are not ours to replace.
        """
        for user in [user for user, each in self._shells.items() if each is shell]:
            del self._shells[user]
            self._retired[shell] = asyncio.create_task(shell.drain(), name="draining")
        if shell is self._main:
            self._retired[shell] = asyncio.create_task(shell.drain(), name="draining")

    async def _shell_of(self, user: str) -> KeptShell:
        """Return the shell in which commands of a user run; that of the container's own user is its main process."""
        user = "" if user == self.container.user else user
        if self._main is None:
            raise ContainerError(f"container {self.name} is not running")
        if not user and self._main not in self._retired:
            return self._main
        if user not in self._shells or self._shells[user].has_ended:
            self._shells[user] = await self.open_shell(user=user)
        return self._shells[user]

    def exec_command(self, command: Sequence[str], *, user: str = "") -> list[str]:
        """Return the command of this machine that runs a program inside, connected to its own pipes."""
        return self._runtime.exec_command(self.name, user, self.container.workdir, command)

    async def remember_user(self, name: str) -> bool:
        """Find out the ids of a user now, by which commands run later if code inside has removed the user by then.

        Return whether there is such a user. A number needs no entry in /etc/passwd.
        """
        user = quote(name.partition(":")[0])
        found = await self.run(f'export LC_ALL=C; echo "$(id -u {user}):$(id -g {user})"')
        if all(number.isdigit() for number in found.text.strip().split(":")):
            self._user_ids[name] = found.text.strip()
        missing = "no such user" in found.text or "unknown user" in found.text
        return not missing or name.partition(":")[0].isdigit()

    async def open_shell(
        self,
        *,
        user: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> KeptShell:
        """Open another shell inside, which keeps its folder and variables from command to command."""
        allowed = timeout_s or self.container.start_timeout_s
        try:
            return await self._open_shell(user, workdir, env or {}, allowed)
        except ImageError:
            if user not in self._user_ids:
                raise
            return await self._open_shell(self._user_ids[user], workdir, env or {}, allowed)

    async def _open_shell(self, user: str, workdir: str, env: Mapping[str, str], timeout_s: float) -> KeptShell:
        place = workdir or self.container.workdir
        with open_env_file({**self.container.env, **env}) as env_file, self._no_stuck_start():
            command = self._runtime.exec_command(self.name, user, place, MAIN_COMMAND, env_file)
            shell = KeptShell(command, self._interrupt)
            self._opened.add(shell)
            await shell.open(timeout_s)
        return shell

    async def read(
        self,
        path: str,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        user: str = "",
        shell: KeptShell | None = None,
        timeout_s: float = COMMAND_S,
    ) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none that can be read."""
        command = f"cat < {quote(path)}"
        result = await self.run(command, max_bytes=2 * max_bytes + 2, user=user, shell=shell, timeout_s=timeout_s)
        if result.timed_out:
            raise OSError(f"{path} could not be read within {timeout_s:g} s")
        if result.exit_code:
            raise FileNotFoundError(result.text.strip() or path)
        if result.omitted or len(result.output) > max_bytes:
            raise ValueError(f"{path} is larger than {max_bytes} bytes")
        return result.output

    async def write(
        self,
        path: str,
        data: str | bytes,
        *,
        user: str = "",
        shell: KeptShell | None = None,
        timeout_s: float = COMMAND_S,
    ) -> None:
        """Write a file; its folder is made if it is missing."""
        content = data.encode() if isinstance(data, str) else data
        if shell is None and (b"\0" in content or len(content) > SHELL_WRITE_BYTES):
            await self._write_input(path, content, user, timeout_s)
            return
        make = f"mkdir -p {quote(str(PurePosixPath(path).parent))}"
        if b"\0" in content:
            await self.run(make, shell=shell, timeout_s=timeout_s)
            await self._put_file(PurePosixPath(path), content)
            return
        text = content.decode(errors="surrogateescape")
        command = f"{make} && printf %s {quote(text)} > {quote(path)}"
        result = await self.run(command, user=user, shell=shell, timeout_s=timeout_s)
        if result.timed_out:
            raise OSError(f"{path} could not be written within {timeout_s:g} s")
        if result.exit_code:
            raise OSError(result.text.strip() or f"{path} cannot be written")

    async def _write_input(self, path: str, content: bytes, user: str, timeout_s: float) -> None:
        """Write a file by a process of its own, which reads the content from its input."""
        script = 'mkdir -p "$1" && cat > "$2"'
        words = ("/bin/sh", "-c", script, "sh", str(PurePosixPath(path).parent), path)
        with self._no_stuck_start():
            _, *command = self.exec_command(words, user=user)
            output = await self._runtime.call(*command, stdin=content, timeout_s=timeout_s)
        if output.code < 0 or output.code == RUNTIME_FAILED or (output.code and not await self.is_running()):
            raise ContainerError(f"{path} could not be written: {output.reason}")
        if output.code:
            raise OSError(output.reason)

    async def _put_file(self, target: PurePosixPath, content: bytes) -> None:
        archive = io.BytesIO()
        with open_archive(archive) as tar:
            entry = tarfile.TarInfo(target.name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
        await self.put_archive(str(target.parent), archive.getvalue())

    async def upload(self, source: Path, target: str) -> None:
        """Copy a file or a folder of this machine to a path inside; what a folder holds goes into the target.

        A folder takes the place of a file, and a file that of a folder.
        """
        is_file = source.is_file()
        folder = str(PurePosixPath(target).parent) if is_file else target
        make = f"mkdir -p {quote(folder)}"
        if not is_file:
            make = f"if [ ! -d {quote(folder)} ]; then rm -rf {quote(folder)}; fi; {make}"
        with tempfile.TemporaryFile() as file:
            await asyncio.to_thread(pack, source, PurePosixPath(target).name, file)
            result = await self.run(make, user="0")
            if result.exit_code:
                raise ContainerError(f"{folder} cannot be made: {result.text.strip()}")
            await self.put_archive(folder, file)

    async def put_archive(self, folder: str, archive: bytes | IO[bytes]) -> None:
        """Unpack a tar archive in a folder inside, by the runtime: nothing inside is run for that."""
        overwrite = ["--overwrite"] if self._runtime.name == "podman" else []
        # podman keeps the archive in a temporary file, and forgets to remove it.
        with temporary_folder("copy-") as temporary:
            command, env = ("cp", *overwrite, "-", f"{self.name}:{folder}"), {"TMPDIR": temporary}
            try:
                await self._runtime.require(*command, stdin=archive, env=env)
            except ContainerError as error:
                if "cannot overwrite" not in str(error) or not await self._remove_conflicts(folder, archive):
                    raise
                await self._runtime.require(*command, stdin=archive, env=env)

    async def _remove_conflicts(self, folder: str, archive: bytes | IO[bytes]) -> bool:
        """Remove what docker would not replace: a folder in place of a file, or the other way round.

        Return whether that could be done: only in the layer of a container that has ended.
        """
        upper = (await self.find_layers()).get("UpperDir")
        if not upper or await self.is_running():
            return False
        file = io.BytesIO(archive) if isinstance(archive, bytes) else archive
        file.seek(0)
        with tarfile.open(fileobj=file) as tar:
            for entry in tar:
                remove_conflict(upper, str(PurePosixPath(folder) / entry.name), is_folder=entry.isdir())
        file.seek(0)
        return True

    async def download(self, source: str, target: Path, *, max_bytes: int = MAX_DOWNLOAD_BYTES) -> list[str]:
        """Copy a file or folder from inside into a folder of this machine; return the names that are left out.

        A link to a regular file of the same folder becomes a copy; other links, devices, pipes and what is deeper than
        200 levels are left out. FileNotFoundError if there is none; ValueError if it is larger than `max_bytes`.
        """
        with tempfile.TemporaryFile() as file:
            await self._pull_archive(source, file, max_bytes)
            file.seek(0)
            return await asyncio.to_thread(unpack, file, target, source, max_bytes)

    async def _pull_archive(self, source: str, file: IO[bytes], max_bytes: int) -> None:
        try:
            async with asyncio.timeout(COPY_S):
                try:
                    await copy_out(self._runtime, self.name, source, file, max_bytes)
                except OddAttributeError:
                    if not await self._remove_odd_attributes(source):
                        raise
                    file.seek(0)
                    file.truncate()
                    await copy_out(self._runtime, self.name, source, file, max_bytes)
        except TimeoutError:
            raise ContainerError(f"{source} could not be copied within {COPY_S:g} s") from None

    async def _remove_odd_attributes(self, source: str) -> bool:
        """Remove attributes of files because of which the runtime copies nothing; return whether that could be done.

        Only in the layer of a container that has ended.
        """
        layers = await self.find_layers()
        if not layers or await self.is_running():
            return False
        return await asyncio.to_thread(Layers(await self.find_idle_layers()).remove_odd_attributes, source)

    async def read_unlinked(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a regular file as root, but follow no link, which code of a user may have made.

        It is read from outside, while the container runs: nothing inside is run for that. FileNotFoundError if there is
        no regular file; ValueError if it is larger.
        """
        root = f"/proc/{await self.main_pid()}/root"
        return await asyncio.to_thread(read_unlinked, root, path, max_bytes)

    async def read_archived(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file by the runtime alone: nothing inside is run for that, and it may be stopped."""
        with tempfile.TemporaryFile() as file, temporary_folder("read-") as folder:
            await self._pull_archive(path, file, max_bytes)
            file.seek(0)
            await asyncio.to_thread(unpack, file, Path(folder), path, max_bytes)
            found = Path(folder) / PurePosixPath(path).name
            if not found.is_file():
                raise FileNotFoundError(f"{path} is no regular file")
            return found.read_bytes()

    async def find_layers(self) -> dict[str, str]:
        """Return the folders of this machine with the container's files; nothing where we may not read them."""
        shown = await self._runtime.require("container", "inspect", "--format", "{{json .GraphDriver.Data}}", self.name)
        layers = msgspec.json.decode(shown, type=dict[str, str] | None) or {}
        return layers if os.access(layers.get("UpperDir", ""), os.R_OK | os.X_OK) and os.geteuid() == 0 else {}

    async def main_pid(self) -> int:
        """Return the process id, on this machine, of the container's main process."""
        shown = await self._runtime.require("container", "inspect", "--format", "{{.State.Pid}}", self.name)
        if not (pid := int(shown)):
            raise ContainerError(f"container {self.name} is not running")
        return pid

    async def list_ports(self) -> set[int]:
        """Return the TCP ports on which something listens inside; none where we may not look, or nothing runs."""
        with suppress(ContainerError, OSError):
            tables = [Path(f"/proc/{await self.main_pid()}/net/{name}").read_text() for name in ("tcp", "tcp6")]
            return {port for table in tables for port in _parse_listening(table)}
        return set()

    async def image_entrypoint(self) -> list[str]:
        """Return the entrypoint of the image, if the container runs it, without an init program."""
        if not self.container.entrypoint:
            return []
        return drop_init(await self._inspect_image("Entrypoint"))

    async def environment(self) -> list[tuple[str, str]]:
        """Return the variables of the container: those of the image, then those of the task."""
        settings = [each.partition("=") for each in await self._inspect_image("Env")]
        return [*((name, value) for name, _, value in settings), *self.container.env.items()]

    async def _inspect_image(self, field: str) -> list[str]:
        shown = await self._runtime.call(
            "image", "inspect", "--format", f"{{{{json .Config.{field}}}}}", self.container.image
        )
        found = msgspec.json.decode(shown.stdout or b"null", type=list[str] | dict[str, msgspec.Raw] | None)
        return [*found] if found else []

    async def require_layers(self) -> dict[str, str]:
        """Return the folders of this machine with the container's files; ContainerError where we may not use them."""
        if layers := await self.find_layers():
            return layers
        why = "what an agent changed can be undone only by root, and with the overlay storage of podman or docker"
        raise ContainerError(f'{why}: run as root, or write environment_mode = "separate" in [verifier]')

    async def find_idle_layers(self) -> dict[str, str]:
        """Return the same of a container that was killed, once nothing uses them."""
        for check in range(1, UNMOUNT_CHECKS + 1):
            layers = await self.require_layers()
            if not os.path.ismount(layers.get("MergedDir", "")):
                return layers
            await asyncio.sleep(UNMOUNT_CHECK_S)
            if check % RELEASE_CHECKS == 0:  # something else may have killed a command that copied files
                await self._runtime.release_files(self.name)
        raise ContainerError(f"the files of container {self.name} are still in use")

    async def snapshot(self) -> str:
        """Return the name of an image of what is inside now; it is removed together with the container."""
        image = f"{SNAPSHOT_NAME}:{secrets.token_hex(8)}"
        label = f"LABEL {OWNER_LABEL}={self._owner.label}"
        self._snapshots.append(LabelledObject("image", image, ""))
        with temporary_folder("commit-") as temporary:
            command, env = ("commit", "--change", label, self.name, image), {"TMPDIR": temporary}
            await self._runtime.require(*command, timeout_s=600, env=env)
        await self._runtime.repair_snapshot(image)
        return image

    async def kill(self) -> None:
        """End every process inside; the files stay. `restart` starts it again."""
        await self._end_entered()
        await self._close_shells()
        await self._runtime.call("kill", self.name)
        await self._runtime.call("wait", self.name, timeout_s=30)

    async def _end_entered(self) -> None:
        """Kill what came from outside first: docker waits for a command that code inside has stopped half-way."""
        await asyncio.to_thread(kill_entered, self._groups)
        await self._lift_cpu_quota()

    async def _lift_cpu_quota(self) -> None:
        """Let the processes inside end quickly; the next start sets the quota again."""
        if not lift_cpu_quota(self._groups):  # cgroup v2, or the container has ended
            lift_cpu_quota(await self._runtime.read_groups(self.name))

    async def restart(self, *, entrypoint: bool = True) -> None:
        """Start a container that was killed: the same files and mounts, no other process but the entrypoint's."""
        try:
            await self._open_main(self._runtime.start_command(self.name), entrypoint=entrypoint)
        except ContainerError:
            if not await self._repair_workdir():
                raise
            await self._open_main(self._runtime.start_command(self.name), entrypoint=entrypoint)

    async def _repair_workdir(self) -> bool:
        """Put empty folders where code inside left something else on the way to the working folder; say whether any."""
        if not (layers := await self.find_layers()):
            return False
        workdir = await self.find_workdir()
        try:
            lost = await asyncio.to_thread(Layers(layers).find_lost_folders, workdir)
        except OSError as error:
            raise ContainerError(f"the working folder {workdir} cannot be looked for: {error}") from None
        if lost:
            await self.put_archive("/", pack_folders(lost))
        return bool(lost)

    async def find_workdir(self) -> str:
        """Return the folder in which commands run."""
        shown = await self._runtime.require("container", "inspect", "--format", "{{.Config.WorkingDir}}", self.name)
        return shown.decode().strip() or "/"

    async def find_user(self) -> str:
        """Return the user of the container's first process, as the task or the image names it; nothing for root."""
        shown = await self._runtime.require("container", "inspect", "--format", "{{.Config.User}}", self.name)
        return shown.decode().strip()

    async def _close_shells(self) -> None:
        shells = [*self._shells.values(), *self._retired, *([self._main] if self._main else [])]
        for task in self._retired.values():
            task.cancel()
        self._shells, self._main, self._retired = {}, None, {}
        await asyncio.gather(*(shell.close() for shell in shells))

    async def remove(self) -> None:
        """Remove the container and its snapshots, whatever state it is in."""
        if self._watcher:
            self._watcher.cancel()
        if self._memory:
            self._memory.close()
        await self._end_entered()
        await self._close_shells()
        await asyncio.gather(*(shell.close() for shell in self._opened))
        await self._runtime.remove([LabelledObject("container", self.name, ""), *self._snapshots])


def drop_init(words: Sequence[str]) -> list[str]:
    """Return an entrypoint without an init program, which only waits for its child; our shell waits for all processes.

    >>> drop_init(["/usr/bin/tini", "-g", "-e", "143", "--", "/start.sh", "-v"])
    ['/start.sh', '-v']
    >>> drop_init(["dumb-init", "python3", "--", "x"]), drop_init(["/start.sh", "tini"])
    (['python3', '--', 'x'], ['/start.sh', 'tini'])
    """
    left = list(words)
    if not left or PurePosixPath(left.pop(0)).name not in INIT_PROGRAMS:
        return list(words)
    while left and left[0].startswith("-"):
        option = left.pop(0)
        if option == "--":
            break
        if option in INIT_OPTIONS and left:
            left.pop(0)
    return left


def _parse_listening(table: str) -> Iterator[int]:
    """Yield the ports of the lines of /proc/PID/net/tcp whose state is "listening"."""
    for line in table.splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        if state == "0A":
            yield int(local.rpartition(":")[2], 16)
