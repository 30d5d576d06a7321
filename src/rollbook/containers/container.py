"""What a container is started with: its image, its limits, its network; every limit has a value."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.errors import UsageError

MAX_OPEN_FILES = 65_536
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""What installing packages and running servers as root needs; every other capability is dropped."""

LEAST_MEMORY_MB, MOST_MB = 16, 1 << 24
"""In less memory no container starts; no machine has more memory or disk."""

LEAST_CPUS, MOST_CPUS = 0.01, 4096
LEAST_PROCESSES, MOST_PROCESSES = 64, 1 << 22
"""With fewer, the runtime may not be able to start a shell; the kernel has no more."""

LEAST_S, MOST_S = 0.001, 1e12
RANGES: Mapping[str, tuple[type, float, float]] = {
    "memory_mb": (int, LEAST_MEMORY_MB, MOST_MB),
    "storage_mb": (int, 1, MOST_MB),
    "processes": (int, LEAST_PROCESSES, MOST_PROCESSES),
    "cpus": (float, LEAST_CPUS, MOST_CPUS),
    "build_timeout_s": (float, LEAST_S, MOST_S),
    "start_timeout_s": (float, LEAST_S, MOST_S),
    "open_timeout_s": (float, LEAST_S, MOST_S),
    "verify_timeout_s": (float, LEAST_S, MOST_S),
}
"""The numbers of a container: their type, and from where to where."""

IMAGE_NAME = re.compile(r"[A-Za-z0-9][\w.:/@-]*")
VARIABLE_NAME = re.compile(r"[A-Za-z_][\w.-]*")
MAX_ENV_BYTES = 60_000
ENV_VALUE = f"one line of text without NUL, below {MAX_ENV_BYTES:,} bytes"
"""podman and docker read a file of variables by lines of at most 64 KiB."""
USER_NAME = re.compile(r"(?:\w[\w.-]*\$?(?::\w[\w.-]*)?)?")


