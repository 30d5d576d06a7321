"""The roles of an examination: code that anyone may have written, and the examiner, which alone holds the tests.

`candidate` and `examiner` communicate over descriptor 4 of each (see `peer.py`); the verdict goes over the examiner's
own channel, which the candidate does not have. `inputs` and `calls` need no examiner: what should come out is known to
the host alone.
"""

import ast
import builtins
import fcntl
import gc
import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from . import guest
from .channel import Channel, PeerChannel
from .filesystem import WORKING_FOLDER
from .handles import run_coroutine
from .peer import OneProcess, Peer, PeerGone
from .plain_data import CONTAINERS, pack, unpack
from .roles import Role, answer_messages

PEER_DESCRIPTOR = 4
HIGH_DESCRIPTOR = guest.MAX_OPEN_FILES - 4
SOLUTION_CLASS = "Solution"
"""The class in which competitions want the function, if it is not in the open."""
SOLUTION_MODULE = "solution"
"""What the code's module is called where it is there to be called: what is meant for a program's start stays undone."""


def run_candidate(request: dict[str, Any], channel: Channel) -> int:
    """Run the code, hand over what it defines, and do what is asked of it."""
    space = guest.make_globals(SOLUTION_MODULE)
    report = guest.run_code(request["code"], space, 0)
    channel.send(report)
    if "error" in report or "exit" in report:
        return 1
    line = PeerChannel(PEER_DESCRIPTOR)
    peer = Peer(line, stays=is_own_container if request["classes"] else None)
    line.send({"hello": {name: peer.expose(value) for name, value in list(space.items()) if callable(value)}})
    peer.serve()
    return 0


def is_own_container(kind: type) -> bool:
    """A class of the code that is a container with methods of its own; a named tuple is a tuple."""
    return kind.__module__ == SOLUTION_MODULE and issubclass(kind, CONTAINERS) and not hasattr(kind, "_fields")


def run_examiner(request: dict[str, Any], channel: Channel) -> int:
    """Run the tests against the candidate's entry point; what came of it is the report."""
    exam = json.loads(request["code"])
    believed = {"weak": exam["weak"], "copies": exam["copies"], "data": not exam["classes"]}
    peer = Peer(PeerChannel(PEER_DESCRIPTOR), guarded=True, **believed)
    stage, ended, named = "hello", None, dict[str, Any]()
    try:
        names = peer.receive_hello()
        entry = find_entry_point(peer, names, exam["entry"])
        peer.reset_calls()  # it may have been a call that made a Solution: the tests have asked nothing yet
        stage, space = "tests", guest.make_globals()
        suites = record_suites(exam)
        named = find_other_names(names, exam)
        if named:
            space["__builtins__"] = select_handed_over(peer, named, exam) | vars(builtins)
        execute(exam["setup"], space)
        space[exam["entry"]] = entry
        run_part(peer, lambda: execute(exam["tests"], space))
        stage = "check"
        if exam["check"]:
            run_part(peer, lambda: space[exam["check"]](entry))
        for suite in suites:
            assert suite.wasSuccessful(), f"{len(suite.failures)} failures and {len(suite.errors)} errors of unittest"
        stage = "passed"
    except BaseException as error:  # noqa: BLE001 - whatever ends the tests is the verdict
        ended = error
    if isinstance(ended, NameError) and ended.name in named:
        ended = OneProcess(f"the tests use {ended.name}, which only the code defines")
    ended = peer.find_objection(ended)
    said = {
        "verdict": find_verdict_word(stage, ended, peer.calls),
        "weak": peer.weakened,
        "beside": peer.has_side_effects,
    }
    told = json.dumps(said | {"error": ended and guest.describe_error(ended)}, ensure_ascii=False)
    channel.send({"value": told})
    return 0


