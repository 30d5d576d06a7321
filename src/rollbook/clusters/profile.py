"""A cluster profile: the YAML file in which people say once how jobs are to be asked for on their cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from rollbook.clusters.known_names import translated
from rollbook.collect.yamlfile import Given, YamlFile
from rollbook.core.json import JSON
from rollbook.errors import UsageError

TIME = re.compile(r"\d+|\d+:\d\d|\d+:\d\d:\d\d|\d+-\d+|\d+-\d+:\d\d|\d+-\d+:\d\d:\d\d|\d+:\d\d:\d\d:\d\d")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
OWN = (
    "array",
    "dependency",
    "output",
    "error",
    "job-name",
    "open-mode",
    "requeue",
    "no-requeue",
    "signal",
    "parsable",
    "wrap",
    "nodes",
    "ntasks",
    "account",
    "partition",
    "qos",
    "time",
    "gpus-per-node",
    "gres",
    "exclusive",
    "kill-on-invalid-dep",
    "export",
)
"""What the scripts say themselves, or have a key of their own in the profile."""
BEGINS_LIKE_OWN = ("gpus",)
"""Options in their own right; all else that one of ours begins with is taken by sbatch for ours."""

Runtime = Literal["none", "pyxis", "apptainer"]
PARTS = ("worker", "server", "report")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker, a model server or the report job has of its own.

    `image` is a key of the profile's `images`; `image_path` is an image itself.
    """

    image: str | None = None
    image_path: str | None = None
    mounts: list[str] = []
    environment: dict[str, str] = {}
    workdir: str | None = None


