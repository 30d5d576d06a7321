"""A cluster profile: the YAML file in which people describe once how jobs are requested on their cluster.

Names that people know from other pipelines (NeMo-Skills' expname, num_chunks, random_seeds, ...) are translated to
ours. Every mistake in the file is one line with its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rollbook.clusters.scheduler import DEFAULT_SCHEDULER, Scheduler, find_scheduler
from rollbook.core import JSON, YamlEntry, YamlFile, is_secret_variable
from rollbook.errors import UsageError

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HOST_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")

ContainerRuntime = Literal["none", "pyxis", "apptainer"]
ROLES = ("worker", "server", "report")


class RoleProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a worker, a model server or the report job.

    `image` is a key of the profile's `images`; `image_path` is an image itself.
    """

    image: str | None = None
    image_path: str | None = None
    mounts: list[str] = []
    environment: dict[str, str] = {}
    workdir: str | None = None


class SshTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The host that jobs are submitted from, if not this one: its name for ssh, and the folder for run directories.

    `python` is the interpreter there that has Rollbook.
    """

    host: str = ""
    path: str = ""
    python: str = ""


class ClusterProfile(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are requested. `secrets` are names of variables; their values stay in the environment."""

    name: str = "rollbook"
    account: str | None = None
    partition: str | None = None
    cpu_partition: str | None = None
    qos: str | None = None
    time: str | None = None
    cpus: Annotated[int, Meta(ge=0)] | None = None
    gpus: Annotated[int, Meta(ge=0)] | None = None
    gres: str | None = None
    exclusive: bool = False
    options: list[str] = []
    cpu_options: list[str] = []
    restarts: Annotated[int, Meta(ge=0)] = 20
    grace_s: Annotated[int, Meta(ge=60)] = 120
    after: list[str] = []
    container: ContainerRuntime = "none"
    images: dict[str, str] = {}
    mounts: list[str] = []
    secrets: list[str] = []
    setup: list[str] = []
    python: str | None = None
    sandbox_python: str | None = None
    ssh: SshTarget | None = None
    worker: RoleProfile = RoleProfile()
    server: RoleProfile = RoleProfile()
    report: RoleProfile = RoleProfile()
    workers: Annotated[int, Meta(ge=1)] | None = None
    samples: Annotated[int, Meta(ge=1)] | None = None
    seed: int | None = None

    def image_of(self, name: str) -> str | None:
        """Return the image that a role runs in; None without one."""
        part: RoleProfile = getattr(self, name)
        return self.images[part.image] if part.image else part.image_path


def read_profile(path: str | Path, scheduler: str = DEFAULT_SCHEDULER) -> ClusterProfile:
    """Read the profile in a file for jobs of a scheduler; every mistake in it is one line."""
    file = YamlFile(Path(path))
    found, counted = translate_names(file, file.read_mapping(file.root, "a cluster profile"))
    values: dict[str, JSON] = dict(counted)
    for name in ROLES:
        if name in found:
            fields = file.read_mapping(found.pop(name), name)
            values[name] = RoleProfile(**file.read_fields(fields, RoleProfile, name))
    if "ssh" in found:
        values["ssh"] = SshTarget(**file.read_fields(file.read_mapping(found.pop("ssh"), "ssh"), SshTarget, "ssh"))
    if "time" in found:
        values["time"] = _read_time(file, found.pop("time"), find_scheduler(scheduler))
    if "after" in found:
        values["after"] = _read_list(file, found.pop("after"))
    values |= file.read_fields(found, ClusterProfile, "a cluster profile")
    return check_profile(ClusterProfile(**values), str(path), scheduler)


def _read_time(file: YamlFile, entry: YamlEntry, scheduler: Scheduler) -> str:
    """Read it as it was written: YAML takes 4:00:00 for a number."""
    text = entry.node.value
    try:
        scheduler.check_time(str(text))
    except UsageError as error:
        raise file.error_at(entry.line, error) from None
    return str(text)


def _read_list(file: YamlFile, entry: YamlEntry) -> list[str]:
    """Read one or several job ids or run directories."""
    value = file.read_value(entry)
    return [str(each) for each in (value if isinstance(value, list) else [value])]


def check_profile(profile: ClusterProfile, where: str, scheduler: str = DEFAULT_SCHEDULER) -> ClusterProfile:
    """Return the profile, if it is valid."""
    try:
        _check_values(profile, find_scheduler(scheduler))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return profile


def _check_values(profile: ClusterProfile, scheduler: Scheduler) -> None:
    if profile.gpus and profile.gres:
        raise UsageError("gpus and gres both set which devices a job gets: give one of them")
    for value in _list_texts(profile):
        if not value.isprintable():
            raise UsageError(f"{value!r}: a value has to be one line of printable text")
    scheduler.check_profile(profile)
    if profile.container not in ("none", *scheduler.containers):
        known = ", ".join(scheduler.containers) or "none"
        raise UsageError(f"container: {profile.container}: {scheduler.title} has no such runtime; there are {known}")
    for name in ROLES:
        _check_role(profile, name)
    for name in profile.secrets:
        if not VARIABLE_NAME.fullmatch(name):
            raise UsageError(f"secrets: {name.partition('=')[0]}: give the name of a variable, never its value")
    for mount in profile.mounts:
        _check_mount(mount)
    _check_one_image(profile)
    if profile.ssh:
        _check_ssh(profile.ssh)