def record_suites(exam: dict[str, Any]) -> list[Any]:
    """The results of unittest, as they come to be: tests may run a suite and not look at what came of it."""
    made: list[Any] = []
    if "unittest" not in exam["tests"] + exam["setup"]:
        return made
    from unittest import TestResult  # not before: it takes longer than most tests

    begin = TestResult.__init__

    def noted(self: Any, *given: Any, **named: Any) -> None:
        made.append(self)
        begin(self, *given, **named)

    TestResult.__init__ = noted  # type: ignore[method-assign]
    return made


def run_part(peer: Peer, work: Callable[[], Any]) -> None:
    """A part of the tests; some end by an exit, as unittest's do, and 0 is a good one.

    It must be their own: an exit of the candidate's is the candidate's end, and is no exception here; and one in a
    function that the candidate called is for the candidate to deal with.
    """
    try:
        run_coroutine(work())
    except SystemExit as exit:
        if exit.code not in (None, 0) or peer.threw(exit):
            raise


def find_verdict_word(stage: str, ended: BaseException | None, calls: int) -> str:
    """One word for how the tests ended. They are broken if they end before they ask anything, well or not."""
    if ended is None:
        return "passed" if calls else "broken"
    if isinstance(ended, PeerGone):
        return "gone"
    if isinstance(ended, OneProcess):
        return "refused"
    return "broken" if stage != "hello" and not calls else "failed"


def find_entry_point(peer: Peer, names: dict[str, Any], wanted: str) -> Any:
    """What is under test: by its name, or as a method of the class Solution."""
    if wanted in names:
        return names[wanted]
    if SOLUTION_CLASS in names:
        return peer.ask("attribute", names[SOLUTION_CLASS]()._number, (wanted,), {})
    raise NameError(f"the code defines no {wanted}")


def find_other_names(names: dict[str, Any], exam: dict[str, Any]) -> dict[str, Any]:
    """What else of the code the tests name: only what is neither Python's own nor defined by the tests anywhere, be it
    for want of another (`try: xrange`), and where they come to have such a name all the same, it is theirs."""
    text = f"{exam['setup']}\n{exam['tests']}"
    public = [name for name in names if name in text and name.isidentifier() and not name.startswith("_")]
    found = {name for name in public if name != exam["entry"] and not hasattr(builtins, name)}
    return {name: names[name] for name in found - find_defined_names(text)} if found else {}


def select_handed_over(peer: Peer, named: dict[str, Any], exam: dict[str, Any]) -> dict[str, Any]:
    """Classes beside a class under test; a function may be what the tests judge by, so that its word has to do."""
    peer.weakened |= exam["weak"]
    beside = exam["classes"]
    return {name: value for name, value in named.items() if exam["weak"] or (beside and name[0].isupper())}


def find_defined_names(text: str) -> set[str]:
    """Every name that a module gives to something."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
    return found


def execute(code: str, space: dict[str, Any]) -> None:
    """Run a module's code."""
    exec(compile_code(code), space)


def compile_code(code: str) -> CodeType:
    """A module's code, ready to run."""
    return compile(code.removeprefix(guest.BOM), "<code>", "exec")


def run_inputs(request: dict[str, Any], channel: Channel) -> int:
    """The whole program again for every input, which it reads from stdin: its globals are new each time."""
    program: list[Any] = []
    # To look at all of them makes a copy of every page they are on: only for who speaks of them.
    streams, own = duplicate_streams(), dict(vars(builtins)) if "builtins" in request["code"] else {}

    def case(body: dict[str, Any]) -> dict[str, Any]:
        def play() -> None:
            if not program:
                program.append(compile_code(request["code"]))
            exec(program[0], space)

        open_streams(body["stdin"].encode(), streams)
        vars(builtins).update(own)
        space, collected = guest.make_globals(), gc.get_count()[1:]
        report = guest.run_program(play)
        guest.make_report(lambda: release_globals(space, collected))
        return report

    answer_messages(channel, case)


def duplicate_streams() -> list[int]:
    """What stdout and stderr are, beside what a program makes of the descriptors 1 and 2."""
    return [fcntl.fcntl(place, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR) for place in (1, 2)]


