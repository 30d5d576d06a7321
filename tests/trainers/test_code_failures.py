"""Every mistake of code is an observation in one form; the environment and the other samples go on."""

import os
import re
import signal
import threading
import time

import pytest

from rollbook.trainers.nemo_rl.code_samples import MIB
from support.alive import alive, eventually
from support.codetool import Talk, code, code_environment, log

FORM = re.compile(r"error\[[a-z]+\]: \S")
ROLLED_BACK = "session: rolled back; variables are as they were before this code, files are not"
LOST = "session: lost; the next code begins afresh, without what earlier code made"
AFRESH = "session: began afresh; what earlier turns made is gone"


@pytest.fixture(scope="module")
def env():
    with code_environment(default_timeout_seconds=0.5, default_memory_limit_bytes=128 * MIB) as environment:
        yield environment


@pytest.fixture(scope="module")
def plain():
    with code_environment(default_timeout_seconds=0.5, snapshots=False) as environment:
        yield environment


KEPT = {
    "x = = 1": ("syntax", "invalid syntax"),
    "if 1:\n  x\n y": ("syntax", "unindent"),
    "def f(:": ("syntax", "invalid syntax"),
    "1 / 0": ("runtime", "line 1: ZeroDivisionError: division by zero"),
    "def f():\n    return nope\nf()": ("runtime", "line 2: NameError: name 'nope' is not defined"),
    "raise KeyboardInterrupt": ("runtime", "KeyboardInterrupt"),
    "assert 1 == 2, 'no </result>'": ("runtime", "AssertionError: no &lt;/result>"),
    "def f(): f()\nf()": ("runtime", "RecursionError"),
    "import sys\nsys.exit(3)": ("exit", "exited with 3"),
    "import sys\nsys.exit(0)": ("exit", "exited with 0"),
    "exit()": ("exit", "exited with 0"),
    "open('/etc/passwd')": ("runtime", "Error"),
    "import socket\nsocket.socket()": ("runtime", "PermissionError"),
    "input()": ("runtime", "EOFError"),
    "class E(Exception):\n    def __str__(self): 1 / 0\nraise E": ("runtime", "cannot be shown"),
}
FATAL = {
    "while True: pass": ("timeout", "more than 0.5 s of CPU time"),
    "import time\ntime.sleep(60)": ("timeout", "ran longer than 2 s"),
    "hog = bytearray(10**9)": ("memory", "limit of 128 MiB"),
    "import os\nos._exit(0)": ("exit", "exited with 0 in the middle"),
    "import ctypes\nctypes.string_at(0)": ("crash", "signal"),
    "while True: print('x' * 10**6)": ("output", "without end"),
}


@pytest.mark.parametrize("text", KEPT)
def test_code_that_fails_is_told_so_and_keeps_its_session(env, text):
    talk = Talk(env)
    talk.run("kept = 1")
    output = talk.run(text)
    kind, message = KEPT[text]
    assert f"error[{kind}]: " in output
    assert message in output
    assert FORM.search(output)
    assert "session:" not in output
    assert (talk.metadata["last_status"], talk.run("kept")) == (kind, "1")


@pytest.mark.parametrize("text", FATAL)
def test_code_that_dies_is_rolled_back(env, text):
    talk = Talk(env, timeout_seconds=5 if "print" in text else 0.5)
    talk.run("kept = 1")
    output = talk.run(f"kept = 2\n{text}")
    kind, message = FATAL[text]
    assert f"error[{kind}]: " in output
    assert message in output
    assert output.endswith(ROLLED_BACK)
    assert (talk.metadata["last_status"], talk.run("kept")) == (kind, "1")


def test_without_snapshots_the_session_is_lost_and_begins_afresh(plain):
    talk = Talk(plain)
    talk.run("kept = 1")
    assert talk.run("while True: pass").endswith(LOST)
    assert talk.run("'kept' in globals()") == f"{AFRESH}\nFalse"
    assert talk.run("'kept' in globals()") == "False"


def test_partial_output_survives_a_timeout(env):
    output = Talk(env).run("print('so far', flush=True)\nwhile True: pass")
    assert output.startswith("so far\nerror[timeout]: ")


def test_one_bad_sample_harms_no_other(env):
    bad = [*FATAL, *KEPT]
    batch = [log(code(text)) for text in bad] + [log(code(f"{n} + 1")) for n in range(8)]
    back = env.step(batch, [{} for _ in batch])
    output = [one["content"] for one in back.observations]
    assert all(FORM.search(text) for text in output[: len(bad)])
    assert output[len(bad) :] == [f"<result>{n + 1}</result>" for n in range(8)]


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1, 0, "5", True, 10**400, [1]], ids=lambda v: repr(v)[:9]
)
@pytest.mark.parametrize("name", ["timeout_seconds", "memory_limit_bytes"])
def test_a_bad_limit_is_the_error_of_that_sample_alone(env, name, value):
    back = env.step([log(code("1")), log(code("2"))], [{name: value}, {}])
    first, second = (one["content"] for one in back.observations)
    assert first.startswith(f"<result>error[refused]: metadata {name}=")
    assert second == "<result>2</result>"
    assert back.metadata[0]["last_status"] == "refused"


