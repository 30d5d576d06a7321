"""Classes of scripts, notebooks and functions: carried as source text, never by running their place again."""

import ast
import json
import os
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
from rollbook.environments.rebuilt_class import build_module, compare_names

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
    assert "Python does not keep the source text of Sums (from -c, standard input, a plain prompt" in done.stderr
    assert "put the class into a file" in done.stderr


def test_what_is_no_environment_is_refused():
    with pytest.raises(UsageError, match=r"is not an environment: give its name, file.py:Class, or an Environment"):
        load_instance(int)


CASES_START = """
import enum, functools, json, logging, os, sys, types
from typing import Generic, TypeVar
from rollbook import Environment
from rollbook.environments import load_instance

OUTCOMES = {}

class Base(Environment):
    def tasks(self):
        return []

def case(name, given):
    try:
        loaded = load_instance(given)
    except Exception as error:
        OUTCOMES[name] = f"{type(error).__name__}: {error}"
        return
    module = types.ModuleType("carried")
    exec(loaded.text, vars(module))
    carried = vars(module)[loaded.spec.target.partition(":")[2]](**loaded.spec.args)
    OUTCOMES[name] = [loaded.instance.verify(None, None), carried.verify(None, None)]
"""


def _play_cases(folder, text, env=None):
    """Run a script that carries classes, and return live and carried reward, or the refusal, by case."""
    (folder / "cases.py").write_text(_join(CASES_START, text, "print(json.dumps(OUTCOMES))"))
    done = _run_python(folder, "cases.py", env=env)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert not any("\n" in each for each in outcomes.values() if isinstance(each, str))
    return outcomes


def test_plain_values_that_changed_since_the_class_was_defined_are_carried(folder):
    text = """
        class Attribute(Base):
            weight = 1
            seen = []
            def verify(self, task, rollout): return self.weight + len(self.seen)
        Attribute.weight = 5
        Attribute.seen.append(1)
        case("attribute", Attribute)

        limit = 0.5
        class Late(Base):
            weight = limit
            def verify(self, task, rollout, more=limit): return self.weight + more
        limit = 0.9
        case("late", Late)

        made = []
        for number in (1, 2):
            class Looped(Base):
                weight = number
                def verify(self, task, rollout): return self.weight
            made.append(Looped)
        case("first", made[0])
        case("second", made[1])
    """
    assert _play_cases(folder, text) == {"attribute": [6, 6], "late": [1.0, 1.0], "first": [1, 1], "second": [2, 2]}


def test_a_class_that_would_score_differently_is_refused_with_the_name_that_differs(folder):
    text = """
        class Patched(Base):
            def verify(self, task, rollout): return 1.0
        def verify(self, task, rollout): return 0.5
        Patched.verify = verify
        case("method", Patched)

        class Deleted(Base):
            bonus = 1
            def verify(self, task, rollout): return getattr(self, "bonus", 0)
        del Deleted.bonus
        case("deleted", Deleted)

        class Helper:
            def rate(self): return 1
        class Uses(Base):
            def verify(self, task, rollout): return Helper().rate()
        Helper.rate = lambda self: 2
        case("helper", Uses)

        class Instance(Base):
            def __init__(self, size=1): self.size = size; self.token = object(); self.salt = os.urandom(8).hex()
            def verify(self, task, rollout): return self.size
        case("as made", Instance(3))
        changed = Instance(3)
        changed.size = 8
        case("changed", changed)

        class Plain(Base):
            def verify(self, task, rollout): return 1
        other = Plain
        class Plain(Base):
            def verify(self, task, rollout): return 2
        class Two(other):
            def verify(self, task, rollout): return super().verify(task, rollout) + Plain().verify(task, rollout)
        case("two", Two)
    """
    outcomes = _play_cases(folder, text)
    assert outcomes.pop("as made") == [3, 3]
    assert "Patched: Patched.verify changed after it was defined" in outcomes["method"]
    assert "put the class into a file" in outcomes["method"]
    assert "Deleted: Deleted.bonus changed after it was defined" in outcomes["deleted"]
    assert "Uses: Helper.rate changed after it was defined" in outcomes["helper"]
    assert "Instance: self.size differs from that of a new Instance(...)" in outcomes["changed"]
    assert outcomes["two"] == [3, 3]


def test_a_class_that_extends_one_of_its_own_name_is_carried(folder):
    text = """
        class Same(Base):
            def verify(self, task, rollout): return 1.0
        class Same(Same):
            def verify(self, task, rollout): return super().verify(task, rollout) / 2
        class Same(Same):
            def verify(self, task, rollout): return super().verify(task, rollout) / 2
        case("same", Same)
    """
    assert _play_cases(folder, text) == {"same": [0.25, 0.25]}


def test_a_text_of_several_lines_keeps_its_indentation():
    class Indented(Environment):
        prompt = """
            four
        """

        def tasks(self):
            return []

        def verify(self, task, rollout):
            return """
            four
        """

    namespace = {"__name__": "loaded"}
    exec(capture_source(Indented), namespace)
    assert namespace["Indented"].prompt == Indented.prompt
    assert namespace["Indented"]().verify(None, None) == Indented().verify(None, None)


def test_a_class_whose_assert_statements_pytest_rewrote_is_carried():
    class Asserts(Environment):
        def tasks(self):
            return []

        def verify(self, task, rollout):
            assert rollout is None, "no rollout is expected"
            return 1.0

    assert "no rollout is expected" in capture_source(Asserts)


