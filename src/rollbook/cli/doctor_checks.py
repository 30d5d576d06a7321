"""Checks of what this machine or an endpoint can do, each made by trying it.

The checks of the machine are short and change nothing. An endpoint gets a few short requests.
"""

from __future__ import annotations

import asyncio
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

from rollbook.core import JSON, Message, Sampling, Settings
from rollbook.errors import ContainerError, RayUnreachable, RolloutFailed, SchedulerError, UsageError
from rollbook.models import RAW_LOGPROBS, AnsweredCall, ChatModel, has_weights, open_model, resolve_model, weights_path

PROBE_TIMEOUT_S = 10.0
MIN_OPEN_FILES = 4096
SYS_LANDLOCK_CREATE_RULESET = 444
LANDLOCK_VERSION = 1
PR_GET_SECCOMP = 21
CLONE_NEWUSER = 0x10000000


class DoctorFinding(msgspec.Struct, frozen=True):
    """One thing that works or does not, with the evidence."""

    what: str
    works: bool
    detail: str


def check_machine() -> list[DoctorFinding]:
    """Check everything on this machine, in the order in which people need it."""
    return [
        DoctorFinding("python", sys.version_info >= (3, 11), f"{platform.python_version()}, {sys.executable}"),
        _check_package("event loop", "uvloop", "missing: plain asyncio is used, at about twice the CPU"),
        check_embedded_model(),
        _check_package("reasoning_gym", "reasoning_gym", "missing: pip install 'rollbook[gym]'"),
        check_open_files(),
        *check_sandbox(),
        check_containers(),
        *check_schedulers(),
        check_ray(),
        check_gpu(),
    ]


def _check_package(what: str, module: str, missing: str) -> DoctorFinding:
    if find_spec(module) is None:
        return DoctorFinding(what, False, missing)
    return DoctorFinding(what, True, f"{module} {_read_version(module)}")


def _read_version(module: str) -> str:
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def check_embedded_model() -> DoctorFinding:
    """Check that the runtime can be imported and the weights are downloaded."""
    if find_spec("xllamacpp") is None:
        return DoctorFinding("embedded model", False, "no runtime: pip install 'rollbook[local]'")
    if not has_weights():
        return DoctorFinding("embedded model", False, "no weights: rollbook local pull")
    return DoctorFinding("embedded model", True, f"xllamacpp {_read_version('xllamacpp')}, {weights_path()}")


def check_open_files() -> DoctorFinding:
    """Check the hard limit of open files, to which a run may raise its own: each rollout in flight needs a socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    enough = unlimited or hard >= MIN_OPEN_FILES
    detail = f"{soft} now, at most {'unlimited' if unlimited else hard}"
    return DoctorFinding(
        "open files", enough, detail if enough else f"{detail}: concurrency will be capped; ulimit -Hn"
    )


def check_sandbox() -> Iterator[DoctorFinding]:
    """Run code in a sandbox, and check what the kernel offers for isolation."""
    yield _try_sandbox()
    for what, check in (
        ("user namespaces", _check_namespaces),
        ("landlock", _check_landlock),
        ("seccomp", _check_seccomp),
    ):
        works, detail = check() if sys.platform.startswith("linux") else (False, "Linux only")
        yield DoctorFinding(f"  {what}", works, detail)


def _try_sandbox() -> DoctorFinding:
    """Run code with full isolation; where that is refused, try what `allow_weaker` would give."""
    from rollbook.sandbox import SandboxError

    try:
        return DoctorFinding("sandbox", True, f"tried out, {_run_in_sandbox(None)}")
    except (SandboxError, OSError) as error:
        refusal = " ".join(str(error).split())
    try:
        return DoctorFinding(
            "sandbox", False, f"only if weaker isolation is allowed: {_run_in_sandbox(True)}; {refusal}"
        )
    except (SandboxError, OSError) as error:
        return DoctorFinding("sandbox", False, " ".join(str(error).split()))


def _run_in_sandbox(allow_weaker: bool | None) -> str:
    from rollbook.sandbox import Sandbox, SandboxError

    with Sandbox(size=1, allow_weaker=allow_weaker) as sandbox:
        result = sandbox.run_sync("6 * 7")
    if result.value != "42":
        raise SandboxError(f"six times seven is {result.value} ({result.status})")
    tier = "weaker" if "no namespaces" in result.isolation else "whole"
    total = "" if "cgroup" in result.isolation else "; no cgroup: the total memory of several processes is not limited"
    return f"{tier}: {', '.join(result.isolation)}{total}"


def _check_namespaces() -> tuple[bool, str]:
    """Check in a child process, because unsharing changes the process that does it."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({CLONE_NEWUSER}) != 0)"
    try:
        works = not subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=PROBE_TIMEOUT_S
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return works, "unshare works" if works else _explain_no_namespaces()


def _explain_no_namespaces() -> str:
    for name, forbidding in (("max_user_namespaces", "0"), ("unprivileged_userns_clone", "0")):
        for folder in ("/proc/sys/user", "/proc/sys/kernel"):
            path = Path(folder, name)
            if path.exists() and path.read_text().strip() == forbidding:
                return f"{path} is {forbidding}"
    return "unshare is refused, by a container or a security module"


