import errno
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec

import pytest

from rollbook.cli import main as command_line
from rollbook.cli.commands import COMMANDS
from rollbook.errors import EndpointDown, RollbookError, Shortfall, UsageError


def test_help_names_every_command(rollbook):
    done = rollbook("--help")
    assert done.returncode == 0
    for name, entry in COMMANDS.items():
        assert f"{name} " in done.stdout
        assert entry.help in done.stdout


def test_no_arguments_show_the_help(rollbook):
    assert rollbook().stdout == rollbook("--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(rollbook, name):
    done = rollbook(name, "--help")
    assert done.returncode == 0
    assert f"Usage: rollbook {name}" in done.stdout
    assert COMMANDS[name].help in done.stdout


HELP_IMPORTS = {"", "._exports", ".cli", ".cli.commands", ".cli.help_pages", ".cli.main", ".errors"}
"""All that `rollbook --help` loads of the package."""


def test_help_imports_no_command_and_nothing_heavy():
    heavy = {"rich", "msgspec", "numpy", "aiohttp", "asyncio"}
    assert {name for name in heavy if find_spec(name) is None} == set()
    code = (
        "import sys\n"
        "from rollbook.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = set(done.stderr.split())
    assert loaded & heavy == set()
    assert {name for name in loaded if name.split(".")[0] == "rollbook"} == {f"rollbook{name}" for name in HELP_IMPORTS}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rum"], "Did you mean 'run'"),
        (["run", "gsm8k", "--smaples", "3"], "--samples"),
        (["run"], "Missing argument 'ENVIRONMENT'"),
        (["--bogus"], "No such option: --bogus"),
        (["local", "pul"], "Did you mean 'pull'"),
        (["run", "gsm8k", "-k", "0"], "'--samples'"),
        (["run", "gsm8k", "-k", "many"], "'--samples'"),
        (["run", "gsm8k", "-n", "-1"], "'--limit'"),
        (["run", "gsm8k", "-c", "0"], "-c 0: not a whole number from 1, nor auto"),
        (["run", "gsm8k", "--max-failures", "lots"], "--max-failures lots"),
        (["run", "gsm8k", "--temperature", "-1"], "'--temperature'"),
        (["run", "gsm8k", "--outage", "inf"], "--outage inf: not a finite number"),
        (["run", "gsm8k", "--workers", "0"], "'--workers'"),
        (["extend", "somewhere"], "'--samples'"),
        (["status", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(rollbook, arguments, words):
    done = rollbook(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("rollbook: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("no such thing\nat all"), 2),
        (Shortfall(requested=2, scored=1, failed={"verifier_error": 1}), 3),
        (EndpointDown("nobody answers"), 75),
        (RollbookError("what else"), 1),
    ],
)
def test_an_error_of_ours_is_one_line_with_its_own_exit_code(monkeypatch, capsys, error, code):
    def raises(run, json=False):
        raise error

    monkeypatch.setattr(import_module("rollbook.cli.job_commands"), "status_command", _typed(raises))
    with pytest.raises(SystemExit) as left:
        command_line.main(["status", "x"])
    assert left.value.code == code
    assert capsys.readouterr().err == f"rollbook: {' '.join(str(error).split(chr(10)))}\n"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC])
def test_a_read_or_write_that_fails_is_one_line_although_it_names_no_file(monkeypatch, capsys, number):
    def raises(run, json=False):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(import_module("rollbook.cli.job_commands"), "status_command", _typed(raises))
    with pytest.raises(SystemExit) as left:
        command_line.main(["status", "x"])
    error = capsys.readouterr().err
    assert left.value.code == 1
    assert error.startswith(f"rollbook: a file cannot be read or written ({os.strerror(number)}): ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("bug", [KeyError("ours"), OSError(errno.EBADF, "ours")])
def test_a_bug_is_a_traceback(monkeypatch, bug):
    def raises(run, json=False):
        raise bug

    monkeypatch.setattr(import_module("rollbook.cli.job_commands"), "status_command", _typed(raises))
    with pytest.raises(type(bug), match="ours"):
        command_line.main(["status", "x"])


LOUD = """
import rollbook.cli.machine_commands as machine_commands
from rollbook.cli.main import main
from rollbook.errors import Shortfall
def command() -> None:
    print("x" * {size})
    {then}
machine_commands.doctor_command = command
main(["doctor"])
"""


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("then", ["pass", "raise Shortfall(requested=2, scored=1, failed={})"])
def test_a_full_disk_behind_standard_output_is_one_line(size, then):
    with open("/dev/full", "w") as full:
        code = LOUD.format(size=size, then=then)
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "rollbook: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_reader_who_has_left_is_not_reported(size):
    child = [sys.executable, "-c", LOUD.format(size=size, then="pass")]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(child, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_exits_75(tmp_path):
    code = (
        "import signal, time, rollbook.cli.machine_commands as machine_commands\n"
        "from rollbook.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where a shell runs the tests behind it\n"
        "def command() -> None:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "machine_commands.doctor_command = command\n"
        "main(['doctor'])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.1)
    os.kill(child.pid, signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert (child.returncode, error) == (75, "rollbook: interrupted\n")


def _typed(function):
    function.__annotations__ = {"run": str, "json": bool, "return": None}
    return function
