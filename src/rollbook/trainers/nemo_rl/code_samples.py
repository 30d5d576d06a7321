"""One sample of the code environment: its settings, its code and session, and the outcome of the code.

Code in a message is the text between `<code>` and `</code>`. A `</code>` inside a string literal is text, not the end.
A `<code>` inside a block is code, unless it begins a line: no line of Python does, so it restarts the block (the model
only mentioned the tag before). A block that is never closed extends to the end of the message: a stop string may have
been cut off.

With `like_nemo_rl` code is refused in the words of NeMo RL's own code environment, for prompts and tests that were
written against it. There, names are filtered and nothing is isolated. Here the sandbox isolates, and this filter only
gives the same messages; what bypasses it (`import os.path as path`) is still inside the sandbox.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
import uuid
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from rollbook.errors import UsageError
from rollbook.sandbox import Limits, Result, check_provider

MIB = 1 << 20
GIB = 1 << 30
TURNS_PER_CORE = 2
"""Twice the cores: some code sleeps; and the wall clock of code that does not, four times its CPU time, still holds."""


class CodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Every setting; a None in the dictionary means the default."""

    default_timeout_seconds: float = 5.0
    """CPU time of one message's code, unless its sample sets it; the wall clock gets max(1, 4 x) that."""
    default_memory_limit_bytes: int = 256 * MIB
    """Memory of a session beyond the interpreter's own, unless its sample sets it."""
    max_timeout_seconds: float = 300.0
    """The most that a sample may request."""
    max_memory_limit_bytes: int = 16 * GIB
    """The most that a sample may request."""
    max_files_bytes: int = 16 * MIB
    """The total size of a session's files; in a working_dir, of each file."""
    max_output_chars: int = 8192
    """What is shown of each of stdout, stderr, the value and an error's message; the rest is cut, with a mark."""
    snapshots: bool = True
    """Whether code that dies is undone; otherwise the session is lost with it."""
    session_lease_seconds: float = 1800.0
    """How long a session is kept after its last turn: longer than a batch takes to generate."""
    max_sessions: int = 1024
    """How many sessions a worker keeps; one more replaces the one that was idle longest."""
    batch_timeout_seconds: float = 1800.0
    """When `step` returns at the latest, whatever is still in progress."""
    turns_at_once: int | None = None
    """How many turns a worker runs at a time; by default twice the cores of its machine."""
    packages: tuple[str, ...] = ()
    """What code may import besides the standard library; loaded in advance."""
    provider: str = "built-in"
    """The sandbox: built-in, bubblewrap (no snapshots), or the address of a remote one."""
    terminate_on_evaluation: bool = False
    """Whether an episode ends when the last block of a message succeeds and its last expression has a value."""
    terminate_without_code: bool = True
    """Whether an episode ends with a message that has no code."""
    like_nemo_rl: bool = False
    """Whether code is refused, and errors are shown, in the words of NeMo RL's own environment; see IMPORT_FILTER."""
    num_workers: int = 1
    """How many workers share the sessions: Ray actors if Ray runs, otherwise sandboxes in this process."""
    worker_group: str = ""
    """With Ray: environments that name the same group share its workers, and so their samples' sessions."""

    @property
    def threads(self) -> int:
        """`turns_at_once`, on this machine."""
        return self.turns_at_once or TURNS_PER_CORE * (os.cpu_count() or 2)

    def __post_init__(self) -> None:
        check_provider(self.provider)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if type(value) in (int, float) and not (math.isfinite(value) and value > 0):
                raise UsageError(f"code environment: {name}={value}: give a positive, finite number")
        for name in ("timeout_seconds", "memory_limit_bytes"):
            default, highest = getattr(self, f"default_{name}"), getattr(self, f"max_{name}")
            if default > highest:
                raise UsageError(f"code environment: default_{name}={default} is above max_{name}={highest}")