class Ssh(msgspec.Struct, frozen=True, kw_only=True):
    """From where jobs are submitted, if not from here: a host that ssh knows, and the folder there for run directories.

    `python` is the one over there that has Rollbook.
    """

    host: str = ""
    path: str = ""
    python: str = ""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are asked for. `secrets` are names of variables; their values stay in the environment."""

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
    restarts: Annotated[int, Meta(ge=0)] = 20
    grace_s: Annotated[int, Meta(ge=60)] = 120
    after: list[str] = []
    container: Runtime = "none"
    images: dict[str, str] = {}
    mounts: list[str] = []
    secrets: list[str] = []
    setup: list[str] = []
    python: str | None = None
    sandbox_python: str | None = None
    ssh: Ssh | None = None
    worker: Part = Part()
    server: Part = Part()
    report: Part = Part()
    workers: Annotated[int, Meta(ge=1)] | None = None
    samples: Annotated[int, Meta(ge=1)] | None = None
    seed: int | None = None

    def image_of(self, name: str) -> str | None:
        """The image that a part runs in; None where it runs in none."""
        part: Part = getattr(self, name)
        return self.images[part.image] if part.image else part.image_path


def read_profile(path: str | Path) -> Profile:
    """The profile in a file; every mistake in it is one line."""
    file = YamlFile(Path(path))
    found, counted = translated(file, file.mapping(file.root, "a cluster profile"))
    values: dict[str, JSON] = dict(counted)
    for name in PARTS:
        if name in found:
            values[name] = _part(file, name, found.pop(name))
    if "ssh" in found:
        values["ssh"] = Ssh(**file.fields(file.mapping(found.pop("ssh"), "ssh"), Ssh, "ssh"))
    if "time" in found:
        values["time"] = _time(file, found.pop("time"))
    if "after" in found:
        values["after"] = _listed(file, found.pop("after"))
    values |= file.fields(found, Profile, "a cluster profile")
    return checked(Profile(**values), str(path))


def _part(file: YamlFile, name: str, given: Given) -> Part:
    return Part(**file.fields(file.mapping(given, name), Part, name))


def _time(file: YamlFile, given: Given) -> str:
    """As it was written: YAML takes 4:00:00 for a number."""
    text = given.node.value
    if not isinstance(text, str) or not TIME.fullmatch(text):
        raise file.wrong(given.line, f"time: {text!r} is no time of Slurm's, such as 240, 4:00:00 or 1-12:00:00")
    return text


def _listed(file: YamlFile, given: Given) -> list[str]:
    """One or several job ids or run directories."""
    value = file.value(given)
    return [str(each) for each in (value if isinstance(value, list) else [value])]


def checked(profile: Profile, where: str) -> Profile:
    """The profile, if what it says can be done."""
    try:
        _check(profile)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return profile


def _check(profile: Profile) -> None:
    if profile.gpus and profile.gres:
        raise UsageError("gpus and gres both say which devices a job gets: give one of them")
    for value in _texts(profile):
        if not value.isprintable():
            raise UsageError(f"{value!r}: a value has to be one line of printable text")
    for option in profile.options:
        _check_option(option)
        if profile.cpus and option.startswith("--cpus-per-task"):
            raise UsageError(f"cpus and {option} both say which CPUs a job gets: give one of them")
    for line in profile.setup:
        if "#SBATCH" in line:
            raise UsageError(f"setup: {line!r}: options of sbatch belong into `options:`")
    for name in PARTS:
        _check_part(profile, name)
    for name in profile.secrets:
        if not VARIABLE.fullmatch(name):
            raise UsageError(f"secrets: {name.partition('=')[0]}: give the name of a variable, never its value")
    for mount in profile.mounts:
        _check_mount(mount)
    _check_one_image(profile)
    if profile.ssh:
        _check_ssh(profile.ssh)


def _check_ssh(ssh: Ssh) -> None:
    if not HOST.fullmatch(ssh.host):
        raise UsageError(f"ssh: host: {ssh.host!r} is no name that ssh takes, such as login or me@login.cluster.org")
    for name, path in (("path", ssh.path), ("python", ssh.python)):
        if not path.startswith("/"):
            raise UsageError(f"ssh: {name}: {path!r}: give a path over there, from the root on")


def _texts(profile: Profile) -> list[str]:
    plain: dict[str, JSON] = msgspec.to_builtins(profile)
    return [text for value in plain.values() for text in _leaves(value)]


def _leaves(value: JSON) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for each in pair for text in _leaves(each)]
    if isinstance(value, list):
        return [text for each in value for text in _leaves(each)]
    return [value] if isinstance(value, str) else []


def _check_option(option: str) -> None:
    name = option.removeprefix("--").partition("=")[0]
    if "hetjob" in option or name == "het-group" or option.strip() == ":":
        raise UsageError(f"options: {option}: a heterogeneous job cannot be an array; workers share one kind of node")
    if not option.startswith("--") or not re.fullmatch(r"[a-z][a-z-]*", name):
        raise UsageError(f"options: {option}: write options of sbatch as --name=value")
    if name == "export":
        raise UsageError("options: --export: jobs inherit everything; name what they must have under `secrets:`")
    ours = next((own for own in OWN if own.startswith(name)), None)
    if ours and name not in BEGINS_LIKE_OWN:
        raise UsageError(f"options: {option}: --{ours} is set by Rollbook or by a key of its own in the profile")


def _check_part(profile: Profile, name: str) -> None:
    part: Part = getattr(profile, name)
    if part.image is not None and part.image_path is not None:
        raise UsageError(f"{name}: image and image_path are both given: give the key or the image itself")
    if part.image is not None and part.image not in profile.images:
        known = ", ".join(profile.images) or "none"
        raise UsageError(f"{name}: images has no {part.image!r}; there are {known}; image_path takes an image itself")
    if profile.image_of(name) and profile.container == "none":
        raise UsageError(f"{name}: an image needs a runtime: say `container: pyxis` or `container: apptainer`")
    for mount in part.mounts:
        _check_mount(mount)
    for variable in part.environment:
        if not VARIABLE.fullmatch(variable):
            raise UsageError(f"{name}: environment: {variable!r} is no name of a variable")
        if SECRET.search(variable):
            raise UsageError(f"{name}: environment: {variable} looks like a secret: name it under `secrets:` instead")


def _check_mount(mount: str) -> None:
    source, _, rest = mount.partition(":")
    target = rest.partition(":")[0]
    if not source.startswith("/") or not target.startswith("/") or "," in mount:
        raise UsageError(f"mounts: {mount}: write /here:/there or /here:/there:ro, both from the root on")


def _check_one_image(profile: Profile) -> None:
    worker, server = profile.image_of("worker"), profile.image_of("server")
    if worker and server and worker != server:
        raise UsageError(
            "worker and server have different images: a worker in an image starts its server in the same one; "
            "leave the worker's image out, and only the server runs in one"
        )
