"""The roles of an examination: untrusted code, and the examiner, which alone has the tests.

`candidate` and `examiner` communicate over descriptor 4 of each (see `peer.py`); the verdict goes over the examiner's
own channel, which the candidate does not have. `inputs` and `calls` need no examiner: only the host has the expected
results.
"""

import ast
import builtins
import fcntl
import gc
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, ModuleType
from typing import Any

from . import guest
from .channel import Channel, PeerChannel, encode_frame
from .filesystem import WORKING_FOLDER
from .handles import run_coroutine
from .peer import OneProcess, Peer, PeerGone, TooMuchData
from .plain_data import CONTAINERS, pack, unpack
from .roles import Role, answer_messages

PEER_DESCRIPTOR = 4
OUT_OF_MEMORY_FRAME = encode_frame({"error": {"type": "MemoryError", "message": "the tests"}, "memory": True})
RECURSION_LIMIT = sys.getrecursionlimit()
SOLUTION_CLASS = "Solution"
"""The class in which competitions expect the function, if it is not at module level."""
SOLUTION_MODULE = "solution"
"""The name of the code's module where its functions are called: code under `if __name__ == "__main__"` does not run."""


def run_candidate(request: dict[str, Any], channel: Channel) -> int:
    """Run the code, announce the names it defines, and answer requests."""
    module_globals = guest.make_globals(SOLUTION_MODULE)
    report = guest.run_code(request["code"], module_globals, 0)
    channel.send(report)
    if "error" in report or "exit" in report:
        return 1
    peer_channel = PeerChannel(PEER_DESCRIPTOR)
    peer = Peer(peer_channel, stays=is_own_container if request["classes"] else None)
    peer_channel.send(
        {"hello": {name: peer.expose(value) for name, value in list(module_globals.items()) if callable(value)}}
    )
    peer.serve()
    return 0


def is_own_container(kind: type) -> bool:
    """Return whether a class of the code is a container with methods of its own; a named tuple is a tuple."""
    return kind.__module__ == SOLUTION_MODULE and issubclass(kind, CONTAINERS) and not hasattr(kind, "_fields")


def run_examiner(request: dict[str, Any], channel: Channel) -> int:
    """Run the tests against the candidate's entry point, and report the outcome."""
    try:
        channel.send({"value": examine(request)})
    except MemoryError:  # what the code gave the tests leaves no room for the report
        os.write(guest.CHANNEL, OUT_OF_MEMORY_FRAME)
    return 0


def examine(request: dict[str, Any]) -> str:
    """Run the tests and return the report."""
    exam = json.loads(request["code"])
    trust = {name: exam[name] for name in ("weak", "copies", "in_place")} | {"data": not exam["classes"]}
    trust["objects"] = exam["is_class"] is True
    peer = Peer(PeerChannel(PEER_DESCRIPTOR), guarded=True, **trust)
    phase, failure, other_names = "hello", None, dict[str, Any]()
    try:
        names = peer.receive_hello()
        entry = find_entry_point(peer, names, exam["entry"])
        peer.reset_requests()  # making a Solution was a request, but not one of the tests
        phase, module_globals = "tests", guest.make_globals()
        suites = record_suites(exam)
        other_names = find_other_names(names, exam)
        if other_names:
            module_globals["__builtins__"] = select_handed_over(peer, other_names, exam) | vars(builtins)
        execute(exam["setup"], module_globals)
        module_globals[exam["entry"]] = entry
        run_part(peer, lambda: execute(exam["tests"], module_globals))
        phase = "check"
        if exam["check"]:
            run_part(peer, lambda: module_globals[exam["check"]](entry))
        for suite in suites:
            assert suite.wasSuccessful(), f"{len(suite.failures)} failures and {len(suite.errors)} errors of unittest"
        phase = "passed"
    except BaseException as error:  # noqa: BLE001 - whatever ends the tests is the verdict
        failure = error
    if isinstance(failure, NameError) and failure.name in other_names:
        failure = OneProcess(f"the tests use {failure.name}, which only the code defines")
    failure = peer.find_objection(failure)
    report = {
        "verdict": find_verdict_word(phase, failure, exam, peer),
        "weak": peer.weakened,
        "side_effects": peer.has_side_effects,
        "error": failure and guest.describe_error(failure),
    }
    return json.dumps(report, ensure_ascii=False)


def record_suites(exam: dict[str, Any]) -> list[Any]:
    """Return a list to which every unittest result is added: tests may run a suite and ignore its result."""
    suites: list[Any] = []
    if "unittest" not in exam["tests"] + exam["setup"]:
        return suites
    from unittest import TestResult  # not before: it takes longer than most tests

    original = TestResult.__init__

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        suites.append(self)
        original(self, *args, **kwargs)

    TestResult.__init__ = record  # type: ignore[method-assign]
    return suites


