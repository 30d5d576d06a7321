"""The switch for what was written against NeMo RL's own code environment: what its tests check, word for word."""

from pathlib import Path

import pytest

from support.codetool import Talk, code, code_environment

CASES = {
    "open('note', 'w').write('kept')\nopen('note').read()": "\n\n<result>\n'kept'\n</result>",
    "file = open('/etc/passwd')\nfile.read()": "\n\n<result>\n"
    "PermissionError('Access beyond the temporary working directory is blocked')\n</result>",
    "import math\nmath.gcd(12, 18)": "\n\n<result>\n6\n</result>",
    "import os": "<result>PermissionError('Importing system and network modules is blocked')</result>",
}


@pytest.fixture(scope="module")
def env():
    with code_environment(like_nemo_rl=True, terminate_on_evaluation=True) as environment:
        yield environment


def test_what_nemo_rl_checks_of_its_own_holds(env, tmp_path: Path):
    folders = [tmp_path / str(number) for number in range(len(CASES))]
    for folder in folders:
        folder.mkdir()
    logs = [[{"role": "user", "content": code(text)}] for text in CASES]
    back = env.step(logs, [{"context": {}, "working_dir": str(folder)} for folder in folders])
    assert [one["content"] for one in back.observations] == list(CASES.values())
    assert [bool(one) for one in back.terminateds] == [True, False, True, False]


def test_the_filter_is_there_in_every_turn_and_libraries_do_not_feel_it(env):
    talk = Talk(env)
    assert talk.run("import random, tempfile; random.seed(1)") == ""
    assert talk.run("def f():\n    import os\n    return os") == ""
    assert "Importing system and network modules is blocked" in talk.run("f()")
    assert talk.run("1 / 0") == "ZeroDivisionError('division by zero')"
    assert talk.run("import os.path as path") == "", "as there: only the very names are filtered"


def test_a_message_without_code_ends_nothing_and_code_that_dies_is_told_as_ever(env):
    back = env.step([[{"role": "assistant", "content": "Done."}]], [{}])
    assert not back.terminateds[0]
    talk = Talk(env)
    talk.run("x = 1")
    assert "error[crash]" in talk.run("import ctypes\nctypes.string_at(0)")
    assert talk.run("x") == "1"


def test_without_the_switch_the_sandbox_speaks_for_itself():
    with code_environment() as plain:
        assert Talk(plain).run("import os\nos.getpid() > 0") == "True"
