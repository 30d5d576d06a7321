"""`rollbook sandbox`: a file from the shell, and a server for other programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from rollbook.cli.machine_commands import TOKEN_VARIABLE, parse_megabytes, serve
from rollbook.errors import UsageError
from support.alive import eventually
from support.commands import Process


def test_a_file_runs_behind_the_walls(rollbook, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("print(input()); 6 * 7")
    (tmp_path / "words").write_text("hello\n")
    done = rollbook("sandbox", "run", "good.py", "--stdin", "words")
    assert (done.returncode, done.stdout) == (0, "hello\n42\n")
    assert done.stderr.startswith("ok: ")
    assert "seccomp" in done.stderr


def test_what_is_piped_in_can_be_the_program_or_what_it_reads(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("print(input() * 2)")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "rollbook", "sandbox", "run", *words]
        return subprocess.run(argv, input="ab\n", cwd=tmp_path, text=True, capture_output=True)

    done = run("echo.py", "--stdin", "-")
    assert (done.returncode, done.stdout) == (0, "abab\n"), done.stderr
    both = run("-", "--stdin", "-")
    assert (both.returncode, both.stderr.count("\n")) == (2, 1)


def test_only_success_exits_0_and_json_has_everything(rollbook, tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text("print('begun', flush=True)\nwhile True: pass")
    done = rollbook("sandbox", "run", "loop.py", "--seconds", "0.2", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["status"], said["stdout"]) == (3, "timeout", "begun\n")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere.py"], "nowhere.py: No such file or directory"),
        (["good.py", "--memory", "lots"], "--memory lots: give a size"),
        (["good.py", "--seconds", "0"], "limit seconds=0.0: give a positive"),
        (["good.py", "--stdin", "nowhere"], "nowhere: No such file or directory"),
    ],
)
def test_a_mistake_is_one_line(rollbook, tmp_path: Path, words: list[str], complaint: str) -> None:
    (tmp_path / "good.py").write_text("1")
    done = rollbook("sandbox", "run", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"rollbook: {complaint}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can put itself in such a place")
def test_weaker_walls_are_taken_only_where_that_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("6 * 7")
    inside = (
        "import sys; from support.restricted_host import become; become('container root'); import rollbook.__main__"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    for words, code, out in ([], 2, ""), (["--allow-weaker"], 0, "42\n"):
        start = f"{inside}; sys.argv = ['rollbook', 'sandbox', 'run', 'good.py', *{words}]; rollbook.__main__.main()"
        done = Process([sys.executable, "-c", start], tmp_path, environment).wait(60)
        assert (done.code != 0, done.stdout) == (code != 0, out), done.stderr
        assert ("no namespaces" in done.stderr) == bool(words)
        assert ("--allow-weaker" in done.stderr) == (not words)


@pytest.mark.parametrize(("words", "given"), [({}, None), ({"allow_weaker": True}, True)])
def test_a_server_takes_weaker_isolation_where_allowed(monkeypatch, words: dict[str, bool], given: bool | None) -> None:
    asked: dict[str, object] = {}

    def opened(*_: object, **options: object) -> None:
        asked.update(options)
        raise UsageError("seen")

    monkeypatch.setattr("rollbook.sandbox.Sandbox", opened)
    with pytest.raises(UsageError, match="seen"):
        serve(**words)
    assert asked["allow_weaker"] is given


@pytest.mark.parametrize(("text", "size"), [("256MB", 256), ("9", 9), ("1.5 GiB", 1536), ("2048k", 2), ("1g", 1024)])
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_megabytes(text) == size


@pytest.mark.parametrize("text", ["", "-1", "12 bananas", "0", "10kb", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory"):
        parse_megabytes(text)


@pytest.mark.parametrize(("ending", "given"), [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_a_server_says_where_it_is_and_ends_on_a_signal(tmp_path: Path, ending: signal.Signals, given: bool) -> None:
    words = [sys.executable, "-m", "rollbook", "sandbox", "serve"]
    server = Process(words, tmp_path, {**os.environ, TOKEN_VARIABLE: "abc"} if given else dict(os.environ))
    try:
        assert eventually(lambda: server.stdout.endswith("\n"), 30), server.stderr
        assert "abc" not in server.stdout, "whoever gave a token knows it, and logs are kept"
        address = server.stdout.strip() + ("/abc" if given else "")
        body = json.dumps({"code": "6 * 7"}).encode()
        opened = build_opener(ProxyHandler({})).open(Request(f"{address}/run", body), timeout=20)
        with opened as response:
            assert json.load(response)["value"] == "42"
        server.signal(ending)
        assert server.wait(20).code == 0, server.stderr
    finally:
        server.kill()