def read_config(settings: Mapping[str, object] | None) -> CodeConfig:
    """Return the settings of a dictionary; UsageError names a wrong one."""
    given = {name: value for name, value in dict(settings or {}).items() if value is not None}
    for name in given:
        if name not in CodeConfig.__struct_fields__:
            near = get_close_matches(str(name), CodeConfig.__struct_fields__, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(CodeConfig.__struct_fields__)}"
            raise UsageError(f"code environment: no setting is called {name}; {hint}")
    try:
        return msgspec.convert(given, CodeConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"code environment: {error}") from None


OPEN_TAG, CLOSE_TAG = "<code>", "</code>"
# Every failing attempt at a string is bounded: an escape is consumed outside of strings too, so that a quote without
# a partner on its line is tried once. Time is linear in the message, whatever it contains.
_TOKEN = re.compile(
    r'''
      (?P<text> """(?:\\.|(?!""").)*"""
              | \'\'\'(?:\\.|(?!\'\'\').)*\'\'\'
              | "(?:\\.|[^"\\\n])*"
              | '(?:\\.|[^'\\\n])*'
              | \#[^\n]*?(?=</code>|\n|\Z)
              | \\. )
    | (?P<again> ^[ \t]*<code>)
    | (?P<close> </code>)
    ''',
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)


class CodeBlocks(NamedTuple):
    """The blocks of a message, and the text after the last of them."""

    blocks: tuple[str, ...]
    after: str


def find_blocks(message: str) -> CodeBlocks:
    """Return all blocks in their order."""
    blocks: list[str] = []
    start = message.find(OPEN_TAG)
    after = 0
    while start >= 0:
        code, after = _read_block(message, start + len(OPEN_TAG))
        blocks.append(code)
        start = message.find(OPEN_TAG, after)
    return CodeBlocks(tuple(blocks), message[after:] if blocks else "")


def _read_block(message: str, start: int) -> tuple[str, int]:
    """Return the code that begins here, and the position after it."""
    for token in _TOKEN.finditer(message, start):
        if token["again"]:
            start = token.end()
        elif token["close"]:
            return dedent_code(message[start : token.start()]), token.end()
    end = message.find(CLOSE_TAG, start)
    if end < 0:
        return dedent_code(message[start:]), len(message)
    return dedent_code(message[start:end]), end + len(CLOSE_TAG)


def dedent_code(code: str) -> str:
    """Return code without the indentation of its place in the message."""
    first, newline, rest = code.partition("\n")
    if first.strip():
        return (first.lstrip(" \t") + newline + rest).rstrip()
    return textwrap.dedent(rest).rstrip()


MAX_MESSAGE_CHARS = 1 << 20
MAX_BLOCKS = 16
MAX_ID_CHARS = 256


class SampleRefused(Exception):
    """The sample's request cannot be met: it gets an error observation of its own, and nothing was run."""


class CodeRequest(msgspec.Struct, frozen=True):
    """Code to run in a session."""

    session_id: str
    turn: int | None
    """The number of turns in the session so far; None if the metadata do not say."""
    blocks: tuple[str, ...]
    seconds: float
    memory_mb: int
    working_dir: str | None = None


def read_last_message(log: object) -> CodeBlocks:
    """Return the blocks of a log's last message."""
    last = log[-1] if isinstance(log, Sequence) and not isinstance(log, str) and log else None
    content = last.get("content") if isinstance(last, Mapping) else None
    if not isinstance(content, str):
        raise SampleRefused("the message log does not end with a message whose content is text")
    if len(content) > MAX_MESSAGE_CHARS:
        raise SampleRefused(f"the message has more than {MAX_MESSAGE_CHARS} characters")
    found = find_blocks(content)
    if len(found.blocks) > MAX_BLOCKS:
        raise SampleRefused(f"the message has {len(found.blocks)} code blocks; at most {MAX_BLOCKS} are run")
    return found