def run_part(peer: Peer, work: Callable[[], Any]) -> None:
    """Run a part of the tests; some end by an exit, as unittest's do, and 0 is success.

    The exit must be their own: an exit of the candidate ends the candidate, and is not an exception here; and one in a
    function that the candidate called is for the candidate to handle.
    """
    try:
        run_coroutine(work())
    except SystemExit as exit:
        if exit.code not in (None, 0) or peer.threw(exit):
            raise


def find_verdict_word(phase: str, failure: BaseException | None, exam: dict[str, Any], peer: Peer) -> str:
    """Return one word for how the tests ended. They are broken if they fail before they ask the code anything, be it
    only for an attribute: whatever comes after that may be the code's fault. Tests that call no function and use no
    class are broken too, even if they do not fail."""
    if failure is None:
        return "passed" if peer.calls or (exam["classes"] and peer.requests) else "broken"
    if isinstance(failure, PeerGone):
        return "gone"
    if isinstance(failure, OneProcess):
        return "refused"
    if isinstance(failure, TooMuchData) or (isinstance(failure, MemoryError) and peer.requests):
        return "memory"
    return "failed" if phase == "hello" or peer.requests or is_missed(failure, exam) else "broken"


def is_missed(failure: BaseException | None, exam: dict[str, Any]) -> bool:
    """Return whether the tests ended because a class is missing that only the code could define."""
    return isinstance(failure, NameError) and is_class_of_code(failure.name or "", exam)


def is_class_of_code(name: str, exam: dict[str, Any]) -> bool:
    """Return whether a name that the tests use and do not define stands for a class next to the class under test."""
    return bool(exam["classes"] and name[:1].isupper())


def find_entry_point(peer: Peer, names: dict[str, Any], wanted: str) -> Any:
    """Return what is under test: by its name, or as a method of the class Solution."""
    if wanted in names:
        return names[wanted]
    if SOLUTION_CLASS in names:
        return peer.ask("attribute", names[SOLUTION_CLASS]()._number, (wanted,), {})
    raise NameError(f"the code defines no {wanted}")


def find_other_names(names: dict[str, Any], exam: dict[str, Any]) -> dict[str, Any]:
    """Return other names of the code that the tests use: only names that are neither Python's own nor defined anywhere
    by the tests, even conditionally (`try: xrange`); a name that the tests define at run time takes precedence."""
    text = f"{exam['setup']}\n{exam['tests']}"
    public = [name for name in names if name in text and name.isidentifier() and not name.startswith("_")]
    candidates = {name for name in public if name != exam["entry"] and not hasattr(builtins, name)}
    return {name: names[name] for name in candidates - find_defined_names(text)} if candidates else {}


def select_handed_over(peer: Peer, other_names: dict[str, Any], exam: dict[str, Any]) -> dict[str, Any]:
    """Return the names to hand over: classes next to a class under test. The tests may judge by a function, so
    functions need `weak`."""
    peer.weakened |= exam["weak"]
    return {name: value for name, value in other_names.items() if exam["weak"] or is_class_of_code(name, exam)}


def find_defined_names(text: str) -> set[str]:
    """Return every name that a module defines."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def execute(code: str, module_globals: dict[str, Any]) -> None:
    """Run a module's code."""
    exec(compile_code(code), module_globals)


def compile_code(code: str) -> CodeType:
    """Compile a module's code."""
    return compile(code.removeprefix(guest.BOM), "<code>", "exec")


def run_inputs(request: dict[str, Any], channel: Channel) -> int:
    """Run the whole program again for every input, which it reads from stdin, with new globals each time, as `python
    main.py` would."""
    program: list[Any] = []
    # Reading all builtins copies every page they are on: only for code that mentions them.
    streams, original_builtins = duplicate_streams(), dict(vars(builtins)) if "builtins" in request["code"] else {}
    folder, paths = os.getcwd(), list(sys.path)

    def run_case(body: dict[str, Any]) -> dict[str, Any]:
        def run() -> None:
            if not program:
                program.extend((RECURSION_LIMIT + count_frames(), compile_code(request["code"])))
            sys.setrecursionlimit(program[0])
            exec(program[1], module_globals)

        open_streams(open_stdin(body["stdin"].encode(), request.get("stdin_file")), streams)
        vars(builtins).update(original_builtins)
        sys.path[:] = [folder, *paths]
        signal.alarm(0)  # an alarm of an earlier input
        module_globals, collected = guest.make_globals(folder=folder), gc.get_count()[1:]
        report = guest.run_program(run)
        guest.make_report(lambda: release_globals(module_globals, collected))
        return report

    answer_messages(channel, run_case)


