"""The roles of a guest: it runs one program, or keeps a program's state from turn to turn."""

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from . import guest, kernel, seccomp
from .channel import Channel

Message = dict[str, Any]


class Role(NamedTuple):
    """The behaviour of a guest."""

    main: Callable[[Message, Channel], int]
    """Called with the request and the channel; returns the exit code."""
    stays: bool = False
    """Waits for messages, and the host stops it in between: no CPU limit of the kernel's, a user of its own."""
    forks: bool = False
    """Forks for every turn, when the host allows it, below a first process that outlives all forks."""


def run_once(request: Message, channel: Channel) -> int:
    """Run one program and report once; forks of the program must not report in its name."""
    owner = os.getpid()
    module_globals, keep = guest.make_globals(), request["limits"]["keep"]
    report = guest.run_program(lambda: guest.evaluate_last(request["code"], module_globals, keep))
    if os.getpid() == owner:
        channel.send(report)
    return int(report.get("exit", 1 if "error" in report else 0))


def run_session(request: Message, channel: Channel) -> int:
    """Run every turn with the same globals."""
    module_globals = guest.make_globals()
    answer_messages(channel, lambda turn: guest.run_code(turn["code"], module_globals, turn["keep"]))


def run_snapshots(request: Message, channel: Channel) -> int:
    """Run every turn in a fork of the state before it, which waits until the host decides which of the two
    continues."""
    module_globals = guest.make_globals()
    say_hello()
    while True:
        message, _ = channel.receive()
        reap()
        try:
            is_holder = fork_undisturbed() > 0
        except OSError as error:
            channel.send({"done": message["turn"], "body": {"error": guest.describe_error(error)}})
            continue
        if not is_holder:
            say_hello()
            body = guest.run_code(message["body"]["code"], module_globals, message["body"]["keep"])
            channel.send({"done": message["turn"], "body": body})


def fork_undisturbed() -> int:
    """Fork with signals blocked: after a signal the kernel would restart the call, and the host allows only one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer_messages(channel: Channel, handle: Callable[[Message], Message]) -> NoReturn:
    """Answer one message after another; forks of the code must not answer in its name."""
    owner = os.getpid()
    while True:
        message, _ = channel.receive()
        body = handle(message["body"])
        if os.getpid() != owner:
            os._exit(0)
        channel.send({"done": message["turn"], "body": body})


def say_hello() -> None:
    """Make the system call by which the kernel tells the host our pid; it returns when the clock has been started."""
    kernel.syscall("hello", seccomp.CALLS[kernel.ARCH][seccomp.HELLO_CALL], 0)


def reap() -> None:
    """Reap the fork of a turn that was rolled back."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


ROLES = {
    "run": Role(run_once),
    "session": Role(run_session, stays=True),
    "snapshot": Role(run_snapshots, stays=True, forks=True),
}