def read_code_request(blocks: tuple[str, ...], metadata: object, config: CodeConfig) -> CodeRequest:
    """Return the limits and the session for this code: the sample's own before the environment's."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise SampleRefused(f"metadata is a {type(metadata).__name__}, not a dictionary")
    values = dict(metadata or {})
    if values.get("context"):
        raise SampleRefused("metadata context: variables live in the session; set them by code in a first message")
    seconds = read_limit(values, "timeout_seconds", config.default_timeout_seconds, config.max_timeout_seconds)
    memory = read_limit(values, "memory_limit_bytes", config.default_memory_limit_bytes, config.max_memory_limit_bytes)
    return CodeRequest(
        session_id=read_session_id(values),
        turn=read_turn(values),
        blocks=blocks,
        seconds=float(seconds),
        memory_mb=-int(-memory // MIB),
        working_dir=read_working_dir(values),
    )


def read_limit(metadata: Mapping[str, object], name: str, default: float, most: float) -> float:
    """Return a sample's own limit, a number above 0 and at most `most`; the default if it has none."""
    value = metadata.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SampleRefused(f"metadata {name}={shorten_repr(value)}: give a number")
    number = to_float(value)
    if not 0 < number <= most:
        raise SampleRefused(f"metadata {name}={shorten_repr(value)}: give a number above 0 and at most {most}")
    return number


def to_float(value: Real) -> float:
    """Return a number as a float; one too large is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def read_session_id(metadata: Mapping[str, object]) -> str:
    """Return the session id: the sample's, or a new one."""
    value = metadata.get("session_id")
    if value is None:
        return uuid.uuid4().hex
    if isinstance(value, bool) or not isinstance(value, str | int) or not 0 < len(str(value)) <= MAX_ID_CHARS:
        raise SampleRefused(f"metadata session_id={shorten_repr(value)}: give a text of 1 to {MAX_ID_CHARS} characters")
    return str(value)


def read_turn(metadata: Mapping[str, object]) -> int | None:
    """Return the number of turns that the sample says its session has had."""
    value = metadata.get("session_turn")
    if value is None or (type(value) is int and value >= 0):
        return value
    raise SampleRefused(f"metadata session_turn={shorten_repr(value)}: the environment sets it; return it unchanged")


def read_working_dir(metadata: Mapping[str, object]) -> str | None:
    """Return the host folder that a session works in."""
    value = metadata.get("working_dir")
    if value is None or isinstance(value, str):
        return value or None
    raise SampleRefused(f"metadata working_dir={shorten_repr(value)}: give a path as text")


def shorten_repr(value: object) -> str:
    """Return a value shortened for an error message; repr itself may fail on a huge number."""
    try:
        text = repr(value)
    except ValueError:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:60]}..."


BLOCKED_MODULES = (
    "os",
    "shutil",
    "sys",
    "signal",
    "socket",
    "subprocess",
    "threading",
    "multiprocessing",
    "builtins",
    "importlib",
)
"""Modules that may not be imported under exactly this name."""

NO_IMPORT = "Importing system and network modules is blocked"
NO_ACCESS = "Access beyond the temporary working directory is blocked"

IMPORT_FILTER = f"""
def _alike():
    plain = __builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)
    if plain.get("alike"):
        return
    real_import, real_open = plain["__import__"], plain["open"]
    path, here = real_import("os").path, real_import("os").getcwd

    def imported(name, *rest, **named):
        if name in {BLOCKED_MODULES!r}:
            raise PermissionError({NO_IMPORT!r})
        return real_import(name, *rest, **named)

    def opened(file, *rest, **named):
        inside = path.realpath(here())
        if not isinstance(file, int) and path.commonpath([path.realpath(file), inside]) != inside:
            raise PermissionError({NO_ACCESS!r})
        return real_open(file, *rest, **named)

    globals()["__builtins__"] = {{**plain, "__import__": imported, "open": opened, "alike": True}}

_alike()
del _alike
"""
"""Code that runs before a message's own and replaces the builtins of its globals. Running it twice does no harm."""


def format_exception(kind: str, message: str) -> str:
    """Return an exception as Python writes it.

    >>> format_exception("ZeroDivisionError", "division by zero"), format_exception("KeyError", "'x'")
    ("ZeroDivisionError('division by zero')", "KeyError('x')")
    >>> format_exception("AssertionError", "")
    'AssertionError()'
    """
    return f"{kind}({message if kind == 'KeyError' or not message else repr(message)})"


