import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import Commands, Process
from support.quiz import ANSWERS, write_answers, write_quiz

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def rollbook(tmp_path, monkeypatch):
    """Run `rollbook ARGUMENTS` as people do: in a process of its own, in an empty folder."""
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setenv("COLUMNS", "110")

    def run(*arguments):
        done = Process([*map(str, arguments)], tmp_path, dict(os.environ), forked=True).wait(60)
        return subprocess.CompletedProcess(arguments, done.code, done.stdout, done.stderr)

    return run


@pytest.fixture
def commands(tmp_path):
    """`rollbook ARGUMENTS` as processes in an empty folder, also ones that go on; nothing of them outlives the test."""
    started = Commands(tmp_path)
    yield started
    started.close()


@pytest.fixture
def made(rollbook, tmp_path):
    """Make a run of the quiz with these answers."""
    quiz = write_quiz(tmp_path)

    def make(out, answers=ANSWERS, env="Quiz", *options):
        samples = max(map(len, answers.values()))
        script = write_answers(tmp_path, f"{out}.script.jsonl", answers)
        return rollbook("run", f"{quiz}:{env}", "-m", script, "-k", samples, "-o", out, *options)

    return make


@pytest.fixture
def endpoint():
    """The URL of a real endpoint that can add: the mock of the benchmarks, in a process of its own."""
    command = [sys.executable, str(SOURCE.parent / "benchmarks" / "mock.py"), "--latency-ms", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        yield child.stdout.readline().strip()
        child.terminate()


@pytest.fixture
def sums(tmp_path):
    """An environment file in the folder the command line runs in; `Picky` cannot verify its first task."""
    (tmp_path / "sums.py").write_text(ENVIRONMENTS)
    return "sums.py:Sums"


ENVIRONMENTS = """
from rollbook import Environment, Task

class Sums(Environment):
    def tasks(self):
        for i in range(5):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return rollout.text.endswith(f"#### {task.answer}")

class Picky(Sums):
    def verify(self, task, rollout):
        if task.id == "sum-0":
            raise RuntimeError("cannot say")
        return super().verify(task, rollout)
"""
