"""Graded programs find what `python main.py` gives them: streams, `__main__`, arguments; contest templates run."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.sandbox import Grader, Limits, Rule, Sandbox
from rollbook.sandbox.inner.filesystem import WORKING_FOLDER
from rollbook.sandbox.isolation import PYTHON_ENVIRONMENT, base_python
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.results import Result
from rollbook.sandbox.session_state import PersistentState
from support.restricted_host import can_enter, start_restricted_host

DUMP = r"""
import builtins, gc, json, locale, os, signal, stat, sys, threading
found = {}

def show(value):
    plain = isinstance(value, (str, int, float, type(None)))
    return value if plain else repr(value) if isinstance(value, (tuple, list, dict)) else type(value).__name__

def read(read):
    try:
        return show(read())
    except Exception as error:
        return type(error).__name__

for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
    stream = getattr(sys, name)
    found[name + " is the original"] = stream is getattr(sys, f"__{name.strip('_')}__")
    for level, value in ((name, stream), (name + ".buffer", stream.buffer), (name + ".buffer.raw", stream.buffer.raw)):
        found[level] = repr(value)
        for attribute in dir(value):
            if not attribute.startswith("__"):
                found[f"{level}.{attribute}"] = read(lambda: getattr(value, attribute))
        for method in ("fileno", "isatty", "readable", "writable", "seekable"):
            found[f"{level}.{method}()"] = read(getattr(value, method))
for fd in (0, 1, 2):
    found[f"descriptor {fd}"] = repr((os.get_inheritable(fd), os.get_blocking(fd), stat.S_IFMT(os.fstat(fd).st_mode)))
found["size of stdin"] = os.fstat(0).st_size
for name, value in vars(sys.modules["__main__"]).items():
    if name.startswith("__"):
        found["__main__." + name] = show(value)
found["__main__"] = repr(sys.modules["__main__"])
found["globals"] = vars(sys.modules["__main__"]) is globals()
for name in ("argv", "orig_argv", "executable", "prefix", "warnoptions", "_xoptions", "dont_write_bytecode"):
    found["sys." + name] = repr(getattr(sys, name))
for name in ("getdefaultencoding", "getfilesystemencoding", "getfilesystemencodeerrors", "getswitchinterval",
             "gettrace", "getprofile", "get_int_max_str_digits"):
    found[f"sys.{name}()"] = read(getattr(sys, name))
found["sys.path[0]"] = sys.path[0]
found["cwd"] = os.getcwd()
found["locale"] = repr((locale.getlocale(), locale.getpreferredencoding(), locale.setlocale(locale.LC_ALL)))
found["gc"] = repr((gc.isenabled(), gc.get_threshold()))
found["threads"] = repr((threading.active_count(), threading.current_thread() is threading.main_thread()))
found["builtins"] = repr(sorted(f"{name} {type(value).__name__}" for name, value in vars(builtins).items()))
found["signals"] = repr([str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)])

def dive(depth):
    found["depth"] = depth
    dive(depth + 1)

try:
    dive(0)
except RecursionError:
    pass
found["flags"] = {name: getattr(sys.flags, name) for name in dir(sys.flags) if not name.startswith(("_", "n_"))
                  and not callable(getattr(sys.flags, name))}
found["recursion limit"] = sys.getrecursionlimit()
found["environment"] = sorted(os.environ)
found["source"] = os.path.exists(__file__)
found["read"] = sys.stdin.read()
json.dump(found, sys.stdout)
"""
INTENDED = {
    "flags": "no_site, no_user_site and safe_path are set: the sandbox has no site packages but those it was given",
    "recursion limit": "higher by the frames of the sandbox, so that the same depth is reached",
    "environment": "empty: nothing of the host's is shown",
    "source": "the program is never on the disk: `__file__` names a file that does not exist",
}


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox(Limits(seconds=5, memory_mb=512), size=1) as box:
        yield box


def run_plainly(code: str, stdin: str, folder: Path) -> dict[str, object]:
    """Return what `python main.py` prints, with stdin from a file."""
    (folder / "main.py").write_text(code)
    (folder / "stdin").write_bytes(stdin.encode())
    with open(folder / "stdin", "rb") as file:
        done = subprocess.run(
            [base_python(), "main.py"], cwd=folder, stdin=file, capture_output=True, env=PYTHON_ENVIRONMENT, check=True
        )
    return dict(json.loads(done.stdout.decode().replace(str(folder), WORKING_FOLDER)))


def run_graded(box: Sandbox, code: str, stdin: str) -> dict[str, object]:
    """Return what a program prints in the second of two cases: the first must leave nothing behind."""

    def run_twice(launcher: GuestLauncher) -> Result:
        state = PersistentState(launcher, box.limits, {}, role="inputs", code=code)
        try:
            return [state.run_turn({"stdin": stdin}, box.limits) for _ in range(2)][-1]
        finally:
            state.close()

    result = box.use_launcher(run_twice)
    assert result.status == "ok", result
    return dict(json.loads(result.stdout))


def test_a_graded_program_finds_what_it_finds_without_a_sandbox(box: Sandbox, tmp_path: Path) -> None:
    plain, graded = run_plainly(DUMP, "a\r\nb\n", tmp_path), run_graded(box, DUMP, "a\r\nb\n")
    depth, plain_depth = graded.pop("depth"), plain.pop("depth")
    assert depth in (plain_depth, plain_depth + 1)  # type: ignore[operator]  # versions of Python count differently
    differences = {name for name in {**plain, **graded} if plain.get(name) != graded.get(name)}
    assert {name: (plain.get(name), graded.get(name)) for name in differences - {*INTENDED}} == {}
    assert differences == {*INTENDED}, "the list of intended differences is up to date"
    flags, plain_flags = dict(graded["flags"]), dict(plain["flags"])  # type: ignore[call-overload]
    assert {name for name in flags if flags[name] != plain_flags[name]} == {"no_site", "no_user_site", "safe_path"}


PYRIVAL = """
import os, sys
from io import BytesIO, IOBase
BUFSIZE = 8192

