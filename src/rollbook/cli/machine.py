"""What the machine under us can do: small probes, none of which changes anything or waits long."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import msgspec

PROBE_TIMEOUT_S = 10.0
ENOUGH_FILES = 4096
SYS_LANDLOCK_CREATE_RULESET = 444
LANDLOCK_VERSION = 1
PR_GET_SECCOMP = 21
CLONE_NEWUSER = 0x10000000
LATER = "not part of this version"


class Finding(msgspec.Struct, frozen=True):
    """One thing a machine can or cannot do, and how we know."""

    what: str
    works: bool
    detail: str


def findings() -> list[Finding]:
    """Everything, in the order people need it."""
    return [
        Finding("python", sys.version_info >= (3, 11), f"{platform.python_version()}, {sys.executable}"),
        _package("event loop", "uvloop", "missing: plain asyncio is used, at about twice the CPU"),
        embedded_model(),
        _package("reasoning_gym", "reasoning_gym", "missing: pip install 'rollbook[gym]'"),
        open_files(),
        *sandbox(),
        slurm(),
        ray(),
        gpu(),
    ]


def _package(what: str, module: str, missing: str) -> Finding:
    if find_spec(module) is None:
        return Finding(what, False, missing)
    return Finding(what, True, f"{module} {_version(module)}")


def _version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def embedded_model() -> Finding:
    """The runtime has to be importable and the weights fetched."""
    from rollbook.models import weights

    if find_spec("xllamacpp") is None:
        return Finding("embedded model", False, "no runtime: pip install 'rollbook[local]'")
    if not weights.present():
        return Finding("embedded model", False, "no weights: rollbook local pull")
    return Finding("embedded model", True, f"xllamacpp {_version('xllamacpp')}, {weights.weights_path()}")


def open_files() -> Finding:
    """A rollout in flight needs a socket: the hard limit is what a run may raise itself to."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    enough = unlimited or hard >= ENOUGH_FILES
    detail = f"{soft} now, at most {'unlimited' if unlimited else hard}"
    return Finding("open files", enough, detail if enough else f"{detail}: concurrency will be capped; ulimit -Hn")


def sandbox() -> Iterator[Finding]:
    """Whether untrusted code really can be run behind walls here, tried out; and what the kernel offers for it."""
    yield _sandbox()
    yield _namespaces()
    yield _landlock()
    yield _seccomp()


def _sandbox() -> Finding:
    """Tried out as it comes; and where that is refused, what one would get who allows less."""
    from rollbook.sandbox import SandboxError

    try:
        return Finding("sandbox", True, f"tried out, {_tried_out(None)}")
    except (SandboxError, OSError) as error:
        refusal = " ".join(str(error).split())
    try:
        return Finding("sandbox", False, f"only if weaker walls are allowed: {_tried_out(True)}; {refusal}")
    except (SandboxError, OSError) as error:
        return Finding("sandbox", False, " ".join(str(error).split()))


def _tried_out(allow_weaker: bool | None) -> str:
    from rollbook.sandbox import Sandbox, SandboxError

    with Sandbox(size=1, allow_weaker=allow_weaker) as box:
        result = box.run_sync("6 * 7")
    if result.value != "42":
        raise SandboxError(f"six times seven is {result.value} ({result.status})")
    tier = "weaker" if "no namespaces" in result.isolation else "whole"
    total = "" if "cgroup" in result.isolation else "; no cgroup, so that several processes' memory stays open"
    return f"{tier}: {', '.join(result.isolation)}{total}"


def _namespaces() -> Finding:
    """Asked of a child, since unsharing changes the process that does it."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({CLONE_NEWUSER}) != 0)"
    if not sys.platform.startswith("linux"):
        return Finding("  user namespaces", False, "Linux only")
    works = _succeeds([sys.executable, "-c", code])
    return Finding("  user namespaces", works, "unshare works" if works else _why_no_namespaces())


def _why_no_namespaces() -> str:
    for name, forbidding in (("max_user_namespaces", "0"), ("unprivileged_userns_clone", "0")):
        for folder in ("/proc/sys/user", "/proc/sys/kernel"):
            path = Path(folder, name)
            if path.exists() and path.read_text().strip() == forbidding:
                return f"{path} is {forbidding}"
    return "unshare is refused, by a container or a security module"


def _landlock() -> Finding:
    if not sys.platform.startswith("linux"):
        return Finding("  landlock", False, "Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    if version > 0:
        return Finding("  landlock", True, f"ABI {version}")
    return Finding("  landlock", False, os.strerror(ctypes.get_errno()))


def _seccomp() -> Finding:
    if not sys.platform.startswith("linux"):
        return Finding("  seccomp", False, "Linux only")
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.exists():
        return Finding("  seccomp", False, "the kernel was built without filters")
    mode = ctypes.CDLL(None).prctl(PR_GET_SECCOMP, 0, 0, 0, 0)
    return Finding("  seccomp", True, "filters available" + ("; we already run under one" if mode == 2 else ""))


def slurm() -> Finding:
    """Found or not, it is not used: a yes would promise too much."""
    found = shutil.which("sbatch")
    return Finding("slurm", False, f"{LATER}; {found or 'sbatch is not on PATH'}")


def ray() -> Finding:
    """What it is good for here: the trainers' code environment, and not the workers of a run."""
    use = "CodeEnvironment.remote, for NeMo RL, runs in its actors; workers of a run do not"
    if find_spec("ray") is None:
        return Finding("ray", False, f"not installed (pip install ray); {use}")
    return Finding("ray", True, f"ray {_version('ray')}; {use}")


def gpu() -> Finding:
    """Whatever nvidia-smi says."""
    if shutil.which("nvidia-smi") is None:
        return Finding("gpu", False, "nvidia-smi is not on PATH; Rollbook itself needs none")
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("gpu", False, f"nvidia-smi: {error}")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return Finding("gpu", False, f"nvidia-smi: {(done.stderr or done.stdout).strip()[:200] or 'no device'}")
    return Finding("gpu", True, f"{len(lines)} x {lines[0]}")


def _succeeds(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=PROBE_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
