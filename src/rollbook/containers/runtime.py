"""podman and docker behind one small interface, by their command lines.

Everything that differs between the two is in the two classes at the end.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import msgspec

from rollbook.containers.container import ENV_VALUE, Container, is_env_value, limit_arguments
from rollbook.containers.removal import empty_deep_folder, kill_first_process
from rollbook.core import JSON
from rollbook.errors import ContainerError, ImageError, UsageError

COMMAND_TIMEOUT_S = 120.0
KILL_S = 5.0
"""How long a command of the runtime may take to end after it was killed."""

READ_BYTES = 1 << 16
ERROR_CHARS = 600
REMOVE_ATTEMPTS, REMOVE_PAUSE_S = 5, 0.5
EMPTY_S = 60.0
"""How long one attempt removes a deep folder; the next attempt continues."""

RUNTIME_VARIABLE = "ROLLBOOK_CONTAINER_RUNTIME"
USER_NAMESPACE_START, USER_NAMESPACE_SIZE = 200_000, 65_536
"""The ids of this machine that a container's own users are mapped to where we are root."""

LIMIT_CONTROLLERS = frozenset({"cpu", "memory", "pids"})
"""What the kernel must let podman control, so that the limits of containers hold."""

OCI_STATES = {"runc": "state.json", "crun": "config.json"}
"""The low-level runtimes, and the file of a container's folder that has its annotations."""

_IMAGE_FAULTS = (
    "no such image",
    "image not known",
    "not found in $path",
    "no such file or directory",
    "workdir",
    "working directory",
    "unable to find user",
    "no matching entries in passwd",
    "unable to find group",
    "exec format error",
    "1: exec: ",
    "manifest unknown",
)


_ADVICE = re.compile(r"\s*(?:Run|See) 'docker[^']* --help'")
"""The line that docker adds to every error."""

_GONE = ("no such", "not known", "not found")
"""What the runtimes say of an object that does not exist."""


class CommandOutput(NamedTuple):
    """What a command of the runtime wrote, and its exit code."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        return summarize_error(self.stderr or self.stdout.decode(errors="replace"))


def summarize_error(text: str) -> str:
    """Return the last line of an error that says something, bounded.

    >>> summarize_error("Trying...\\nError: no such image\\n\\n")
    'Error: no such image'
    >>> summarize_error("docker: no such image\\n\\nRun 'docker run --help' for more information\\n")
    'docker: no such image'
    """
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _ADVICE.match(line)]
    return (lines[-1] if lines else "it said nothing")[:ERROR_CHARS]


class LabelledObject(NamedTuple):
    """A container, image, network or volume that we made, and its owner as we wrote it."""

    kind: str
    id: str
    owner: str


class ContainerFolders(msgspec.Struct):
    """The first process of a container, and the folders of this machine that have its files."""

    id: str
    name: str
    pid: int
    layers: dict[str, str] | None
    mounts: list[dict[str, JSON]] | None

    @property
    def written(self) -> list[str]:
        """The folders that code inside writes to: its layer, and volumes of its image."""
        volumes = [str(each["Source"]) for each in self.mounts or () if each.get("Type") == "volume"]
        return [*filter(None, [(self.layers or {}).get("UpperDir")]), *volumes]


_FOLDERS_FORMAT = (
    '{"id":"{{.Id}}","name":"{{.Name}}","pid":{{.State.Pid}},'
    '"layers":{{json .GraphDriver.Data}},"mounts":{{json .Mounts}}}'
)


class Runtime(Protocol):
    """What containers need of podman, docker or a later one."""

    name: str
    ignores_volumes: bool
    """Whether volumes of an image are ordinary folders of a container, which has to be made if the image lacks it."""

    def run_command(
        self, name: str, container: Container, labels: Mapping[str, str], main: Sequence[str], env_file: str = ""
    ) -> list[str]:
        """Return the command that starts a container with `main` and stays connected to its pipes."""
        ...

    def start_command(self, name: str) -> list[str]:
        """Return the command that starts a container again and stays connected to its pipes."""
        ...

    def exec_command(self, name: str, user: str, workdir: str, command: Sequence[str], env_file: str = "") -> list[str]:
        """Return the command that runs one more process inside, connected to our pipes."""
        ...

    async def call(
        self,
        *args: str,
        stdin: bytes | IO[bytes] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> CommandOutput:
        """Run one command of the runtime to its end; `inherited` are open files that stay open as long as it lives."""
        ...

    async def require(
        self,
        *args: str,
        stdin: bytes | IO[bytes] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run a command that must work; ContainerError or ImageError with its message if it does not."""
        ...

    async def has_image(self, image: str) -> bool:
        """Return whether this node has an image."""
        ...

    async def find_storage(self) -> Path:
        """Return the folder of this machine that holds the files of containers."""
        ...

    async def read_groups(self, name: str) -> str:
        """Return the control groups of a container's first process; nothing if that has ended."""
        ...

    async def require_limits(self) -> None:
        """Raise a UsageError where the runtime would start containers without the limits that we set."""
        ...

    async def list_labelled(self, label: str) -> list[LabelledObject]:
        """Return every object with a label."""
        ...

    async def remove(self, objects: Sequence[LabelledObject]) -> None:
        """Remove objects; those that are gone already are no error. ContainerError if one cannot be removed."""
        ...

    async def release_files(self, name: str) -> None:
        """Let go of the files of a container that has ended, if a copy of them was ended early."""
        ...

    def list_states(self, label: str) -> list[LabelledObject]:
        """Return the containers with a label that the low-level runtime knows, whether or not `list_labelled` does."""
        ...

    async def delete_state(self, state: LabelledObject) -> None:
        """End what the low-level runtime knows of a container that has been removed."""
        ...

    async def repair_snapshot(self, image: str) -> None:
        """Give the files of a committed image the owners that they had inside."""
        ...

    def list_build_containers(self, folder: Path) -> list[str]:
        """Return the containers in which commands of a build run now; `folder` is that of its temporary files."""
        ...

    async def remove_build(self, folder: Path, containers: Sequence[str]) -> None:
        """Remove what a build that was killed left: the command that it ran, and its containers."""


