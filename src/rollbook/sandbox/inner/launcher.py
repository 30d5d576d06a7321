"""The launcher: the zygote's parent. It stays outside of the zygote's root, where folders of the host have names.

On a line of its own the host asks it for one, {"path", "uid"} with a descriptor of the folder, and gets a mount of it
that lies nowhere yet, which the guest then puts in its place. Among mounts, a process can only hand on what it sees
itself: neither the host, as an ordinary user, nor the zygote could make it.
"""

import os
import select
import signal
from contextlib import suppress

from . import kernel
from .channel import Channel


def serve(mounts: Channel, zygote: int, as_root: bool) -> None:
    """Hand out folders until the zygote has ended."""
    ended, poll = os.pidfd_open(zygote), select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(mounts, select.POLLIN)
    while True:
        ready = [handle for handle, _ in poll.poll()]
        if ended in ready:
            os.waitpid(zygote, 0)
            return
        try:
            answer(mounts, as_root)
        except (OSError, EOFError):  # the host has hung up, and will end us
            poll.unregister(mounts)


def answer(mounts: Channel, as_root: bool) -> None:
    """One folder, or why not."""
    request, handles = mounts.receive(1)
    try:
        tree = detached(request["path"], handles[0], request["uid"] if as_root else None)
        mounts.send({"mounted": True}, [tree])
        os.close(tree)
    except (OSError, kernel.Unsupported) as error:
        mounts.send({"failed": str(error)})
    finally:
        os.close(handles[0])


def detached(path: str, meant: int, uid: int | None) -> int:
    """The folder alone, without what is mounted below it: no programs, no devices, and for root, another owner."""
    found = kernel.open_without_links(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not os.path.sameopenfile(found, meant):
            raise kernel.Unsupported("another folder has that name by now")
        tree = kernel.open_tree(found)
    finally:
        os.close(found)
    try:
        if uid is None:
            kernel.mount_setattr(tree)
        else:
            shift_owner(tree, uid)
    except BaseException:
        os.close(tree)
        raise
    return tree


def shift_owner(tree: int, uid: int) -> None:
    """Inside, the folder's owner is the guest: it can write what the owner can, and what it makes is the owner's."""
    namespace = users(os.fstat(tree), uid)
    try:
        kernel.mount_setattr(tree, namespace)
    except OSError as error:
        raise kernel.Unsupported(f"its file system does not let another user own it for a while ({error})") from None
    finally:
        os.close(namespace)


def users(owner: os.stat_result, uid: int) -> int:
    """A user namespace that says who is whom: made by a child that stops until this is written down."""
    child = os.fork()
    if not child:
        with suppress(OSError):
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(1)
    _, status = os.waitpid(child, os.WUNTRACED)
    if not os.WIFSTOPPED(status):
        raise kernel.Unsupported("no user namespace can be made")
    try:
        for name, number in (("uid_map", owner.st_uid), ("gid_map", owner.st_gid)):
            with open(f"/proc/{child}/{name}", "w") as file:
                file.write(f"{number} {uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