class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def read(self):
        while True:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            if not b:
                break
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines = 0
        return self.buffer.read()
    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            self.newlines = b.count(b"\\n") + (not b)
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)

class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush = self.buffer.flush
        self.writable = self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode("ascii"))
        self.read = lambda: self.buffer.read().decode("ascii")
        self.readline = lambda: self.buffer.readline().decode("ascii")

sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip("\\r\\n")
"""
PYRIVAL_PRINT = """
def print(*args, **kwargs):
    sep, file = kwargs.pop("sep", " "), kwargs.pop("file", sys.stdout)
    at_start = True
    for x in args:
        if not at_start:
            file.write(sep)
        file.write(str(x))
        at_start = False
    file.write(kwargs.pop("end", "\\n"))
    if kwargs.pop("flush", False):
        file.flush()
"""
SOLVE = "n = int(input())\nprint(sum(map(int, input().split())) + n)\n"
MAIN = "def main():\n    n = int(input())\n    print(sum(map(int, input().split())) + n)\n"
READS = "n, *rest = map(int, data.split())\nprint(sum(rest) + n)\n"
DEEP = "def dive(n): return 0 if n == 0 else dive(n - 1)\n"
TEMPLATES = {
    "PyRival's FastIO": PYRIVAL + SOLVE,
    "PyRival's FastIO and print": PYRIVAL + PYRIVAL_PRINT + SOLVE + "sys.stdout.flush()",
    "PyRival's main": PYRIVAL + MAIN + 'if __name__ == "__main__":\n    main()',
    "old FastIO": "import sys, os, io\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n" + SOLVE,
    "stdin opened again": "import sys\nsys.stdin = open(0)\n" + SOLVE,
    "all of it by descriptor": "data = open(0).read()\n" + READS,
    "all of it as bytes": "import sys\ndata = sys.stdin.buffer.read()\n" + READS,
    "all of it by os.read": "import os\ndata = os.read(0, 1 << 20)\n" + READS,
    "readline of the buffer": "import sys\ninput = sys.stdin.buffer.readline\n" + SOLVE,
    "readline": "import sys\ninput = lambda: sys.stdin.readline().rstrip()\n" + SOLVE,
    "lines": "import sys\ndata = ' '.join(line for line in sys.stdin)\n" + READS,
    "fileinput": "import fileinput\ndata = ' '.join(fileinput.input())\n" + READS,
    "an iterator": "import sys\nit = iter(sys.stdin.read().split())\ndata = ' '.join(it)\n" + READS,
    "mapped memory": "import mmap\ndata = mmap.mmap(0, 0, access=mmap.ACCESS_READ)[:].decode()\n" + READS,
    "/dev/stdin": "try:\n    data = open('/dev/stdin').read()\nexcept OSError:\n    data = open(0).read()\n" + READS,
    "a thread with a large stack": (
        "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 27)\n"
        + DEEP
        + MAIN.replace("print(", "dive(50_000)\n    print(")
        + "thread = threading.Thread(target=main)\nthread.start()\nthread.join()"
    ),
    "a thread nobody waits for": "import threading\n" + MAIN + "threading.Thread(target=main).start()",
    "a recursion limit": "import sys\nsys.setrecursionlimit(10**6)\n" + DEEP + "dive(10_000)\n" + SOLVE,
    "print is write": "import sys\nprint = lambda x: sys.stdout.write(f'{x}\\n')\n" + SOLVE,
    "print to a list": "import sys\nout = []\nprint = out.append\n"
    + SOLVE
    + "sys.stdout.write('\\n'.join(map(str, out)))",
    "bytes out": "import sys\nprint = lambda x: sys.stdout.buffer.write(b'%d\\n' % x)\n" + SOLVE,
    "os.write": "import os\nprint = lambda x: os.write(1, b'%d\\n' % x)\n" + SOLVE,
    "stdout is a StringIO": (
        "import atexit, io, sys\nbuffer = io.StringIO()\nsys.stdout = buffer\n"
        "atexit.register(lambda: sys.__stdout__.write(buffer.getvalue()))\n" + SOLVE
    ),
    "flushed at exit": (
        "import atexit, io, os, sys\nsys.stdout = io.BytesIO()\n"
        "atexit.register(lambda: os.write(1, sys.stdout.getvalue()))\n"
        "print = lambda x: sys.stdout.write(b'%d\\n' % x)\n" + SOLVE
    ),
    "exec": f"exec({SOLVE!r})",
    "exec of its own globals": f"exec(compile({SOLVE!r}, 'x', 'exec'), globals())",
    "a guard": MAIN + "if __name__ == '__main__':\n    main()",
    "exit at the end": SOLVE + "exit()",
    "quit and a code": SOLVE + "quit(0)",
    "sys.exit in a function": "import sys\n" + MAIN + "sys.exit(main())",
    "os._exit after a flush": "import os, sys\n" + SOLVE + "sys.stdout.flush()\nos._exit(0)",
    "modes and names": (
        "import sys\nassert (sys.stdin.mode, sys.stdout.mode, sys.stderr.mode) == ('r', 'w', 'w')\n"
        "assert [s.name for s in (sys.stdin, sys.stdout, sys.stderr)] == ['<stdin>', '<stdout>', '<stderr>']\n" + SOLVE
    ),
    "streams reconfigured": "import sys\nsys.stdout.reconfigure(line_buffering=False)\n" + SOLVE,
    "streams detached": "import io, sys\nsys.stdin = io.TextIOWrapper(sys.stdin.detach())\n" + SOLVE,
    "warnings and stderr": "import sys\nprint('debug', file=sys.stderr)\n" + SOLVE,
    "arguments": "import sys\nassert len(sys.argv) == 1\nif len(sys.argv) > 1: sys.stdin = open(sys.argv[1])\n" + SOLVE,
    "a local run": (
        "import os, sys\nif os.path.exists('input.txt') or 'LOCAL' in os.environ: sys.stdin = open('input.txt')\n"
        + SOLVE
    ),
    "limits of the stack": (
        "from resource import *\nsetrlimit(RLIMIT_STACK, (getrlimit(RLIMIT_STACK)[1],) * 2)\n" + SOLVE
    ),
    "a bootstrap decorator": (
        "from types import GeneratorType\n"
        "def bootstrap(f, stack=[]):\n"
        "    def wrapped(*args):\n"
        "        if stack: return f(*args)\n"
        "        to = f(*args)\n"
        "        while True:\n"
        "            if type(to) is GeneratorType: stack.append(to); to = next(to)\n"
        "            else:\n"
        "                stack.pop()\n"
        "                if not stack: return to\n"
        "                to = stack[-1].send(to)\n"
        "    return wrapped\n"
        "@bootstrap\ndef dive(n):\n    if n: yield dive(n - 1)\n    yield None\n"
        "dive(20_000)\n" + SOLVE
    ),
}
CASES = [("3\n1 2 3\n", "9\n"), ("1\n5", "6\n"), ("2\r\n4 4\r\n", "10\n")]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_contest_sites_run(box: Sandbox, name: str) -> None:
    verdict = Grader(box).inputs_sync(TEMPLATES[name], CASES, rule=Rule(spaces="lines"))
    assert verdict.passed, verdict


@pytest.mark.parametrize("place", ["container root", "container user", "bubblewrap"])
def test_they_run_whatever_the_isolation(place: str) -> None:
    body = (
        "from rollbook.sandbox import Grader\ngrader = Grader(box)\n"
        f"templates, cases = {TEMPLATES!r}, {CASES!r}\n"
        "return [name for name, code in templates.items() if not grader.inputs_sync(code, cases).passed]"
    )
    if place == "bubblewrap":
        if shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed here")
        with Sandbox(Limits(seconds=5, memory_mb=512), size=1, provider="bubblewrap") as box:
            failed = [name for name, code in TEMPLATES.items() if not Grader(box).inputs_sync(code, CASES).passed]
    else:
        if not can_enter(place):
            pytest.skip("only root can put itself there")
        with start_restricted_host(place, Limits(seconds=5, memory_mb=512)) as there:
            failed = there.do(body)  # type: ignore[assignment]
    assert failed == []


def test_what_one_input_sets_is_not_there_at_the_next(box: Sandbox) -> None:
    program = (
        "import signal, sys\nprint(len(sys.argv), len(sys.path), sys.getrecursionlimit() < 1100)\n"
        "print(signal.alarm(0))\nsignal.alarm(100)\n"
        "sys.argv.append('x')\nsys.path.append('/x')\nsys.setrecursionlimit(5000)"
    )
    folders = len(json.loads(box.run_sync("import json, sys; print(json.dumps(sys.path))").stdout)) + 1
    assert Grader(box).inputs_sync(program, [("", f"1 {folders} True\n0")] * 3).passed