ProblemKind: TypeAlias = Literal[
    "syntax",
    "runtime",
    "timeout",
    "memory",
    "exit",
    "crash",
    "killed",
    "output",
    "skipped",
    "refused",
    "sandbox",
    "deadline",
]
SYNTAX_ERRORS = {"SyntaxError", "IndentationError", "TabError"}
_TRACEBACK_LINE = re.compile(r'^  File "<code>", line (\d+)', re.MULTILINE)

LOST = "lost; the next code begins afresh, without what earlier code made"
ROLLED_BACK = "rolled back; variables are as they were before this code, files are not"
BEGAN_AFRESH = "began afresh; what earlier turns made is gone"


class CodeProblem(msgspec.Struct, frozen=True):
    """Why code did not end well."""

    kind: ProblemKind
    message: str
    repr: str = ""
    """The exception as Python writes it, if it is one."""


class CodeOutcome(msgspec.Struct, frozen=True):
    """What is reported of one block."""

    stdout: str = ""
    stderr: str = ""
    value: str | None = None
    problem: CodeProblem | None = None
    before: str = ""
    """What had happened to the session before this code."""
    after: str = ""
    """What this code did to the session."""

    @property
    def status(self) -> str:
        """One word: ok, or the kind of problem."""
        return self.problem.kind if self.problem else "ok"


def make_problem_outcome(kind: ProblemKind, message: str) -> CodeOutcome:
    """Return an outcome that is only a problem."""
    return CodeOutcome(problem=CodeProblem(kind, message))


def make_outcome(result: Result, limits: Limits, left: Limits, afresh: bool) -> CodeOutcome:
    """Return the outcome of a turn. `limits` are the message's, `left` is what remained of them for this block."""
    return CodeOutcome(
        stdout=result.stdout,
        stderr=result.stderr,
        value=result.value if result.status == "ok" else None,
        problem=find_problem(result, limits, left),
        before=BEGAN_AFRESH if afresh or result.restarted else "",
        after={"lost": LOST, "rolled back": ROLLED_BACK}.get(result.state or "", ""),
    )


def find_problem(result: Result, limits: Limits, left: Limits) -> CodeProblem | None:
    """Return everything that can go wrong in one form."""
    match result.status:
        case "ok":
            return CodeProblem("exit", "the code exited with 0") if result.exit == 0 else None
        case "error":
            return describe_error(result)
        case "timeout":
            return CodeProblem("timeout", describe_timeout(limits, out_of_cpu=result.cpu_seconds >= left.seconds))
        case "memory":
            return CodeProblem("memory", f"the code needs more memory than its limit of {limits.memory_mb} MiB")
        case "output":
            return CodeProblem("output", "the code printed without end")
        case "crash":
            return CodeProblem("crash", "the process died of a signal")
        case _:
            return CodeProblem("killed", result.error.message if result.error else "the process was killed")


def describe_error(result: Result) -> CodeProblem:
    """Return an exception or an exit as a problem."""
    error = result.error
    if error is None:
        return CodeProblem("exit", f"the code exited with {result.exit}")
    if error.type == "Exit":
        return CodeProblem("exit", error.message)
    kind: ProblemKind = "syntax" if error.type in SYNTAX_ERRORS else "runtime"
    lines = _TRACEBACK_LINE.findall(error.traceback) if "(<code>, line" not in error.message else []
    where = f"line {lines[-1]}: " if lines else ""
    message = f"{where}{error.type}: {error.message}".rstrip(": ")
    return CodeProblem(kind, message, format_exception(error.type, error.message))


def describe_timeout(limits: Limits, out_of_cpu: bool) -> str:
    """Say which of the two clocks ran out."""
    if out_of_cpu:
        return f"the code used more than {limits.seconds:g} s of CPU time"
    return f"the code ran longer than {limits.wall_s:g} s"