def test_metadata_that_are_none_at_all_are_given_back_as_they_were(env):
    back = env.step([log(code("1")), [], log(code("2"))], ["text", {"a": 1}, {}])
    output = [one["content"] for one in back.observations]
    assert "error[refused]: metadata is a str" in output[0]
    assert "error[refused]: the message log" in output[1]
    assert output[2] == "<result>2</result>"
    assert back.metadata[:2] == ["text", {"a": 1, "last_status": "refused"}]


def test_a_samples_limits_come_before_the_environments(env):
    burn = "import time\nend = time.process_time() + {}\nwhile time.process_time() < end: pass\n'done'"
    assert "error[timeout]" in Talk(env).run(burn.format(0.8))
    assert Talk(env, timeout_seconds=5).run(burn.format(0.8)) == "'done'"
    assert "error[timeout]" in Talk(env, timeout_seconds=0.1).run(burn.format(0.3))
    much = Talk(env, memory_limit_bytes=512 * MIB, timeout_seconds=10)
    assert much.run("len(bytearray(300_000_000))") == "300000000"
    assert "limit of 64 MiB" in Talk(env, memory_limit_bytes=64 * MIB).run("len(bytearray(150_000_000))")


def test_time_may_change_from_turn_to_turn_and_memory_may_not(env):
    talk = Talk(env, timeout_seconds=0.1)
    talk.run("x = 1")
    talk.metadata["timeout_seconds"] = 3
    assert talk.run("sum(range(10**7)) > 0") == "True"
    talk.metadata["memory_limit_bytes"] = 64 * MIB
    assert "the session has 128 MiB, and its limit cannot change" in talk.run("x")
    del talk.metadata["memory_limit_bytes"]
    assert talk.run("x") == "1"


def test_starting_up_never_counts(env):
    assert Talk(env, timeout_seconds=0.05).run("1 + 1") == "2"


def test_a_killed_zygote_is_told_and_the_environment_goes_on():
    with code_environment(default_timeout_seconds=5) as env:
        talk, sleeper = Talk(env), Talk(env)
        talk.run("x = 1")
        sleeper.run("x = 2")
        zygote = env._workers._workers[0]._sandbox._session_pool.get_launcher()._provider._child.pid
        os.kill(zygote, signal.SIGKILL)
        assert eventually(lambda: not alive(zygote), 5)
        output = talk.run("x")
        assert output.startswith("error[sandbox]: ")
        assert output.endswith(LOST)
        assert talk.metadata["last_status"] == "sandbox"
        assert talk.run("'x' in globals()") == f"{AFRESH}\nFalse"
        assert Talk(env).run("1") == "1"
        assert sleeper.run("x").endswith(LOST)
        assert sleeper.run("1") == f"{AFRESH}\n1"


def test_a_zygote_killed_in_the_middle_of_a_turn_is_told_too():
    with code_environment(default_timeout_seconds=30) as env:
        talk = Talk(env)
        talk.run("x = 1")
        zygote = env._workers._workers[0]._sandbox._session_pool.get_launcher()._provider._child.pid
        timer = threading.Timer(0.3, os.kill, (zygote, signal.SIGKILL))
        timer.start()
        started = time.monotonic()
        output = talk.run("while True: pass")
        assert time.monotonic() - started < 10
        assert output.startswith("error[sandbox]: ")
        assert output.endswith(LOST)
        assert [talk.run("'x' in globals()") for _ in range(2)] == [f"{AFRESH}\nFalse", "False"]


def test_where_no_sandbox_can_be_had_every_sample_is_told_and_nothing_runs(env):
    with code_environment(packages=["no_such_package_anywhere"]) as broken:
        back = broken.step([log(code("1")), log(code("2")), log("words")], [{}, {}, {}])
        output = [one["content"] for one in back.observations]
        reason = "error[sandbox]: the packages no_such_package_anywhere cannot be loaded"
        assert [reason in one for one in output] == [True, True, False]
        assert [one["last_status"] for one in back.metadata] == ["sandbox", "sandbox", "no_code"]


def test_a_batch_is_over_by_its_deadline_and_its_late_sessions_are_given_up():
    with code_environment(batch_timeout_seconds=2, turns_at_once=1, default_timeout_seconds=20) as env:
        talk, other = Talk(env), Talk(env)
        talk.run("x = 1")
        other.run("x = 2")
        started = time.monotonic()
        # 7 s: not a multiple of the 2 s, or what is asked below begins at the moment of its own deadline
        back = env.step([log(code("import time\ntime.sleep(7)")), log(code("x = 3"))], [talk.metadata, other.metadata])
        assert time.monotonic() - started < 5.5
        assert all("error[deadline]" in one["content"] for one in back.observations)
        talk.metadata, other.metadata = back.metadata
        assert eventually(lambda: other.run("x") == "2", 10), "it had never begun: nothing of it happened"
        assert talk.run("'x' in globals()") == f"{AFRESH}\nFalse"


def test_hanging_samples_cost_no_more_than_their_limit(env):
    batch = [log(code("import time\ntime.sleep(60)")) for _ in range(4)] + [log(code("1"))]
    started = time.monotonic()
    back = env.step(batch, [{"timeout_seconds": 0.2}] * 4 + [{}])
    assert time.monotonic() - started < 8
    assert all("ran longer than 1 s" in one["content"] for one in back.observations[:4])
    assert back.observations[4]["content"] == "<result>1</result>"