def _check_landlock() -> tuple[bool, str]:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    return (True, f"ABI {version}") if version > 0 else (False, os.strerror(ctypes.get_errno()))


def _check_seccomp() -> tuple[bool, str]:
    if not Path("/proc/sys/kernel/seccomp/actions_avail").exists():
        return False, "the kernel was built without filters"
    mode = ctypes.CDLL(None).prctl(PR_GET_SECCOMP, 0, 0, 0, 0)
    return True, "filters available" + ("; we already run under one" if mode == 2 else "")


def check_containers() -> DoctorFinding:
    """Ask the container runtime for its version, and whether the limits of containers hold."""
    from rollbook.containers import find_runtime

    try:
        runtime = find_runtime()
        version = asyncio.run(runtime.require("--version", timeout_s=PROBE_TIMEOUT_S)).decode().strip()
        asyncio.run(runtime.require_limits())
    except (ContainerError, UsageError, OSError) as error:
        return DoctorFinding("containers", False, str(error))
    return DoctorFinding("containers", True, f"{version}, for harbor:PATH")


def check_schedulers() -> Iterator[DoctorFinding]:
    """Ask every batch system that `--on` takes what a submission asks it first."""
    from rollbook.clusters import find_scheduler, scheduler_names

    for name in scheduler_names():
        try:
            most = find_scheduler(name).read_max_array_size()
            yield DoctorFinding(name, True, f"--on {name} submits arrays of up to {most} workers")
        except (SchedulerError, UsageError) as error:
            yield DoctorFinding(name, False, str(error))


def check_ray() -> DoctorFinding:
    """Import Ray."""
    from rollbook.clusters.ray import import_ray

    try:
        return DoctorFinding("ray", True, f"ray {import_ray().__version__}, for --on ray")
    except RayUnreachable as error:
        return DoctorFinding("ray", False, str(error))


def check_gpu() -> DoctorFinding:
    """Report what nvidia-smi prints."""
    if shutil.which("nvidia-smi") is None:
        return DoctorFinding("gpu", False, "nvidia-smi is not on PATH; Rollbook itself needs no GPU")
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return DoctorFinding("gpu", False, f"nvidia-smi: {error}")
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode or not lines:
        return DoctorFinding("gpu", False, f"nvidia-smi: {(done.stderr or done.stdout).strip()[:200] or 'no device'}")
    return DoctorFinding("gpu", True, f"{len(lines)} x {lines[0]}")


PROBE_ENDPOINT_S = 60.0
PROBE_MESSAGES = [Message("user", "Hello")]
PROBE_SAMPLING = Sampling(max_tokens=256, extra={"chat_template_kwargs": {"enable_thinking": False}})
"""Without thinking: it may be long, and an answer that is cut inside its thoughts cannot be continued."""


def check_endpoint(target: str, name: str, **settings: JSON) -> list[DoctorFinding]:
    """Check what exact tokens need of an endpoint, in the order in which it is needed."""
    reasons: list[str] = []
    start = Settings(call_s=PROBE_ENDPOINT_S, outage_s=0.0, **settings)
    model = open_model(*resolve_model([target], name, start), say=reasons.append)
    if not isinstance(model, ChatModel):
        raise UsageError(f"doctor -m {target}: only an endpoint can be checked")
    return asyncio.run(_check_model(model, reasons))


async def _check_model(model: ChatModel, reasons: list[str]) -> list[DoctorFinding]:
    await model.open()
    try:
        served = DoctorFinding("endpoint", True, model.spec.name)
        if not model.tokens:
            return [
                served,
                DoctorFinding("  token ids", False, "only vLLM reports them: rollouts can be scored, not trained on"),
            ]
        return [served, *await _check_tokens(model, reasons)]
    except RolloutFailed as error:
        return [DoctorFinding("endpoint", False, f"{error.kind}: {error.message}")]
    finally:
        await model.close()


async def _check_tokens(model: ChatModel, reasons: list[str]) -> list[DoctorFinding]:
    first = await model.complete(PROBE_MESSAGES, PROBE_SAMPLING, seed=0, rollout="doctor")
    if first.turn.prompt_ids is None or first.turn.ids is None:
        return [DoctorFinding("  token ids", False, "this vLLM does not report them; 0.11 and newer do")]
    mode = await model.find_logprobs_mode()
    messages = [*PROBE_MESSAGES, first.message, Message("user", "Again")]
    then = await model.complete_from(
        AnsweredCall(PROBE_MESSAGES, first), messages, PROBE_SAMPLING, seed=0, rollout="doctor"
    )
    first_ids = first.turn.prompt_ids + first.turn.ids
    continued = (then.turn.prompt_ids or [])[: len(first_ids)] == first_ids and not reasons
    why = "; ".join(reasons) or "the second prompt does not begin with the first"
    return [
        DoctorFinding("  token ids", True, f"{len(first_ids)} of a short answer, every one with its logprob"),
        DoctorFinding(
            "  logprobs",
            mode == "processed",
            "of the distribution that is sampled from" if mode == "processed" else RAW_LOGPROBS,
        ),
        DoctorFinding(
            "  --continue-tokens",
            continued,
            "tested: a second turn continued with the ids of the first" if continued else why,
        ),
    ]