def duplicate_streams() -> list[int]:
    """Duplicate stdout and stderr, whatever a program does to descriptors 1 and 2."""
    return [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, guest.HIGH_DESCRIPTOR) for fd in (1, 2)]


def count_frames() -> int:
    """Return how many calls of the recursion limit our own code takes: its frames, and `exec`."""
    frame, count = sys._getframe(), 1
    while frame := frame.f_back:  # type: ignore[assignment]
        count += 1
    return count


def open_streams(handle: int, originals: list[int]) -> None:
    """Make a descriptor stdin, and open streams that no earlier input has changed."""
    if handle:  # it is 0 already where an earlier program closed its stdin
        os.dup2(handle, 0)
        os.close(handle)
    for fd, stream in enumerate(originals, 1):
        os.dup2(stream, fd)
    sys.stdin = sys.__stdin__ = guest.open_stream(0, "stdin", "r", "surrogateescape")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = guest.open_stream(1, "stdout", "w", "surrogateescape")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = guest.open_stream(2, "stderr", "w", "backslashreplace")  # type: ignore[misc]


def release_globals(module_globals: dict[str, Any], collected: tuple[int, ...]) -> None:
    """Release what a program has made, as at Python's own exit: its memory is needed for the next, and its files must
    not be closed when another file has the descriptor. Functions go last: finalizers may still need them.

    Reference cycles are still young, and collected at once, unless the collector has run since `collected`.
    """
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    data = [name for name, value in module_globals.items() if not (callable(value) or type(value) is ModuleType)]
    for name in [*data, *module_globals]:
        if name != "__builtins__":
            module_globals[name] = None
    gc.collect(1 if gc.get_count()[1:] == collected else 2)
    if weakref := sys.modules.get("weakref"):  # atexit has shut it down, and other modules too
        weakref.finalize._shutdown = weakref.finalize._registered_with_atexit = False
    if futures := sys.modules.get("concurrent.futures.thread"):
        futures._shutdown = False  # type: ignore[attr-defined]


def open_stdin(data: bytes, file: int | None) -> int:
    """Return a descriptor with these bytes: a file without a name or, where it cannot hold them, a pipe.

    Programs ask for the size of their stdin: where no file can be made, `file` is used again and again.
    """
    try:
        handle = os.open(WORKING_FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600) if file is None else reopen_stdin(file)
    except OSError:
        return open_stdin_pipe(data)
    if not write_all(handle, data):
        os.close(handle)
        return open_stdin_pipe(data)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def reopen_stdin(file: int) -> int:
    """Return a duplicate of the file for stdin, which is empty again."""
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    return os.dup(file)


def write_all(handle: int, data: bytes) -> bool:
    """Return whether a file could hold all of the data: the limit on the code's files does not limit its input."""
    try:
        return os.write(handle, data) == len(data)
    except OSError:
        return False


def open_stdin_pipe(data: bytes) -> int:
    """Return the reading end of a pipe to which a thread writes these bytes."""
    from threading import Thread  # not before: every fork would have to reinitialise it

    reading, writing = os.pipe()
    Thread(target=write_to_pipe, args=(writing, data), daemon=True).start()
    return reading


def write_to_pipe(handle: int, data: bytes) -> None:
    """Write to a pipe until everything is read, or its reading end is closed."""
    with suppress(OSError), open(handle, "wb") as file:
        file.write(data)


def run_calls(request: dict[str, Any], channel: Channel) -> int:
    """Run the program once, then call one of its functions for every input; return values come back as plain data."""
    program = json.loads(request["code"])
    functions: list[Any] = []

    def run_case(body: dict[str, Any]) -> dict[str, Any]:
        def call() -> str:
            if not functions:
                functions.append(load_function(program["code"], program["entry"]))
            arguments = unpack(body["args"], refuse_object)
            return json.dumps(pack(run_coroutine(functions[0](*arguments)), lambda value: refuse_object("", value)))

        return guest.make_report(call)

    answer_messages(channel, run_case)


def load_function(code: str, wanted: str) -> Any:
    """Return a function that the code defines."""
    module_globals = guest.make_globals(SOLUTION_MODULE)
    execute(code, module_globals)
    if wanted in module_globals:
        return module_globals[wanted]
    if SOLUTION_CLASS in module_globals:
        return getattr(module_globals[SOLUTION_CLASS](), wanted)
    raise NameError(f"the code defines no {wanted}")


def refuse_object(_: str, value: Any) -> Any:
    """Refuse everything but plain data."""
    raise TypeError(f"an object of {type(value).__name__} cannot be compared")


EXAM_ROLES = {
    "candidate": Role(run_candidate),
    "examiner": Role(run_examiner),
    "inputs": Role(run_inputs, stays=True),
    "calls": Role(run_calls, stays=True),
}
