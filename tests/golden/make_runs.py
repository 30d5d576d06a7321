"""Create the runs in tests/golden/runs with the version of Rollbook that runs this script.

    python tests/golden/make_runs.py NAME ...

The stored runs were created by revision 32db08b (version 0.1.0). They prove that later versions can still use them, so
use this script only to add a run, never to replace one. Each folder holds the inputs (a script of answers, rows,
sources) and, in `run`, the run directory. Four are unfinished: gsm8k and blend have a rollout whose model was too slow,
reasoning_gym was interrupted, and the server of http was killed during the run.

The stored files contain no host name, boot id or absolute path: commands run in their folder under the host name `host`
(this needs root), and `make` replaces the boot id in workers/ and the path of the script in rounds/.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

RUNS = Path(__file__).resolve().parent / "runs"
PORT = 19473
"""The port in http/run/run.json, which names the address of its server."""

BOOT = "00000000-0000-4000-8000-000000000000"
CHAIN_SUM = "reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1"
ROLLBOOK = ["unshare", "--uts", "sh", "-c", 'hostname host && exec "$@"', "sh", sys.executable, "-m", "rollbook"]


def run(name: str, env: str, *words: str, code: int = 0) -> None:
    """Run to the end, with two samples of every task."""
    process = start(name, "run", env, "-m", "scripted:script.jsonl", "-k", "2", "-o", "run", *words)
    assert process.wait(120) == code, (name, process.returncode)


def start(name: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*ROLLBOOK, *words], cwd=RUNS / name)


@contextmanager
def after(name: str, lines: int, env: str, *words: str, code: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run one rollout at a time; the context is entered when `lines` rollouts are scored."""
    process = start(name, "run", env, "-m", "scripted:script.jsonl", "-k", "2", "-c", "1", "-o", "run", *words)
    while sum(path.read_bytes().count(b"\n") for path in (RUNS / name / "run").glob("journals/*.1.jsonl")) < lines:
        assert process.poll() is None, (name, process.returncode)
        time.sleep(0.02)
    yield process
    assert process.wait(120) == code, (name, process.returncode)


def gsm8k() -> None:
    """Five of six are scored; one answer to gsm8k-0002 was late in all four attempts (model_timeout, infra)."""
    run("gsm8k", "gsm8k", "-n", "3", "--call-timeout", "0.1", code=3)


def code() -> None:
    """All four are scored."""
    run("code", "code?reward=fraction", "--data", "rows.jsonl")


def reasoning_gym() -> None:
    """Three of six are scored; then SIGINT ends the run (exit 75)."""
    with after("reasoning_gym", 2, CHAIN_SUM, "-n", "3", code=75) as process:
        process.send_signal(signal.SIGINT)


def humaneval() -> None:
    """All six are scored."""
    run("humaneval", "humaneval", "-n", "3")


def http() -> None:
    """Three of six are scored; then the server is killed and the others fail (environment_error, infra)."""
    server = start("http", "serve", "words.py:Words", "--port", str(PORT), "--data-dir", ".")
    try:
        _wait_for(lambda: socket.create_connection(("127.0.0.1", PORT), 1).close())
        with after("http", 3, f"http://127.0.0.1:{PORT}", "--data", "Words.jsonl", code=3):
            server.kill()
            server.wait(30)
    finally:
        server.kill()


def blend() -> None:
    """A user's file with one sample, a built-in with two, one of which was late (model_timeout, infra)."""
    run("blend", "blend.yaml", "--call-timeout", "0.1", code=3)


def own() -> None:
    """All six are scored, by two user files that import the documented names from inside packages."""
    run("own", "functions.py:Functions", "--data", "rows.jsonl")


MAKERS: dict[str, Callable[[], None]] = {
    made.__name__: made for made in (gsm8k, code, reasoning_gym, humaneval, http, blend, own)
}


def _wait_for(reach: Callable[[], None], within_s: float = 30.0) -> None:
    until = time.monotonic() + within_s
    while True:
        try:
            return reach()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def make(name: str) -> None:
    """Make one, and take out of it what belongs to this machine."""
    made = RUNS / name / "run"
    if made.exists():
        sys.exit(f"{made} exists: it shows what an earlier version wrote, so it is not replaced")
    MAKERS[name]()
    for path in (made / "workers").glob("*.json"):
        text = path.read_text()
        path.write_text(text.replace(json.loads(text)["boot"], BOOT))
    for path in (made / "rounds").glob("*.json"):
        path.write_text(path.read_text().replace(f"scripted:{RUNS / name}/", "scripted:"))
    shutil.rmtree(made / "logs", ignore_errors=True)


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    if not sys.argv[1:]:
        sys.exit(f"name the runs to create: {', '.join(MAKERS)}")
    for chosen in sys.argv[1:]:
        make(chosen)
