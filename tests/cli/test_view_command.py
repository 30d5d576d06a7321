import http.client
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from support.quiz import ANSWERS


@pytest.fixture
def viewer(made, tmp_path):
    """`rollbook view` of a run, until the test ends."""
    made("quiz")
    command = [sys.executable, "-c", "from rollbook.cli.main import main; main()", "view", "quiz", "--no-browser"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.communicate()


def test_the_address_opens_the_page_and_an_interrupt_ends_it(viewer):
    address = urlsplit(viewer.stdout.readline().strip())
    assert address.hostname == "127.0.0.1"
    connection = http.client.HTTPConnection(address.netloc, timeout=30)
    connection.request("GET", f"/?{address.query}")
    assert b"<title>Rollbook" in connection.getresponse().read()
    connection.close()
    viewer.send_signal(signal.SIGINT)
    assert viewer.wait(30) == 0
    assert "Traceback" not in viewer.stderr.read()


def test_a_run_is_exported(made, rollbook, tmp_path):
    made("quiz")
    done = rollbook("view", "quiz", "--out", "quiz.html")
    assert (done.returncode, "12 of 12 finished rollouts" in done.stdout) == (0, True)
    assert (tmp_path / "quiz.html").read_text().startswith("<!doctype html>")


def test_without_a_path_runs_is_shown(made, rollbook, tmp_path):
    missing = rollbook("view", "--out", "quiz.html")
    assert (missing.returncode, "runs/, which is shown by default" in missing.stderr) == (2, True)
    made("quiz", ANSWERS, "Quiz")
    (tmp_path / "quiz").rename(tmp_path / "runs")
    assert "12 of 12 finished rollouts" in rollbook("view", "--out", "quiz.html").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing"], "is not a folder"),
        (["."], "holds no run"),
        (["quiz", "--out", "quiz.txt"], "must be .html"),
        (["quiz", "--tokenizer", "nothing"], "No such file"),
        (["quiz", "--port", "99999"], "65535"),
    ],
)
def test_a_mistake_is_one_line(made, rollbook, arguments, words):
    if arguments[0] == "quiz":
        made("quiz")
    done = rollbook("view", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_runs_the_default_is_explained(commands):
    done = commands.run("view", "--no-browser")
    assert done.code == 2
    assert "runs/, which is shown by default, does not exist here yet" in done.complaint
    assert "rollbook run" in done.complaint
