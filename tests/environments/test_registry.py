import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rollbook.core import Task
from rollbook.environments import registry
from rollbook.environments.environment import Environment
from rollbook.environments.registry import (
    BUILT_IN,
    ENTRY_POINT_GROUP,
    list_environments,
    load_instance,
    names_blend,
    parse_spec,
    resolve,
)
from rollbook.errors import UsageError

SUMS = """
from rollbook.core.task import Task
from rollbook.environments.environment import Environment

class Sums(Environment):
    def __init__(self, top=3, data=None):
        self.top, self.data = top, data

    def tasks(self):
        for i in range(self.top):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return rollout.text.strip().endswith(task.answer)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if not name.startswith(("reasoning_gym", "rollbook", "sympy", "numpy", "math_verify", "latex2sympy2")):
            del sys.modules[name]


def write(name, text):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("spec", "target", "part", "args"),
    [
        ("gsm8k", "gsm8k", "", {}),
        ("reasoning_gym:chain_sum", "reasoning_gym", "chain_sum", {}),
        ("a/b.py:Sums?top=9", "a/b.py", "Sums", {"top": 9}),
        ("b.py", "b.py", "", {}),
        (
            "p.m:Sums?a=1.5&b=text&c=[1,2]&d=null&e=",
            "p.m",
            "Sums",
            {"a": 1.5, "b": "text", "c": [1, 2], "d": None, "e": ""},
        ),
        ("x?a=true&b=007&c=%26&d=+", "x", "", {"a": True, "b": "007", "c": "&", "d": "+"}),
        ('x?a={"k":1}&b="quoted"', "x", "", {"a": {"k": 1}, "b": "quoted"}),
        ("x?a=b=c", "x", "", {"a": "b=c"}),
        ("http://host:80/x?y=1", "http://host:80/x?y=1", "", {}),
    ],
)
def test_a_spec_is_taken_apart(spec, target, part, args):
    written = parse_spec(spec)
    assert (written.target, written.part, written.args) == (target, part, args)


@pytest.mark.parametrize("spec", ["x?a", "x?a=1&a=2", "x?=1", ":Sums"])
def test_a_malformed_spec_is_one_line(spec):
    with pytest.raises(UsageError, match="environment"):
        parse_spec(spec)


def test_a_built_in_is_found_by_name():
    loaded = resolve("gsm8k")
    assert loaded.spec.target == "builtin:gsm8k"
    assert (loaded.spec.verify, loaded.spec.state, loaded.spec.args) == ("sync", "none", {})
    assert loaded.path is None
    assert len(list(loaded.instance.tasks())) == 1319


@pytest.mark.parametrize("spec", ["sums_a.py:Sums", "sums_a.py", "./sums_a.py", "sums_a:Sums"])
def test_a_file_or_module_is_found_from_the_current_directory(spec, here):
    write("sums_a.py", SUMS)
    loaded = resolve(f"{spec}?top=2")
    assert [t.id for t in loaded.instance.tasks()] == ["sum-0", "sum-1"]
    assert loaded.spec.target == "sums_a:Sums"
    assert loaded.spec.args == {"top": 2}
    assert loaded.path == (here / "sums_a.py").resolve()


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("rollbook.environments.gsm8k:GSM8K", "gsm8k"),
        ("rollbook.environments.workplace.workplace:Workplace", "workplace"),
        ("rollbook.environments.builtin.gsm8k:GSM8K", "gsm8k"),
    ],
)
def test_a_built_in_environment_is_found_by_its_module_also_by_the_old_one(spec, name):
    loaded = resolve(spec)
    assert loaded.spec.target == f"builtin:{name}"
    assert loaded.cls is resolve(name).cls


def test_a_module_that_is_gone_is_refused():
    with pytest.raises(UsageError, match=r"^rollbook\.collect\.run has no Mine"):
        resolve("rollbook.collect.run:Mine")


def test_a_file_in_another_folder_may_import_its_siblings():
    write("envs/helper_b.py", "TOP = 5")
    write("envs/sums_b.py", SUMS.replace("top=3", "top=TOP").replace("\nclass", "from helper_b import TOP\nclass"))
    loaded = resolve("envs/sums_b.py:Sums")
    assert len(list(loaded.instance.tasks())) == 5
    assert {p.name for p in loaded.files} == {"helper_b.py", "sums_b.py"}


def test_a_module_of_a_package_may_import_relatively():
    write("pkg_c/__init__.py", "")
    write("pkg_c/helper.py", "TOP = 4")
    write("pkg_c/sums.py", SUMS.replace("top=3", "top=TOP").replace("\nclass", "from .helper import TOP\nclass"))
    for spec in ("pkg_c.sums:Sums", "pkg_c/sums.py:Sums"):
        loaded = resolve(spec)
        assert loaded.spec.target == "pkg_c.sums:Sums"
        assert len(list(loaded.instance.tasks())) == 4


def test_data_reaches_an_environment_that_takes_it():
    write("sums_d.py", SUMS)
    loaded = resolve("sums_d.py", data="rows.jsonl")
    assert loaded.spec.args == {"data": "rows.jsonl"}
    assert loaded.instance.data == "rows.jsonl"


BROKEN = {
    "raises.py": "x = 1\nraise ValueError('no good')",
    "syntax.py": "def f(:\n    pass",
    "imports.py": "import not_installed_anywhere",
    "exits.py": "raise SystemExit(3)",
    "empty.py": "",
    "other.py": "class Sums: pass\nNUMBER = 3",
    "two.py": SUMS + "\nclass More(Sums): pass\n",
    "half.py": SUMS.replace("def verify", "def verifies"),
    "good.py": SUMS,
    "strict.py": SUMS.replace("(self, top=3, data=None):", "(self, top):\n        self.data = 1 / top"),
    "plain_init.py": SUMS.replace("data=None", "date=None").replace("data", "date"),
}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gsm9k", r"unknown environment 'gsm9k'; did you mean gsm8k\? `rollbook envs` lists .*--data FILE"),
        ("qqqqq", r"unknown environment 'qqqqq'; `rollbook envs` lists .*--data FILE"),
        ("gsm8k,humaneval", r"'gsm8k,humaneval': name one environment; .* a blend"),
        ("qqqqq:Sums", r"unknown environment 'qqqqq'"),
        (".x:Sums", r"unknown environment '.x'"),
        ("gsm8k:hard", r"gsm8k has no variants"),
        ("ftp://host:1", r"no installed package provides ftp://"),
        ("god.py:Sums", r"environment file god.py does not exist; did you mean good.py\?"),
        ("envs/none.py", r"environment file envs/none.py does not exist"),
        ("raises.py:Sums", r"raises.py cannot be imported: ValueError: no good \(raises.py:2\)"),
        ("syntax.py:Sums", r"syntax.py cannot be imported: SyntaxError: .* \(syntax.py:1\)"),
        ("imports.py", r"ModuleNotFoundError: No module named 'not_installed_anywhere' \(imports.py:1\)"),
        ("exits.py", r"exits.py cannot be imported: SystemExit: 3 \(exits.py:1\)"),
        ("msgspec.nothing:Sums", r"msgspec.nothing cannot be imported: ModuleNotFoundError"),
        ("empty.py", r"must hold exactly one Environment to be named alone; found: none"),
        ("two.py", r"found: More, Sums; write two.py:Class"),
        ("two.py:Mor", r"two.py has no Mor; did you mean More\? known: More, Sums"),
        ("other.py:Sums", r"other.py:Sums is not an Environment"),
        ("other.py:NUMBER", r"is not an Environment"),
        ("half.py:Sums", r"Sums has no verify\(task, rollout\)"),
        ("good.py:Sums?tip=3", r"Sums takes no argument 'tip'; did you mean top\? known: data, top"),
        ("strict.py:Sums", r"Sums: .*'top'; its arguments are Sums\(top\)"),
        ("strict.py:Sums?top=0", r"Sums: ZeroDivisionError: division by zero \(strict.py:7\)"),
        ("math", r"^math needs --data FILE"),
        ("mcqa", r"^mcqa needs --data FILE"),
        ("json_schema", r"^json_schema needs --data FILE"),
        ("string_match", r"^string_match needs --data FILE"),
        ("workplace?size=abc", r"^Workplace: size='abc'; give a whole number$"),
        ("workplace?seed=true", r"^Workplace: seed=True; give a whole number$"),
        ("code?seconds=soon", r"^Code: seconds='soon'; give a number$"),
        ("gsm8k?size=3", r"GSM8K takes no argument 'size'; known: data"),
    ],
)
def test_each_mistake_is_one_line_with_a_way_out(spec, message):
    for name, text in BROKEN.items():
        write(name, text)
    with pytest.raises(UsageError, match=message) as caught:
        resolve(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("plain_init.py:Sums", r"--data rows.jsonl: Sums takes no data"),
        ("good.py:Sums?data=x", r"--data rows.jsonl: .* already give data='x'"),
    ],
)
def test_data_that_cannot_be_taken_is_refused(spec, message):
    for name in ("plain_init.py", "good.py"):
        write(name, BROKEN[name])
    with pytest.raises(UsageError, match=message):
        resolve(spec, data="rows.jsonl")


def entry(name, value):
    return EntryPoint(name, value, ENTRY_POINT_GROUP)


def test_a_plug_in_is_found_by_its_entry_point_and_no_other_is_imported(monkeypatch):
    write("plug_e.py", SUMS)
    write("bad_e.py", "raise RuntimeError('never import me')")
    sys.path.insert(0, str(Path.cwd()))
    known = (entry("mine", "plug_e:Sums"), entry("bad", "bad_e:Sums"))
    monkeypatch.setattr(registry, "entry_points", lambda group: known)
    assert resolve("mine?top=1").spec.target == "plug_e:Sums"
    assert {k.name for k in list_environments()} == {"bad", "mine", *BUILT_IN}
    assert "bad_e" not in sys.modules
    with pytest.raises(UsageError, match=r"'bad' cannot be imported: RuntimeError: never import me \(bad_e.py:1\)"):
        resolve("bad")


def test_a_plug_in_may_speak_a_scheme(monkeypatch):
    write("remote_f.py", SUMS.replace("top=3, data=None", "url, top=1, data=None"))
    sys.path.insert(0, str(Path.cwd()))
    monkeypatch.setattr(registry, "entry_points", lambda group: (entry("http", "remote_f:Sums"),))
    assert resolve("http://host:80/x?y=1").spec.args == {"url": "http://host:80/x?y=1"}


def test_the_known_names_have_descriptions():
    known = {k.name: k.description for k in list_environments()}
    assert set(BUILT_IN) <= set(known)
    assert all(text and "\n" not in text for text in known.values())


def test_built_ins_are_registered_like_anyones():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    registered = project["project"]["entry-points"][ENTRY_POINT_GROUP]
    remote = {name: target for name, target in registered.items() if target.startswith("rollbook.gym.")}
    assert registered == {**BUILT_IN, **remote}
    assert {"gym", "gym+agent", "gym+head", "http", "https"} <= set(remote)


def test_a_file_that_a_named_environment_is_made_from_is_no_blend():
    assert names_blend("blend.yaml")
    assert names_blend("folder/blend.YML")
    assert not names_blend("gym:configs/mcqa.yaml")


def test_an_instance_made_in_python_is_described_by_import_and_arguments():
    write("sums_g.py", SUMS)
    made = type(resolve("sums_g.py").instance)(5)
    loaded = load_instance(made)
    assert (loaded.spec.target, loaded.spec.args) == ("sums_g:Sums", {"top": 5})
    assert loaded.instance is made
    assert loaded.path == Path("sums_g.py").resolve()
    assert load_instance(resolve("gsm8k").instance).spec.target == "builtin:gsm8k"


def test_a_class_of_a_function_is_carried_with_the_class_that_it_derives_from():
    class Local(Environment):
        def tasks(self):
            yield Task(id="a", prompt="b")

        def verify(self, task, rollout):
            return True

    class LocalAsync(Local):
        async def verify(self, task, rollout):
            return True

    loaded = load_instance(LocalAsync())
    assert loaded.spec.verify == "async"
    assert loaded.text.index("class Local(Environment)") < loaded.text.index("class LocalAsync(Local)")