def work_folder() -> Path:
    """Return the folder that all our processes of this user on this node share: locks, and files of the runtime.

    The monitor of a container leaves a file called `oom` in the folder that it was started in.
    """
    folder = Path(tempfile.gettempdir()) / f"rollbook-containers-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise ContainerError(f"{folder} belongs to another user")
    return folder


async def kill_client(process: asyncio.subprocess.Process) -> None:
    """Kill a command of the runtime if it has not ended, and wait until it has, but not for ever.

    asyncio reports the end of a process only after the ends of its pipes, and it stops reading a pipe of which much is
    unread. So what is left in the pipes is read and dropped.
    """
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(KILL_S):
            await asyncio.gather(*(_drop_output(pipe) for pipe in (process.stdout, process.stderr) if pipe))
            await process.wait()


async def _drop_output(pipe: asyncio.StreamReader) -> None:
    with suppress(RuntimeError):  # another task reads it already
        while await pipe.read(READ_BYTES):
            pass


def client_variables() -> list[str]:
    """Return the names of our variables by which the runtime's command finds its engine, storage and settings."""
    return [name for name in os.environ if name.startswith(("DOCKER_", "CONTAINER", "XDG_"))]


@contextmanager
def open_env_file(variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the path of a file with variables for processes inside, which the runtime reads; empty if there are none.

    The variables are not in the environment of the runtime's own process: there PATH, LD_PRELOAD or DOCKER_HOST of a
    task would decide what runs on this machine. They are not in its command line either, nor on a disk.
    """
    if wrong := [name for name, value in variables.items() if not is_env_value(value)]:
        raise ValueError(f"the value of {wrong[0]} must be {ENV_VALUE}")
    with os.fdopen(os.memfd_create("variables"), "wb") as file:
        file.write(b"".join(os.fsencode(f"{name}={value}\n") for name, value in variables.items()))
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}" if variables else ""


def temporary_root() -> str:
    """Return the folder for temporary files that may be large, as podman chooses it."""
    return os.environ.get("TMPDIR", "/var/tmp")


def classify_error(reason: str) -> ContainerError:
    """Return the error for a message of the runtime: the image's fault, or a failure of this machine.

    >>> type(classify_error("Error: localhost/x: image not known")).__name__
    'ImageError'
    >>> type(classify_error("Error: unable to find group judges: no matching entries in group file")).__name__
    'ImageError'
    >>> type(classify_error("Error: no space left on device")).__name__
    'ContainerError'
    >>> type(classify_error("open /proc/7/ns/mnt: no such file or directory")).__name__
    'ContainerError'
    """
    text = reason.lower()
    ours = "no space left" in text or "/proc/" in text
    if not ours and any(fault in text for fault in _IMAGE_FAULTS):
        return ImageError(reason)
    return ContainerError(reason)


class CommandLine:
    """What podman and docker have in common."""

    name = ""
    host_options: Sequence[str] = ()
    remove_options: Sequence[str] = ()
    force_network: Sequence[str] = ("--force",)
    storage_format = ""
    ignores_volumes = False

    def run_command(
        self, name: str, container: Container, labels: Mapping[str, str], main: Sequence[str], env_file: str = ""
    ) -> list[str]:
        """Return the command that starts a container with `main` and stays connected to its pipes."""
        command = [self.name, "run", "--interactive", "--name", name, "--pull", "never", *limit_arguments(container)]
        command += ["--log-driver", "none"]  # what is printed inside would fill this machine's disk
        command += [*self.host_options, "--network", "none"] if container.network == "none" else [*self.host_options]
        for key, value in labels.items():
            command += ["--label", f"{key}={value}"]
        command += ["--env-file", env_file] if env_file else []
        for mount in container.mounts:
            command += ["--volume", f"{mount.source}:{mount.target}:{'ro' if mount.read_only else 'rw'}"]
        command += ["--workdir", container.workdir] if container.workdir else []
        command += ["--user", container.user] if container.user else []
        command.append("--no-healthcheck")  # docker would run the image's own next to tests, with the agent's programs
        return [*command, "--entrypoint", main[0], container.image, *main[1:]]

    def start_command(self, name: str) -> list[str]:
        """Return the command that starts a container again and stays connected to its pipes."""
        return [self.name, "start", "--attach", "--interactive", name]

    def exec_command(self, name: str, user: str, workdir: str, command: Sequence[str], env_file: str = "") -> list[str]:
        """Return the command that runs one more process inside, connected to our pipes."""
        options = ["--env-file", env_file] if env_file else []
        options += ["--user", user] if user else []
        options += ["--workdir", workdir] if workdir else []
        return [self.name, "exec", "--interactive", *options, name, *command]

    async def call(
        self,
        *args: str,
        stdin: bytes | IO[bytes] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> CommandOutput:
        """Run one command of the runtime to its end; one that is late is killed, and that is a ContainerError."""
        given = stdin if isinstance(stdin, bytes) else None
        source = asyncio.subprocess.PIPE if isinstance(stdin, bytes) else stdin or asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *(self.name, *args),
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=work_folder(),
            env={**os.environ, **env} if env else None,
            pass_fds=inherited,
        )
        try:
            async with asyncio.timeout(timeout_s):
                stdout, stderr = await process.communicate(given)
        except TimeoutError:
            raise ContainerError(f"{self.name} {args[0]} took longer than {timeout_s:g} s") from None
        finally:
            if process.returncode is None:
                await asyncio.shield(kill_client(process))
        assert process.returncode is not None
        return CommandOutput(process.returncode, stdout, stderr.decode(errors="replace"))

    async def require(
        self,
        *args: str,
        stdin: bytes | IO[bytes] | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> bytes:
        """Run a command that must work; ContainerError or ImageError with its message if it does not."""
        output = await self.call(*args, stdin=stdin, timeout_s=timeout_s, env=env)
        if output.code:
            raise classify_error(f"{self.name} {args[0]}: {output.reason}")
        return output.stdout

    async def has_image(self, image: str) -> bool:
        """Return whether this node has an image."""
        return (await self.call("image", "inspect", "--format", "{{.Id}}", image)).code == 0

    async def find_storage(self) -> Path:
        """Return the folder of this machine that holds the files of containers."""
        return Path((await self.require("info", "--format", self.storage_format)).decode().strip())

    async def read_groups(self, name: str) -> str:
        """Return the control groups of a container's first process; nothing if that has ended."""
        shown = await self.call("container", "inspect", "--format", "{{.State.Pid}}", name)
        with suppress(OSError):
            return (Path("/proc") / (shown.stdout.decode().strip() or "0") / "cgroup").read_text()
        return ""

    async def require_limits(self) -> None:
        """Do nothing: the runtime sets limits as root."""

    async def list_labelled(self, label: str) -> list[LabelledObject]:
        """Return every object with a label."""
        value = f'{{{{index .Labels "{label}"}}}}'
        listings = {
            "container": ["ps", "--all", "--no-trunc", "--format", f"{{{{.ID}}}} {self.label_format(label)}"],
            "network": ["network", "ls", "--format", f"{{{{.Name}}}} {self.label_format(label)}"],
            "volume": ["volume", "ls", "--format", f"{{{{.Name}}}} {self.label_format(label)}"],
        }
        found = []
        for kind, command in listings.items():
            found += await self._list(kind, [*command, "--filter", f"label={label}"])
        images = await self.call("images", "--no-trunc", "--quiet", "--filter", f"label={label}")
        for image in dict.fromkeys(images.stdout.decode().split()):
            labels = value.replace(".Labels", ".Config.Labels")
            found += await self._list("image", ["image", "inspect", "--format", f"{image} {labels}", image])
        return found

    def label_format(self, label: str) -> str:
        """Return the template that prints the value of a label in a listing."""
        return f'{{{{.Label "{label}"}}}}'

    async def _list(self, kind: str, command: Sequence[str]) -> list[LabelledObject]:
        output = await self.call(*command)
        lines = (line.strip().partition(" ") for line in output.stdout.decode(errors="replace").splitlines())
        return [LabelledObject(kind, name, owner.strip()) for name, _, owner in lines if name]

    async def remove(self, objects: Sequence[LabelledObject]) -> None:
        """Remove objects; those that are gone already are no error. Containers first: they use the others.

        The command itself may be killed, or find a container that is still being made: then it is run again.
        ContainerError if something cannot be removed.
        """
        left = list(objects)
        for attempt in range(REMOVE_ATTEMPTS):
            await asyncio.sleep(attempt * REMOVE_PAUSE_S)
            reason = await self._try_to_remove(left)
            if not reason:
                return
            left = [each for each in left if await self._exists(each)]
            if not left:
                return
        raise ContainerError(f"{self.name} cannot remove {', '.join(each.id for each in left)}: {reason}")

    async def _try_to_remove(self, objects: Sequence[LabelledObject]) -> str:
        """Remove objects; return why not all of them could be removed."""
        commands = {
            "container": ["rm", "--force", "--volumes", *self.remove_options],
            "network": ["network", "rm", *self.force_network],
            "volume": ["volume", "rm", "--force"],
            "image": ["image", "rm", "--force"],
        }
        kept = await self.empty_containers([each.id for each in objects if each.kind == "container"])
        reasons = [f"the files of {name} are not removed yet" for name in kept]
        for kind, command in commands.items():
            if names := [each.id for each in objects if each.kind == kind and each.id not in kept]:
                output = await self.call(*command, *names)
                reasons += [output.reason] if output.code else []
        return "; ".join(reasons)

    async def empty_containers(self, names: Sequence[str]) -> list[str]:
        """End containers, and remove folders of theirs that are too deep for the runtime; return which have more left.

        podman would not remove such a folder, and fail at every later command; docker would keep the container.
        """
        if os.geteuid() != 0 or not names:
            return []
        output = await self.call("container", "inspect", "--format", _FOLDERS_FORMAT, *names)
        found = [msgspec.json.decode(line, type=ContainerFolders) for line in output.stdout.splitlines()]
        left = [each for each in found if not await asyncio.to_thread(_empty_container, each)]
        return [name for name in names if any(name in (each.id, each.name.lstrip("/")) for each in left)]

    async def _exists(self, each: LabelledObject) -> bool:
        """Return whether an object is still there; one that cannot be looked up counts as there."""
        output = await self.call(each.kind, "inspect", "--format", "{{.}}", each.id)
        return output.code == 0 or not any(words in output.stderr.lower() for words in _GONE)

    async def release_files(self, name: str) -> None:
        """Do nothing: a daemon copies, and notices the end of its client."""

    def list_states(self, label: str) -> list[LabelledObject]:
        """Return nothing: a daemon looks after them itself."""
        return []

    async def delete_state(self, state: LabelledObject) -> None:
        """Do nothing: there are none."""

    async def repair_snapshot(self, image: str) -> None:
        """Do nothing: the owners of files are right."""

    def list_build_containers(self, folder: Path) -> list[str]:
        """Return nothing: a daemon builds, and looks after that itself."""
        return []

    async def remove_build(self, folder: Path, containers: Sequence[str]) -> None:
        """Do nothing: there are none."""


class Podman(CommandLine):
    """podman; as root, containers get users of their own that are nobody outside."""

    name = "podman"
    storage_format = "{{.Store.GraphRoot}}"
    ignores_volumes = True
    remove_options = ("--time", "0")  # the first process of a container ignores requests to end

    @property
    def host_options(self) -> Sequence[str]:  # type: ignore[override]
        """Return the options of every container here: own users where we are root, none of our proxies.

        Volumes of the image are ordinary folders: what is written there is counted and undone like everything else.
        """
        mapping = f"0:{USER_NAMESPACE_START}:{USER_NAMESPACE_SIZE}"
        return [
            "--http-proxy=false",
            "--image-volume=ignore",
            *(["--uidmap", mapping, "--gidmap", mapping] if os.geteuid() == 0 else []),
        ]

    def run_command(
        self, name: str, container: Container, labels: Mapping[str, str], main: Sequence[str], env_file: str = ""
    ) -> list[str]:
        """Return the command that starts a container; its labels are known to the low-level runtime too."""
        annotations = [word for key, value in labels.items() for word in ("--annotation", f"{key}={value}")]
        command = super().run_command(name, container, labels, main, env_file)
        return [*command[:2], *annotations, *command[2:]]

    async def require_limits(self) -> None:
        """Raise a UsageError if podman runs without root where it may not set limits; it ignores them there."""
        if os.geteuid() == 0:
            return
        shown = await self.require("info", "--format", "{{json .Host.CgroupControllers}}")
        missing = LIMIT_CONTROLLERS - set(msgspec.json.decode(shown, type=list[str] | None) or [])
        if missing:
            which = ", ".join(sorted(missing))
            why = f"podman without root cannot limit {which} on this machine (it needs cgroup v2, and these delegated)"
            raise UsageError(f"{why}: run as root")

    async def release_files(self, name: str) -> None:
        """Unmount the files of a container that has ended: a `podman cp` or `exec` that is killed leaves them mounted.

        podman leaves a container alone that runs. Without `cleanup` it would take the files for mounted.
        """
        with suppress(ContainerError):
            await self.call("umount", "--force", name)
            await self.call("container", "cleanup", name)

    def list_states(self, label: str) -> list[LabelledObject]:
        """Return the containers with a label that runc or crun knows.

        If podman is killed while it starts a container, it removes its own record later, but not that of runc, whose
        first process then waits for ever.
        """
        found = []
        pattern = re.compile(re.escape(label).encode() + rb"""["=: ]+([\w%.~-]+)""")
        for program, file in OCI_STATES.items():
            for path in (_runtime_folder() / program).glob(f"*/{file}"):
                with suppress(OSError):
                    if match := pattern.search(path.read_bytes()):
                        found.append(LabelledObject(program, path.parent.name, match[1].decode()))
        return found

    async def delete_state(self, state: LabelledObject) -> None:
        """End what runc or crun knows of a container that podman does not know."""
        if (await self.call("container", "exists", state.id)).code == 1:
            await _delete_state(state.kind, state.id)

    def list_build_containers(self, folder: Path) -> list[str]:
        """Return the containers in which commands of a build run now.

        They have no label, but podman keeps a folder for each command, which names its container.
        """
        return [name for each in folder.glob("buildah*") if (name := _read_build_container(each))]

    async def remove_build(self, folder: Path, containers: Sequence[str]) -> None:
        """End the command of a Dockerfile that was running, and remove the containers of the build."""
        for each in folder.glob("buildah*"):
            for program in OCI_STATES:
                if (_runtime_folder() / program / f"buildah-{each.name}").is_dir():
                    await _delete_state(program, f"buildah-{each.name}")
        await self.remove([LabelledObject("container", each, "") for each in containers])

    def label_format(self, label: str) -> str:
        """Return the template that prints the value of a label in a listing."""
        return f'{{{{index .Labels "{label}"}}}}'

    async def repair_snapshot(self, image: str) -> None:
        """Give the files of a committed image the owners that they had inside.

        podman 4 commits files with the ids of this machine when it maps users by mounts. A file that another version
        wrote with the right owner is left alone: its id is not in the range.
        """
        if os.geteuid() != 0:
            return
        output = await self.require("image", "inspect", "--format", "{{json .GraphDriver.Data}}", image)
        upper = msgspec.json.decode(output, type=dict[str, str]).get("UpperDir")
        if upper:
            await asyncio.to_thread(_shift_owners, Path(upper))


class Docker(CommandLine):
    """docker; own users of containers are a setting of its daemon (userns-remap)."""

    name = "docker"
    storage_format = "{{.DockerRootDir}}"
    force_network = ()  # docker's `network rm` has no --force


async def _delete_state(program: str, name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *(program, "delete", "--force", name),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        raise ContainerError(f"{program} delete took longer than {COMMAND_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            await asyncio.shield(kill_client(process))


def _empty_container(container: ContainerFolders) -> bool:
    """End a container, and empty those of its folders that are deep; return whether that is done."""
    if container.pid:
        kill_first_process(container.pid, container.id)
    try:
        return all(empty_deep_folder(folder, EMPTY_S) for folder in container.written)
    except OSError:
        return False


def _read_build_container(folder: Path) -> str:
    """Return the id of the container in which a command of a Dockerfile ran."""
    with suppress(OSError):
        if match := re.search(r'^id="([0-9a-f]{64})"$', (folder / "run" / ".containerenv").read_text(), re.MULTILINE):
            return match[1]
    return ""


def _runtime_folder() -> Path:
    """Return the folder in which low-level runtimes keep the states of this user's containers."""
    user = os.geteuid()
    return Path("/run") if user == 0 else Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{user}"))


def _shift_owners(folder: Path) -> None:
    for root, folders, files in os.walk(folder):
        for path in (os.path.join(root, name) for name in (".", *folders, *files)):
            status = os.lstat(path)
            owner, group = _inner_id(status.st_uid), _inner_id(status.st_gid)
            if (owner, group) != (status.st_uid, status.st_gid):
                os.lchown(path, owner, group)
                if not os.path.islink(path):
                    os.chmod(path, status.st_mode & 0o7777)  # a change of the owner clears set-user-id


def _inner_id(number: int) -> int:
    inner = number - USER_NAMESPACE_START
    return inner if 0 <= inner < USER_NAMESPACE_SIZE else number


RUNTIMES = {"podman": Podman, "docker": Docker}


@cache
def find_runtime(name: str = "") -> Runtime:
    """Return the runtime of this machine: the one that is named, else podman, else docker."""
    wanted = name or os.environ.get(RUNTIME_VARIABLE, "")
    if wanted and wanted not in RUNTIMES:
        raise UsageError(f"{RUNTIME_VARIABLE}={wanted}: known are {', '.join(RUNTIMES)}")
    for each in [wanted] if wanted else list(RUNTIMES):
        if shutil.which(each):
            runtime: Runtime = RUNTIMES[each]()
            return runtime
    raise UsageError(f"containers need {wanted or 'podman or docker'}, which is not on PATH: install podman and runc")
