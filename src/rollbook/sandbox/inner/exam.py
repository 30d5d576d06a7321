"""The roles of an examination: code that anyone may have written, and the examiner, which alone holds the tests.

`candidate` and `examiner` speak over descriptor 4 of each (see `peer.py`); the verdict goes over the examiner's own
channel, which the candidate does not have. `inputs` and `calls` need no examiner: what should come out is known to the
host alone.
"""

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from . import guest
from .channel import Channel
from .coroutines import awaited
from .peer import Gone, OneProcess, Peer, Remote
from .plain import pack, unpack
from .roles import Role, conversation
from .walls import BOX

LINE = 4
SOLUTION = "Solution"
"""The class in which competitions want the function, if it is not in the open."""


def candidate(request: dict[str, Any], channel: Channel) -> int:
    """Run the code, hand over what it defines, and do what is asked of it."""
    space = guest.fresh_space()
    report = guest.run(request["code"], space, 0)
    channel.send(report)
    if "error" in report or "exit" in report:
        return 1
    line = Channel(LINE)
    peer = Peer(line)
    line.send({"hello": {name: peer.expose(value) for name, value in list(space.items()) if callable(value)}})
    peer.serve()
    return 0


def examiner(request: dict[str, Any], channel: Channel) -> int:
    """Run the tests against the candidate's entry point; what came of it is the report."""
    exam = json.loads(request["code"])
    peer = Peer(Channel(LINE), guarded=True, weak=exam["weak"])
    stage, ended = "hello", None
    try:
        entry = entry_point(peer.hello(), exam["entry"])
        stage, space = "tests", guest.fresh_space()
        execute(exam["setup"], space)
        space[exam["entry"]] = entry
        to_the_end(lambda: execute(exam["tests"], space))
        stage = "check"
        if exam["check"]:
            to_the_end(lambda: space[exam["check"]](entry))
        stage = "passed"
    except BaseException as error:  # noqa: BLE001 - whatever ends the tests is the verdict
        ended = error
    ended = peer.objection(ended)
    said = {"verdict": word(stage, ended, peer.calls), "weak": peer.weakened, "error": ended and guest.describe(ended)}
    channel.send({"value": json.dumps(said)})
    return 0


def to_the_end(play: Callable[[], Any]) -> None:
    """A part of the tests; some end by an exit, as unittest's do, and 0 is a good one.

    It can only be their own: an exit of the candidate's is the candidate's end, and is no exception here.
    """
    try:
        awaited(play())
    except SystemExit as exit:
        if exit.code not in (None, 0):
            raise


def word(stage: str, ended: BaseException | None, calls: int) -> str:
    """One word for how the tests ended. They are broken if they end before they ask anything, well or not."""
    if ended is None:
        return "passed" if calls else "broken"
    if isinstance(ended, Gone):
        return "gone"
    if isinstance(ended, OneProcess):
        return "refused"
    return "broken" if stage == "tests" and not calls else "failed"


def entry_point(names: dict[str, Remote], wanted: str) -> Any:
    """The function under test: by its name, or as a method of the class Solution."""
    if wanted in names:
        return names[wanted]
    if SOLUTION in names:
        return getattr(names[SOLUTION](), wanted)
    raise NameError(f"the code defines no {wanted}")


def execute(code: str, space: dict[str, Any]) -> None:
    """Run a module's code."""
    exec(compile(code, "<code>", "exec"), space)


def inputs(request: dict[str, Any], channel: Channel) -> int:
    """The whole program again for every input, which it reads from stdin: its globals are new each time."""
    program: list[Any] = []

    def case(body: dict[str, Any]) -> dict[str, Any]:
        def play() -> None:
            if not program:
                program.append(compile(request["code"], "<code>", "exec"))
            exec(program[0], guest.fresh_space())

        open_streams(body["stdin"].encode())
        return guest.to_the_end(play)

    conversation(channel, case)


def open_streams(data: bytes) -> None:
    """A new stdin that holds these bytes, as a descriptor too; and streams that no earlier input has touched."""
    handle = holding(data)
    if handle:  # it is 0 already where an earlier input closed that
        os.dup2(handle, 0)
        os.close(handle)
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), errors="surrogateescape")
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w", closefd=False)) for n in (1, 2))


def holding(data: bytes) -> int:
    """A descriptor to read these bytes from: a file without a name or, where nothing can be written, a pipe."""
    try:
        handle = os.open(BOX, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        from threading import Thread  # not before: every fork would have to set it right

        reading, writing = os.pipe()
        Thread(target=pour, args=(writing, data), daemon=True).start()
        return reading
    os.write(handle, data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def pour(handle: int, data: bytes) -> None:
    """Write to a pipe until all is read, or nobody reads."""
    with suppress(OSError), open(handle, "wb") as file:
        file.write(data)


def calls(request: dict[str, Any], channel: Channel) -> int:
    """The program once, then one function of it for every input; what it returns comes back as plain data."""
    asked = json.loads(request["code"])
    found: list[Any] = []

    def case(body: dict[str, Any]) -> dict[str, Any]:
        def play() -> str:
            if not found:
                found.append(function_of(asked["code"], asked["entry"]))
            given = unpack(body["args"], refuse)
            return json.dumps(pack(awaited(found[0](*given)), lambda value: refuse("", value)))

        return guest.reported(play)

    conversation(channel, case)


def function_of(code: str, wanted: str) -> Any:
    """A function that the code defines."""
    space = guest.fresh_space()
    execute(code, space)
    if wanted in space:
        return space[wanted]
    if SOLUTION in space:
        return getattr(space[SOLUTION](), wanted)
    raise NameError(f"the code defines no {wanted}")


def refuse(_: str, value: Any) -> Any:
    """Nothing but plain data crosses here."""
    raise TypeError(f"an object of {type(value).__name__} cannot be compared")


EXAM_ROLES = {
    "candidate": Role(candidate),
    "examiner": Role(examiner),
    "inputs": Role(inputs, stays=True),
    "calls": Role(calls, stays=True),
}
