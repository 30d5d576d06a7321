"""What a guest can be: it runs one program, or keeps a program's state from turn to turn."""

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from . import guest, kernel, seccomp
from .channel import Channel

Message = dict[str, Any]


class Role(NamedTuple):
    """A way to be a guest."""

    main: Callable[[Message, Channel], int]
    """Given the request and the channel; what it returns is the exit code."""
    stays: bool = False
    """Waits for messages between which the host stops it: no CPU limit of the kernel's, a user of its own."""
    forks: bool = False
    """Forks for every turn, when the host lets it, below a first process that outlives them all."""


def run_once(request: Message, channel: Channel) -> int:
    """One program, one report; what the program forks must not report in its name."""
    owner = os.getpid()
    space, keep = guest.make_globals(), request["limits"]["keep"]
    report = guest.run_program(lambda: guest.evaluate_last(request["code"], space, keep))
    if os.getpid() == owner:
        channel.send(report)
    return int(report.get("exit", 1 if "error" in report else 0))


def run_session(request: Message, channel: Channel) -> int:
    """Every turn runs in the same globals."""
    space = guest.make_globals()
    answer_messages(channel, lambda turn: guest.run_code(turn["code"], space, turn["keep"]))


def run_snapshots(request: Message, channel: Channel) -> int:
    """Every turn runs in a fork of the state before it, which waits until the host knows which of the two goes on."""
    space = guest.make_globals()
    say_hello()
    while True:
        message, _ = channel.receive()
        reap()
        try:
            holds_the_state = fork_undisturbed() > 0
        except OSError as error:
            channel.send({"done": message["turn"], "body": {"error": guest.describe_error(error)}})
            continue
        if not holds_the_state:
            say_hello()
            body = guest.run_code(message["body"]["code"], space, message["body"]["keep"])
            channel.send({"done": message["turn"], "body": body})


def fork_undisturbed() -> int:
    """Fork undisturbed: for a signal in between the kernel would begin again, and the host lets only one pass."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        return os.fork()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def answer_messages(channel: Channel, handle: Callable[[Message], Message]) -> NoReturn:
    """Answer one message after another; what the code forks must not answer in its name."""
    owner = os.getpid()
    while True:
        message, _ = channel.receive()
        body = handle(message["body"])
        if os.getpid() != owner:
            os._exit(0)
        channel.send({"done": message["turn"], "body": body})


def say_hello() -> None:
    """A system call that ends at the host, who so learns our pid from the kernel; it returns when the clock runs."""
    kernel.syscall("hello", seccomp.CALLS[kernel.ARCH][seccomp.HELLO_CALL], 0)


def reap() -> None:
    """The turn that was rolled back is no longer needed as a zombie."""
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
