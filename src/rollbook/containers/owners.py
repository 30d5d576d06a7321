"""Who made a container, image, network or volume, and what is left by owners that are dead.

The owner is written into a label of everything that we make: the process, its start, the boot and the run directory.
The next process that starts containers, or the guard of a dead worker, removes what dead owners left.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from rollbook.containers.control_groups import lift_cpu_quota
from rollbook.containers.runtime import LabelledObject, Runtime, temporary_root

OWNER_LABEL = "rollbook.owner"
FOLDER_PREFIX = "rollbook-files-"
_FOLDER_NAME = re.compile(FOLDER_PREFIX + r"(\d+)-(\d+)-(\d*)-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(.*)")


class Owner(msgspec.Struct, frozen=True):
    """A process: its id and start time in a namespace of process ids, the boot of the machine, and what it runs."""

    pid: int
    start: int
    boot: str
    namespace: str
    host: str
    run: str = ""

    @classmethod
    def current(cls, run: Path | None = None) -> Owner:
        """Return this process as an owner."""
        pid = os.getpid()
        return cls(pid, read_start(pid) or 0, read_boot(), read_namespace(), socket.gethostname(), str(run or ""))

    @property
    def label(self) -> str:
        """The value of the label, in characters that no command line and no template changes."""
        return quote(msgspec.json.encode(self), safe="")

    @classmethod
    def from_label(cls, label: str) -> Owner | None:
        """Return the owner that a label names; None if it is not ours."""
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(unquote(label).encode(), type=Owner)
        return None


def read_start(pid: int) -> int | None:
    """Return when a process started, in ticks since the boot; None if there is none, or it is only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] == b"Z" else int(fields[19])


def read_boot() -> str:
    """Return the id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_namespace() -> str:
    """Return the namespace of process ids that this process is in."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def is_dead(owner: Owner, here: Owner) -> bool:
    """Return whether an owner certainly no longer runs; one that cannot be seen from here counts as alive.

    Storage may be shared by hosts or by namespaces of process ids, where the same number is another process.
    """
    if owner.host != here.host:
        return False
    if owner.boot != here.boot:
        return True
    if owner.namespace != here.namespace:
        return False
    return read_start(owner.pid) != owner.start


def choose_leftovers(objects: list[LabelledObject], here: Owner) -> list[LabelledObject]:
    """Return what dead owners left; a label that cannot be read is not ours to judge."""
    owners = [(each, Owner.from_label(each.owner)) for each in objects]
    return [each for each, owner in owners if owner and is_dead(owner, here)]


def folder_of(owner: Owner) -> Path:
    """Return the folder for the temporary files of an owner, whose name says whose it is."""
    namespace = "".join(filter(str.isdigit, owner.namespace))
    name = f"{FOLDER_PREFIX}{owner.pid}-{owner.start}-{namespace}-{owner.boot}-{owner.host}"
    return Path(temporary_root()) / name


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Yield a folder for large temporary files; if this process is killed, the next start on this node removes it."""
    parent = folder_of(Owner.current())
    parent.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True) as folder:
        yield folder


def remove_own_folder() -> None:
    """Remove the folder for temporary files of this process, if none of them is in use."""
    with suppress(OSError):
        folder_of(Owner.current()).rmdir()


def list_left_folders(here: Owner) -> list[LabelledObject]:
    """Return the temporary folders of dead owners; what has no such name is not ours to judge."""
    found = []
    for path in Path(temporary_root()).glob(f"{FOLDER_PREFIX}*"):
        if match := _FOLDER_NAME.fullmatch(path.name):
            pid, start, namespace, boot, host = match.groups()
            owner = Owner(int(pid), int(start), boot, f"pid:[{namespace}]" if namespace else "", host)
            if is_dead(owner, here):
                found.append(LabelledObject("folder", str(path), owner.label))
    return found


async def list_own_objects(runtime: Runtime) -> list[LabelledObject]:
    """Return everything that this process made and that still exists."""
    return choose_own(await runtime.list_labelled(OWNER_LABEL))


def choose_own(objects: list[LabelledObject]) -> list[LabelledObject]:
    """Return what this process made."""
    me = Owner.current()
    owners = [(each, Owner.from_label(each.owner)) for each in objects]
    return [each for each, owner in owners if owner and (owner.pid, owner.start) == (me.pid, me.start)]


async def reap_leftovers(runtime: Runtime) -> list[LabelledObject]:
    """Remove what dead owners left on this node, and return it."""
    here = Owner.current()
    left = choose_leftovers(await runtime.list_labelled(OWNER_LABEL), here)
    for each in left:
        if each.kind == "container":
            lift_cpu_quota(await runtime.read_groups(each.id))
    await runtime.remove(left)
    states = choose_leftovers(runtime.list_states(OWNER_LABEL), here)
    for state in states:
        await runtime.delete_state(state)
    folders = list_left_folders(here)
    for folder in folders:
        await asyncio.to_thread(shutil.rmtree, folder.id, ignore_errors=True)
    return [*left, *states, *folders]


async def delete_own_states(runtime: Runtime) -> None:
    """End what the low-level runtime knows of this process's containers that have been removed."""
    for state in choose_own(runtime.list_states(OWNER_LABEL)):
        await runtime.delete_state(state)