def test_a_value_that_is_a_secret_is_refused_and_not_repeated(folder):
    text = """
        API_KEY = os.environ["MODEL_KEY"]
        class ByName(Base):
            def verify(self, task, rollout): return API_KEY == ""
        case("name", ByName)

        plain = os.environ["MODEL_KEY"]
        class ByValue(Base):
            def verify(self, task, rollout): return plain == ""
        case("value", ByValue)

        options = {"url": "http://host", "password": "correct-horse"}
        class Inside(Base):
            def verify(self, task, rollout): return options == {}
        case("inside", Inside)

        class Attribute(Base):
            header = ""
            def verify(self, task, rollout): return self.header == ""
        Attribute.header = "Bearer " + os.environ["MODEL_KEY"]
        case("attribute", Attribute)

        key, eos_token = "label", "<|endoftext|>"
        class Harmless(Base):
            def verify(self, task, rollout): return key + eos_token
        case("harmless", Harmless)
    """
    outcomes = _play_cases(folder, text, {**os.environ, "MODEL_KEY": "sk-live-abcdef123456"})
    assert outcomes.pop("harmless") == ["label<|endoftext|>"] * 2
    assert "ByName uses API_KEY, which looks like a secret" in outcomes["name"]
    assert "ByValue uses plain, which contains the value of a key variable" in outcomes["value"]
    assert "Inside uses options['password'], which looks like a secret" in outcomes["inside"]
    assert "Attribute uses Attribute.header, which contains the value of a key variable" in outcomes["attribute"]
    assert all("read it inside a method" in each and "sk-live" not in each for each in outcomes.values())


def test_a_class_that_uses_its_file_without_listing_files_is_refused(folder):
    text = """
        class Sibling(Base):
            def verify(self, task, rollout): return os.path.exists(os.path.join(os.path.dirname(__file__), "a.json"))
        case("sibling", Sibling)

        folder = os.path.dirname(os.path.abspath(__file__))
        class Outside(Base):
            def verify(self, task, rollout): return folder
        case("outside", Outside)
    """
    outcomes = _play_cases(folder, text)
    assert "Sibling uses __file__, which is a copy in the run directory" in outcomes["sibling"]
    assert "in the class attribute `files`" in outcomes["sibling"]
    assert outcomes["outside"] == [str(folder)] * 2


def test_common_values_are_carried(folder):
    text = """
        log, most, kind = logging.getLogger("cases"), float("inf"), TypeVar("kind")
        class Color(enum.Enum):
            RED = 1
            BLUE = 2
        best, table = Color.BLUE, {"a": [1, (2,)], "none": float("nan"), "set": {1}, "best": Color.RED}
        add, double = functools.partial(max, 4), lambda x: 2 * x
        class Uses(Base, Generic[kind]):
            def verify(self, task, rollout):
                log.debug("verify")
                assert table["none"] != table["none"]
                return [best is Color.BLUE, table["best"] is Color.RED, most, add(1), double(4), table["a"][1]]
        case("uses", Uses)

        rows = {"a": 1, "client": [2, sys.stdout]}
        class Refused(Base):
            def verify(self, task, rollout): return rows
        case("refused", Refused)
    """
    outcomes = _play_cases(folder, text)
    assert outcomes["uses"] == [[True, True, float("inf"), 4, 8, [2]]] * 2
    assert "Refused uses rows['client'][1], an object of type TextIOWrapper" in outcomes["refused"]


def test_a_class_without_a_definition_is_refused_with_the_reason(folder):
    text = """
        class First(Base):
            def verify(self, task, rollout): return 1.0
        First.__name__ = "Other"
        case("renamed", First)
        case("made", type("Made", (Base,), {"verify": lambda self, task, rollout: 1.0}))
        one, two = lambda: 1, lambda: 2
        class Lambdas(Base):
            def verify(self, task, rollout): return one() + two()
        case("lambdas", Lambdas)
    """
    outcomes = _play_cases(folder, text)
    assert "cases.py has no definition of Other (it was renamed, made by a call, or changed" in outcomes["renamed"]
    assert "cases.py has no definition of Made" in outcomes["made"]
    assert "cases.py has not exactly one lambda on the line" in outcomes["lambdas"]


def test_a_text_that_does_not_load_is_refused_before_anything_is_written(folder):
    text = """
        import rollbook
        def make():
            size = 3
            class Local(Base):
                sizes = [size]
                def verify(self, task, rollout): return 1.0
            return Local
        try:
            rollbook.run(make(), "scripted:answers.jsonl", out="runs/local")
        except rollbook.UsageError as error:
            OUTCOMES["error"] = str(error)
    """
    error = _play_cases(folder, text)["error"]
    assert "Local does not load from its source text (NameError: name 'size' is not defined)" in error
    assert not (folder / "runs").exists()


def test_a_class_whose_cell_was_compiled_statement_by_statement_is_the_same_class():
    """As IPython compiles cells: the compiler then does not know that `re` is a module, and calls it in another way."""
    text = 'import re\nclass S:\n    def verify(self, text):\n        return re.findall("a", text)[-1:] == ["a"]\n'
    live: dict[str, object] = {"__name__": "__main__"}
    for statement in ast.parse(text).body:
        exec(compile(ast.Module([statement], []), "<cell>", "exec"), live)
    assert list(compare_names({"S": live["S"]}, build_module(text, "cell.py"))) == []
    changed = build_module(text.replace('"a", text', '"b", text'), "cell.py")
    assert [each.path for each in compare_names({"S": live["S"]}, changed)] == ["S.verify"]
