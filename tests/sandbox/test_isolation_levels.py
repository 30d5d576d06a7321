"""Isolation levels: the strongest available one is used, proven and reported, and never less than required."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbook.processes import find_members
from rollbook.sandbox import Limits, Sandbox, SandboxError
from rollbook.sandbox.isolation import PACKAGE_FOLDER
from rollbook.sandbox.launcher import prove_isolation
from support.alive import alive, eventually
from support.restricted_host import LESSER_ROOT, PRIVATE_PYTHON, RestrictedHost, can_enter, start_restricted_host

LIMITS = Limits(seconds=1.0, memory_mb=128)
LAYERS = {
    "container root": {"seccomp", "uid", "no namespaces", "read-only folder"},
    "container user": {"seccomp", "same user", "no namespaces", "read-only folder"},
}


@pytest.fixture(scope="module", params=LAYERS)
def weak(request: pytest.FixtureRequest) -> Iterator[tuple[str, RestrictedHost]]:
    if not can_enter(request.param):
        pytest.skip("only root can put itself there")
    with start_restricted_host(request.param, LIMITS) as there:
        yield request.param, there


def test_without_namespaces_the_next_best_is_taken_and_named(weak: tuple[str, RestrictedHost]) -> None:
    place, there = weak
    layers = set(there.run("1").isolation)
    assert layers >= LAYERS[place]
    assert not layers & {"pid", "mount", "network", "ipc", "cgroup"}


def test_without_namespaces_nothing_less_is_taken_unasked(weak: tuple[str, RestrictedHost]) -> None:
    body = (
        "from rollbook.sandbox import Sandbox\n"
        "try:\n    with Sandbox({}): return 'opened'\nexcept Exception as e: return str(e)"
    )
    refusal = weak[1].do(body.format("size=1"))
    assert "namespaces: the sandbox did not start: PermissionError: [Errno 1] unshare" in str(refusal)
    assert "allow_weaker=True" in str(refusal)
    assert "unshare" in str(weak[1].do(body.format("size=1, require='full'")))


def test_without_mounts_the_folder_can_be_read_and_not_written(weak: tuple[str, RestrictedHost]) -> None:
    code = "print(open('d/a').read())\nopen('b', 'w')"
    result = weak[1].run(code, files={"d/a": "given"})
    assert (result.status, result.stdout) == ("error", "given\n")
    assert result.error
    assert result.error.type == "PermissionError"


def test_without_namespaces_there_is_one_process(weak: tuple[str, RestrictedHost]) -> None:
    result = weak[1].run("1", limits=Limits(processes=2))
    assert "processes=2: without namespaces a run has 1 process" in result.stderr


def test_sessions_and_grading_work_without_namespaces(weak: tuple[str, RestrictedHost]) -> None:
    assert weak[1].do(
        "from rollbook.sandbox.grading import Grader\n"
        "with box.session() as s:\n"
        "    s.run_sync('x = 3')\n"
        "    lost = s.run_sync('while True: pass').state\n"
        "    again = s.run_sync('x = 4').restarted\n"
        "    four = s.run_sync('x').value\n"
        "grader = Grader(box)\n"
        "right = grader.function_sync('def f(x): return x * x', 'assert f(3) == 9', 'f').passed\n"
        "wrong = grader.function_sync('import os; os._exit(0)', 'assert f(3) == 9', 'f').reason\n"
        "long = 'x' * 300_000\n"
        "read = grader.inputs_sync('print(len(input()))', [(long, '300000'), ('ab', '2')]).passed\n"
        "return [lost, again, four, right, wrong, read]"
    ) == ["lost", True, "4", True, "exit", True]


def test_snapshots_need_namespaces(weak: tuple[str, RestrictedHost]) -> None:
    body = (
        "try:\n    with box.session(snapshot=True): return 'opened'\n"
        "except Exception as e: return f'{type(e).__name__}: {e}'"
    )
    assert weak[1].do(body) == "SandboxUnsupported: sessions that take snapshots need namespaces"


def test_without_namespaces_nothing_survives_the_kill_of_the_host(
    weak: tuple[str, RestrictedHost], tmp_path: Path
) -> None:
    with start_restricted_host(weak[0], Limits(seconds=60.0)) as there:
        folder = there.do("return box.run_sync('import os; print(os.getcwd(), end=\"\")').stdout")
        body = "import threading\nthreading.Thread(target=lambda: box.run_sync({!r}), daemon=True).start()"
        there.do(body.format("import ctypes; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\nwhile True: pass"))
        assert eventually(lambda: there.processes() >= 3, 20)
        family = [process.pid for process in find_members(there.pid)]
        assert Path(str(folder)).exists()
        os.kill(there.pid, signal.SIGKILL)
        assert eventually(lambda: not any(alive(pid) for pid in family if pid != there.pid), 10)
        assert eventually(lambda: not Path(str(folder)).parent.exists(), 10)


def test_root_without_privileges_is_an_ordinary_user_but_for_the_count_of_processes() -> None:
    if not can_enter(LESSER_ROOT):
        pytest.skip("only root can be less")
    with start_restricted_host(LESSER_ROOT, LIMITS) as there:
        result = there.run("open('a', 'w').write('x')\n6 * 7")
        assert (result.status, result.value) == ("ok", "42")
        assert {"pid", "mount", "network", "ipc", "user", "no process limit"} <= set(result.isolation)
        assert "its processes cannot be counted" in there.run("1", limits=Limits(processes=2)).stderr
        assert there.run(
            "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()"
        ).status in (
            "error",
            "memory",
            "timeout",
        )


def test_root_runs_no_code_as_root() -> None:
    """Where no guest can have a user of its own, and there are no namespaces."""
    if not can_enter(PRIVATE_PYTHON):
        pytest.skip("only root can put itself there")
    place = [sys.executable, "-m", "support.restricted_host", PRIVATE_PYTHON, "{}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(place, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert "ready" not in done.stdout
    assert "same-user: root does not run code as root" in done.stderr
    assert "readable for every user?" in done.stderr


def test_a_wall_that_does_not_stand_is_no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with Sandbox(LIMITS, size=1) as box:
        slot = box._zygote_factory.new_launcher()
        monkeypatch.setattr("rollbook.sandbox.launcher.PACKAGE_FOLDER", tmp_path)
        (tmp_path / "inner").mkdir()
        (tmp_path / "inner" / "proof.py").write_text("print('read /etc/passwd', end='')")
        with pytest.raises(SandboxError, match="the self-test could read /etc/passwd"):
            prove_isolation(slot, box._requirements)
        assert eventually(lambda: not slot.alive)


def test_the_proof_finds_what_is_open() -> None:
    """Outside of any sandbox nearly everything it tries works."""
    script = PACKAGE_FOLDER / "inner" / "proof.py"
    # Only what harms nobody when it works: the forked child ends at once, and exec is the last thing that is done.
    code = script.read_text().replace(
        'must_fail("start a program"', 'must_fail("skipped", lambda: os.stat("/nowhere")) #'
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=str(os.getppid()), capture_output=True, text=True, timeout=60
    )
    assert "read /etc/passwd" in done.stdout, done.stderr
    assert "open a network socket" in done.stdout
    assert "run without a filter" in done.stdout
    assert "see environment variables" in done.stdout
    Path("/tmp/rollbook-proof").unlink(missing_ok=True)
