"""What a container is started with: its image, its limits, its network; every limit has a value."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from rollbook.errors import UsageError

MAX_OPEN_FILES = 65_536
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""What installing packages and running servers as root needs; every other capability is dropped."""

NUMBERS = (
    *("memory_mb", "cpus", "storage_mb", "processes"),
    *("build_timeout_s", "start_timeout_s", "open_timeout_s", "verify_timeout_s"),
)


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
        if bool(self.image) == bool(self.build):
            raise UsageError("Container: give either image=..., the name of an image, or build=..., a folder")
        for name in NUMBERS:
            value = getattr(self, name)
            if value is None or value <= 0:
                raise UsageError(f"Container: {name}={value!r} must be more than 0")
        if self.network not in ("none", "public"):
            raise UsageError(f'Container: network={self.network!r}; write "none" or "public"')


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