def open_streams(data: bytes, originals: list[int]) -> None:
    """A new stdin that holds these bytes, as a descriptor too; and streams that no earlier input has touched."""
    handle = open_stdin(data)
    if handle:  # it is 0 already where an earlier input closed that
        os.dup2(handle, 0)
        os.close(handle)
    for place, stream in enumerate(originals, 1):
        os.dup2(stream, place)
    reader = io.BufferedReader(io.FileIO(0, closefd=False))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(reader, errors="surrogateescape")  # type: ignore[misc]
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = open_text_writer(1), open_text_writer(2)  # type: ignore[misc]


def open_text_writer(place: int) -> io.TextIOWrapper:
    """A stream of text to a descriptor."""
    return io.TextIOWrapper(io.BufferedWriter(io.FileIO(place, "w", closefd=False)))


def release_globals(space: dict[str, Any], collected: tuple[int, ...]) -> None:
    """What a program has made ends with it, as at Python's own end: its memory is for the next, and a file of its own
    must not be closed when another one has the number. Functions go last: what ends may still want them.

    What holds itself is young still, and found at once, unless the collector has been at work since it `collected`.
    """
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    data = [name for name, value in space.items() if not (callable(value) or type(value) is ModuleType)]
    for name in [*data, *space]:
        if name != "__builtins__":
            space[name] = None
    gc.collect(1 if gc.get_count()[1:] == collected else 2)
    if weakref := sys.modules.get("weakref"):  # its own end came with atexit, and so did that of others
        weakref.finalize._shutdown = weakref.finalize._registered_with_atexit = False
    if futures := sys.modules.get("concurrent.futures.thread"):
        futures._shutdown = False  # type: ignore[attr-defined]


def open_stdin(data: bytes) -> int:
    """A descriptor to read these bytes from: a file without a name or, where it cannot hold them, a pipe."""
    try:
        handle = os.open(WORKING_FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return open_stdin_pipe(data)
    if not write_all(handle, data):
        os.close(handle)
        return open_stdin_pipe(data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def write_all(handle: int, data: bytes) -> bool:
    """Whether a file takes it all: what the code may keep in files is no bound on what it is given to read."""
    try:
        return os.write(handle, data) == len(data)
    except OSError:
        return False


def open_stdin_pipe(data: bytes) -> int:
    """The reading end of a pipe into which these bytes are poured."""
    from threading import Thread  # not before: every fork would have to set it right

    reading, writing = os.pipe()
    Thread(target=write_to_pipe, args=(writing, data), daemon=True).start()
    return reading


def write_to_pipe(handle: int, data: bytes) -> None:
    """Write to a pipe until all is read, or nobody reads."""
    with suppress(OSError), open(handle, "wb") as file:
        file.write(data)


def run_calls(request: dict[str, Any], channel: Channel) -> int:
    """The program once, then one function of it for every input; what it returns comes back as plain data."""
    asked = json.loads(request["code"])
    found: list[Any] = []

    def case(body: dict[str, Any]) -> dict[str, Any]:
        def play() -> str:
            if not found:
                found.append(load_function(asked["code"], asked["entry"]))
            given = unpack(body["args"], refuse_object)
            return json.dumps(pack(run_coroutine(found[0](*given)), lambda value: refuse_object("", value)))

        return guest.make_report(play)

    answer_messages(channel, case)


def load_function(code: str, wanted: str) -> Any:
    """A function that the code defines."""
    space = guest.make_globals(SOLUTION_MODULE)
    execute(code, space)
    if wanted in space:
        return space[wanted]
    if SOLUTION_CLASS in space:
        return getattr(space[SOLUTION_CLASS](), wanted)
    raise NameError(f"the code defines no {wanted}")


def refuse_object(_: str, value: Any) -> Any:
    """Nothing but plain data crosses here."""
    raise TypeError(f"an object of {type(value).__name__} cannot be compared")


EXAM_ROLES = {
    "candidate": Role(run_candidate),
    "examiner": Role(run_examiner),
    "inputs": Role(run_inputs, stays=True),
    "calls": Role(run_calls, stays=True),
}