class Mount(msgspec.Struct, frozen=True):
    """A folder of this machine inside the container."""

    source: str
    target: str
    read_only: bool = True


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container of one rollout. There is no network unless `network="public"` asks for one."""

    image: str = ""
    build: str = ""
    """A folder with a Dockerfile, from which the image is built once per node; in place of `image`."""
    memory_mb: int = 2048
    cpus: float = 1.0
    storage_mb: int = 10_240
    """What the agent may write: one that has written more is ended and scored. No single file can be larger."""
    processes: int = 1024
    network: Literal["none", "public"] = "none"
    env: Mapping[str, str] = {}
    """Variables and their values; they are given to the runtime by its environment, never in a command line."""
    workdir: str = ""
    """The folder that commands run in; empty: that of the image."""
    user: str = ""
    """Who commands run as; empty: the user of the image."""
    entrypoint: bool = False
    """Whether the entrypoint of the image is run first; it must end with `exec "$@"`."""
    mounts: Sequence[Mount] = ()
    build_timeout_s: float = 900.0
    """Seconds to build or pull the image."""
    start_timeout_s: float = 120.0
    open_timeout_s: float = 600.0
    """Seconds for `open` of the environment, in place of the limit of tool calls."""
    verify_timeout_s: float = 600.0
    """Seconds for `reply`, `outcome` and `verify` of the environment, in place of the limits of the run."""

    def __post_init__(self) -> None:
        if problem := next(_find_problems(self), ""):
            raise UsageError(f"Container: {problem}")


def _find_problems(container: Container) -> Iterator[str]:
    """Yield what is wrong with a container, whatever the types of its fields are."""
    for name in ("image", "build", "workdir", "user"):
        if not isinstance(getattr(container, name), str):
            yield f"{name}={getattr(container, name)!r}: give a text"
    if bool(container.image) == bool(container.build):
        yield "give either image=..., the name of an image, or build=..., a folder"
    if container.image and not IMAGE_NAME.fullmatch(container.image):
        yield f"image={container.image!r}: this is not the name of an image"
    if not is_text(container.build):
        yield f"build={container.build!r}: this is not the name of a folder"
    if container.workdir and not is_path_inside(container.workdir):
        yield f"workdir={container.workdir!r}: give an absolute path"
    if not USER_NAME.fullmatch(container.user):
        yield f"user={container.user!r}: this is not the name of a user"
    if container.network not in ("none", "public"):
        yield f'network={container.network!r}: write "none" or "public"'
    if not isinstance(container.entrypoint, bool):
        yield f"entrypoint={container.entrypoint!r}: write True or False"
    yield from _check_numbers(container)
    yield from _check_env(container.env)
    yield from _check_mounts(container.mounts)


def _check_numbers(container: Container) -> Iterator[str]:
    for name, (kind, least, most) in RANGES.items():
        value = getattr(container, name)
        right_type = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not right_type or not least <= value <= most:  # NaN is in no range
            what = "a whole number" if kind is int else "a number"
            yield f"{name}={value!r}: give {what} from {least:g} to {most:.0f}"


def _check_env(env: object) -> Iterator[str]:
    if not isinstance(env, Mapping):
        yield f"env={env!r}: give a dict of variables and their values"
        return
    for name, value in env.items():
        if not isinstance(name, str) or not VARIABLE_NAME.fullmatch(name):
            yield f"env: {name!r} is not the name of a variable"
        elif not isinstance(value, str) or not is_env_value(value):
            yield f"env: the value of {name} must be {ENV_VALUE}"  # it is not shown: it may be secret


def _check_mounts(mounts: object) -> Iterator[str]:
    if isinstance(mounts, str) or not isinstance(mounts, Sequence):
        yield f"mounts={mounts!r}: give a list of Mount(source, target)"
        return
    for mount in mounts:
        paths = (mount.source, mount.target) if isinstance(mount, Mount) else ()
        if not paths or not all(isinstance(path, str) and is_path_inside(path) and ":" not in path for path in paths):
            yield f"mounts: {mount!r}: give Mount(source, target) with absolute paths without a colon"


def is_text(text: str) -> bool:
    """Whether the system takes a text as a word or value: without NUL, and all of it can be encoded."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def is_env_value(text: str) -> bool:
    """Whether podman and docker can read the value of a variable from a file: they read it by lines.

    >>> is_env_value("a b=c"), is_env_value("a\\rb"), is_env_value("x" * MAX_ENV_BYTES)
    (True, False, False)
    """
    return is_text(text) and not {"\n", "\r"} & set(text) and len(os.fsencode(text)) < MAX_ENV_BYTES


def is_path_inside(path: str) -> bool:
    """Whether a path is absolute and of one line."""
    return path.startswith("/") and is_text(path) and "\n" not in path


def limit_arguments(container: Container) -> list[str]:
    """Return the options that bound what a container may use; they are the same for podman and docker."""
    memory = f"{container.memory_mb}m"
    files = min(_hard_limit(resource.RLIMIT_NOFILE), MAX_OPEN_FILES)
    processes = min(_hard_limit(resource.RLIMIT_NPROC), _pid_max())
    file_size = min(_hard_limit(resource.RLIMIT_FSIZE), container.storage_mb << 20)
    options = ["--memory", memory, "--memory-swap", memory, "--cpus", f"{container.cpus:g}"]
    options += ["--pids-limit", str(container.processes), "--ulimit", f"nofile={files}:{files}"]
    options += ["--ulimit", f"fsize={file_size}:{file_size}"]
    # The processes of one user are counted together over all containers, so this bound is only the host's own; it is
    # set because podman's default may be above what it may set itself, which fails.
    options += ["--ulimit", f"nproc={processes}:{processes}", "--ulimit", "core=0:0"]
    options += ["--security-opt", "no-new-privileges", "--cap-drop", "ALL"]
    for capability in CAPABILITIES:
        options += ["--cap-add", capability]
    return options


def _hard_limit(which: int) -> int:
    hard = resource.getrlimit(which)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _pid_max() -> int:
    try:
        return int(Path("/proc/sys/kernel/pid_max").read_text())
    except OSError:
        return 1 << 15  # the kernel's default
