"""The image of the tests, made without any registry: a minimal Debian by debootstrap, imported into podman.

With ROLLBOOK_CONTAINER_RUNTIME=docker it is docker's image that counts.

python tests/containers/real/base_image.py makes it unless it is there.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable

import pytest

from rollbook.containers import ContainerHost, Owner, find_runtime
from rollbook.containers.owners import OWNER_LABEL, folder_of, is_dead, list_left_folders
from rollbook.containers.runtime import RUNTIME_VARIABLE

RUNTIME = os.environ.get(RUNTIME_VARIABLE) or "podman"
IMAGE = "localhost/rollbook-test/debian:1"
PACKAGES = "python3-minimal,tar"

podman_only = pytest.mark.skipif(RUNTIME != "podman", reason="docker does this in another way, or itself")

CRASH_FIRST_PROCESS = """python3 -c '
import os, signal
assert os.path.basename(os.readlink("/proc/1/exe")) in ("sh", "bash", "dash"), "this is no container of the tests"
with open("/proc/1/mem", "r+b", buffering=0) as memory:
    for line in open("/proc/1/maps"):
        addresses, permissions = line.split()[:2]
        if "x" in permissions and "[v" not in line:
            first, last = (int(each, 16) for each in addresses.split("-"))
            memory.seek(first)
            memory.write(b"\\xcc" * (last - first))
child = os.getpid()
while (parent := int(open(f"/proc/{child}/stat").read().rpartition(")")[2].split()[1])) > 1:
    child = parent
os.kill(child, signal.SIGKILL)
'; sleep 30"""
"""A script for the main shell of a container, and for nothing else: the first process crashes when its child ends."""

WithHost = Callable[[Callable[[ContainerHost], Awaitable[None]]], None]


def list_owned() -> list[tuple[str, Owner]]:
    """Return every container, image, network and volume with an owner."""
    found = asyncio.run(find_runtime(RUNTIME).list_labelled(OWNER_LABEL))
    owners = [(each.id, Owner.from_label(each.owner)) for each in found]
    return [(name, owner) for name, owner in owners if owner]


def list_left() -> list[str]:
    """Return what was left by this process or by one that is dead; others may be at work on this machine."""
    me = Owner.current()
    left = [name for name, owner in list_owned() if owner.pid == me.pid or is_dead(owner, me)]
    return [*left, *(each.id for each in list_left_folders(me)), *filter(os.path.exists, [str(folder_of(me))])]


def list_of(pid: int) -> list[str]:
    """Return what a process has."""
    return [name for name, owner in list_owned() if owner.pid == pid]


def missing() -> str:
    """Return why this machine cannot run the tests, or nothing."""
    if not shutil.which(RUNTIME):
        return f"{RUNTIME} is not installed (make test-containers installs it on Debian, as root)"
    if subprocess.run([RUNTIME, "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
        return f"there is no image {IMAGE} (make test-containers makes it with debootstrap, as root)"
    return ""


def make() -> None:
    """Make the image; some minutes."""
    with tempfile.TemporaryDirectory(prefix="rollbook-debian-") as folder:
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", folder]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        tar = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
        subprocess.run([RUNTIME, "import", "-", IMAGE], stdin=tar.stdout, check=True, capture_output=True)
        if tar.wait():
            raise SystemExit("tar failed")


if __name__ == "__main__":
    if "there is no image" in missing():
        print(f"Making {IMAGE} with debootstrap: some minutes ...")
        make()
    sys.exit(missing() or 0)
