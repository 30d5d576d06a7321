"""Classes of scripts, notebooks and functions: carried as source text, never by running their place again."""

import re
import subprocess
import sys
import textwrap
import threading

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

import rollbook
from rollbook import Environment, Task, UsageError
from rollbook.environments import load_instance
from rollbook.environments.captured_source import capture_source

SUMS = """
    class Sums(Environment):
        def tasks(self):
            for i in range(COUNT):
                yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(double(i)))

        def verify(self, task, rollout):
            return NUMBER.findall(rollout.text)[-1:] == [task.answer]
"""
PRELUDE = """
    import re
    import rollbook
    from functools import cache
    from rollbook import Environment, Task

    COUNT = 4
    NUMBER = re.compile(r"-?[0-9]+")

    @cache
    def double(i):
        return 2 * i
"""
RUN = 'result = rollbook.run(Sums, "scripted:answers.jsonl", samples=2, out="runs/sums")'
LIMIT = 4
WORDS = re.compile("[a-z]+")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.jsonl").write_text('{"answer": "It is 4."}\n')
    return tmp_path


def _join(*parts):
    return "\n".join(textwrap.dedent(part) for part in parts)


def _run_python(folder, *arguments, **options):
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, **options)


def _rollbook(folder, *arguments):
    return _run_python(folder, "-m", "rollbook", *arguments)


def test_a_script_without_a_main_guard_runs_once_and_its_run_is_continued_later(folder):
    show = 'print("the script runs"); ' + RUN + "; print(result.report.scored, result.report.overall.mean)"
    (folder / "script.py").write_text(_join(PRELUDE, SUMS, show))
    done = _run_python(folder, "script.py")
    assert (done.stdout.splitlines(), done.returncode) == (["the script runs", "8 0.25"], 0), done.stderr
    (folder / "script.py").unlink()
    more = _rollbook(folder, "extend", "runs/sums", "-k", "3")
    assert "12/12 scored" in more.stdout, more.stderr


def test_a_script_may_use_modules_and_data_beside_it(folder):
    (folder / "answers.py").write_text("def read(path):\n    return open(path).read()\n")
    (folder / "table.txt").write_text("4")
    script = """
        import os
        import rollbook
        from answers import read
        from rollbook import Environment, Task

        class Table(Environment):
            files = ("table.txt",)

            def tasks(self):
                yield Task(id="t", prompt="?")

            def verify(self, task, rollout):
                return read(os.path.join(os.path.dirname(__file__), "table.txt")) in rollout.text

        print(rollbook.run(Table, "scripted:answers.jsonl", out="runs/table").report.overall.mean)
    """
    (folder / "script.py").write_text(_join(script))
    done = _run_python(folder, "script.py")
    assert done.stdout == "1.0\n", done.stderr
    assert {path.name for path in (folder / "runs/table/source").iterdir()} == {"answers.py", "table.txt", "script.py"}


def _play_notebook(folder, *cells):
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(_join(cell)) for cell in cells]
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    return client.execute()


def _printed(notebook):
    return "".join(out.text for out in notebook.cells[-1].outputs if out.get("name") == "stdout")


SHOWN = "print(result.report.scored, result.report.overall.mean)"


def test_a_class_of_a_notebook_cell_runs_with_a_plain_verify_and_is_continued_from_elsewhere(folder):
    played = _play_notebook(folder, PRELUDE, SUMS, RUN, SHOWN)
    assert _printed(played) == "8 0.25\n"
    more = _rollbook(folder, "extend", "runs/sums", "-k", "3")
    assert "12/12 scored" in more.stdout, more.stderr


def test_a_cell_that_was_changed_and_run_again_counts(folder):
    wrong = SUMS.replace("== [task.answer]", '== ["no"]')
    played = _play_notebook(folder, PRELUDE, wrong, SUMS, RUN, SHOWN)
    assert _printed(played) == "8 0.25\n"


def test_a_notebook_with_a_live_object_gets_one_line_that_names_it(folder):
    live = SUMS.replace("return NUMBER", "client.send(1); return NUMBER")
    with pytest.raises(CellExecutionError) as refused:
        _play_notebook(folder, PRELUDE, "import socket; client = socket.socket()", live, RUN)
    assert "Sums uses client, an object of type socket" in str(refused.value)
    assert "run file.py:Sums" in str(refused.value)


def test_a_verifier_of_a_notebook_that_hangs_is_killed(folder):
    hanging = SUMS.replace("return NUMBER", "\n            while True: pass\n            return NUMBER")
    limits = 'limits=rollbook.core.Limits(verify_s=1.0), attempts={"verifier_timeout": 1}, allow_shortfall=True)'
    played = _play_notebook(
        folder,
        PRELUDE + "\n    import rollbook.core",
        hanging,
        RUN[:-1] + ", limit=1, " + limits,
        "print(result.report.failed)",
    )
    assert _printed(played) == "{'verifier_timeout': 2}\n"


def test_a_class_of_a_function_takes_plain_values_of_the_function_with_it():
    most, words = 3, ("a", "b")

    class Local(Environment):
        def tasks(self):
            return [Task(id=word, prompt=word) for word in words]

        def verify(self, task, rollout):
            return len(WORDS.findall(rollout.text)) <= min(most, LIMIT)

    text = capture_source(Local)
    namespace = {"__name__": "loaded"}
    exec(text, namespace)
    assert [task.id for task in namespace["Local"]().tasks()] == ["a", "b"]
    assert (namespace["most"], namespace["LIMIT"], namespace["WORDS"].pattern) == (3, 4, "[a-z]+")
    assert rollbook.score(Local, "a", "one two") == rollbook.Score(1.0)


def test_a_class_of_a_function_with_a_live_object_is_refused_by_name():
    lock = threading.Lock()

    class Local(Environment):
        def tasks(self):
            return []

        def verify(self, task, rollout):
            return bool(lock)

    with pytest.raises(UsageError, match="Local uses lock, an object of type lock"):
        load_instance(Local)


def test_an_async_class_with_a_live_object_runs_in_this_process():
    seen = [object()]

    class Local(Environment):
        def tasks(self):
            return []

        async def verify(self, task, rollout):
            return bool(seen)

    assert load_instance(Local()).text is None


def test_a_value_that_is_too_large_to_write_is_refused():
    large = "x" * 2_000_000

    class Local(Environment):
        def tasks(self):
            return []

        def verify(self, task, rollout):
            return large in rollout.text

    with pytest.raises(UsageError, match=r"Local uses large, a value of 2,000,002 characters"):
        load_instance(Local)


def test_a_class_without_source_text_is_refused(folder):
    typed = _join(PRELUDE, SUMS, RUN)
    done = _run_python(folder, "-", input=typed)
    assert done.returncode == 1
    assert "the source text of Sums is not kept by this prompt: put the class into a file" in done.stderr


def test_what_is_no_environment_is_refused():
    with pytest.raises(UsageError, match=r"is no environment: give its name, file.py:Class, or an Environment"):
        load_instance(int)