def _check_ssh(ssh: SshTarget) -> None:
    if not HOST_NAME.fullmatch(ssh.host):
        raise UsageError(f"ssh: host: {ssh.host!r} is not a host for ssh, such as login or me@login.cluster.org")
    for name, path in (("path", ssh.path), ("python", ssh.python)):
        if not path.startswith("/"):
            raise UsageError(f"ssh: {name}: {path!r}: give an absolute path on that host")


def _list_texts(profile: ClusterProfile) -> list[str]:
    plain: dict[str, JSON] = msgspec.to_builtins(profile)
    return [text for value in plain.values() for text in _list_leaves(value)]


def _list_leaves(value: JSON) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _list_leaves(each)]
    if isinstance(value, list):
        return [text for each in value for text in _list_leaves(each)]
    return [value] if isinstance(value, str) else []


def _check_role(profile: ClusterProfile, name: str) -> None:
    part: RoleProfile = getattr(profile, name)
    if part.image is not None and part.image_path is not None:
        raise UsageError(f"{name}: image and image_path are both given: give the key or the image itself")
    if part.image is not None and part.image not in profile.images:
        known = ", ".join(profile.images) or "none"
        raise UsageError(f"{name}: images has no {part.image!r}; there are {known}; image_path takes an image itself")
    if profile.image_of(name) and profile.container == "none":
        raise UsageError(f"{name}: an image needs a runtime: set `container: pyxis` or `container: apptainer`")
    for mount in part.mounts:
        _check_mount(mount)
    for variable in part.environment:
        if not VARIABLE_NAME.fullmatch(variable):
            raise UsageError(f"{name}: environment: {variable!r} is not the name of a variable")
        if is_secret_variable(variable):
            raise UsageError(f"{name}: environment: {variable} looks like a secret: name it under `secrets:` instead")


def _check_mount(mount: str) -> None:
    source, _, rest = mount.partition(":")
    target = rest.partition(":")[0]
    if not source.startswith("/") or not target.startswith("/") or "," in mount:
        raise UsageError(f"mounts: {mount}: write /here:/there or /here:/there:ro, both absolute paths")


def _check_one_image(profile: ClusterProfile) -> None:
    worker, server = profile.image_of("worker"), profile.image_of("server")
    if worker and server and worker != server:
        raise UsageError(
            "worker and server have different images: a worker in an image starts its server in the same one; "
            "leave the worker's image out, and only the server runs in one"
        )


OTHER_NAMES = {
    "expname": "name",
    "num_random_seeds": "samples",
    "starting_seed": "seed",
    "num_chunks": "workers",
    "dependent_jobs": "restarts",
    "run_after": "after",
}
MAX_SAMPLES = 1_000_000
SEED_RANGE = re.compile(r"(\d+)\.\.(\d+)")


def translate_names(file: YamlFile, entries: Mapping[str, YamlEntry]) -> tuple[dict[str, YamlEntry], dict[str, JSON]]:
    """Return the entries of a profile under our names, and the samples and the seed that `random_seeds` means."""
    ours: dict[str, YamlEntry] = {}
    for name, entry in entries.items():
        our_name = OTHER_NAMES.get(name, name)
        if our_name in ours or (our_name != name and our_name in entries):
            raise file.error_at(entry.line, f"{name} is called {our_name} here, and that is given as well")
        ours[our_name] = entry
    _refuse_unsupported(file, ours)
    return ours, _read_seeds(file, ours)


def _refuse_unsupported(file: YamlFile, entries: dict[str, YamlEntry]) -> None:
    """Refuse names without a counterpart, because the book records it already."""
    if "chunk_ids" in entries:
        way = "workers claim chunks themselves, and `rollbook resume RUN` does what is missing; leave it out"
        raise file.error_at(entries["chunk_ids"].line, f"chunk_ids: {way}")
    if "rerun_done" in entries:
        entry = entries.pop("rerun_done")
        if file.read_value(entry) is not False:
            way = "what is scored stays scored; start a new run with another --out"
            raise file.error_at(entry.line, f"rerun_done: {way}")


def _read_seeds(file: YamlFile, entries: dict[str, YamlEntry]) -> dict[str, JSON]:
    if "random_seeds" not in entries:
        return {}
    entry = entries.pop("random_seeds")
    for other in ("samples", "seed"):
        if other in entries:
            raise file.error_at(entry.line, f"random_seeds gives {other} too: give one of them")
    try:
        seeds = parse_seeds(file.read_value(entry))
    except UsageError as error:
        raise file.error_at(entry.line, error) from None
    return {"samples": len(seeds), "seed": seeds[0]}


def parse_seeds(value: JSON) -> list[int]:
    """Return seeds that are given as a list, or as text: "0,1,2" or "0..2".

    >>> parse_seeds("4..6"), parse_seeds([0, 1])
    ([4, 5, 6], [0, 1])
    """
    words = value if isinstance(value, list) else str(value).split(",")
    span = SEED_RANGE.fullmatch(str(value))
    if span and int(span[2]) - int(span[1]) > MAX_SAMPLES:
        raise UsageError(f"random_seeds: {value}: more than {MAX_SAMPLES} samples of every task")
    seeds = list(range(int(span[1]), int(span[2]) + 1)) if span else [_parse_whole(word) for word in words]
    if not seeds or seeds != list(range(seeds[0], seeds[0] + len(seeds))):
        raise UsageError("random_seeds: samples are numbered one after another; give seeds without gaps, such as 0..7")
    return seeds


def _parse_whole(word: JSON) -> int:
    text = str(word).strip()
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"random_seeds: {word!r} is not a whole number")
    return int(text)
