import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from rollbook.book import digest_source
from rollbook.core import EnvironmentSpec
from rollbook.environments.builtin.gsm8k import GSM8K
from rollbook.environments.registry import resolve
from rollbook.environments.snapshot import find_changed_file, load_environment, write_snapshot
from rollbook.errors import UsageError

SUMS = """
from pathlib import Path
from rollbook import Environment, Task
from helper_s import double

class Sums(Environment):
    files = ("words*.txt",)

    def __init__(self, top=3):
        self.top = top

    def tasks(self):
        for i in range(self.top):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(double(i)))

    def verify(self, task, rollout):
        from lazy_s import right
        return right(rollout.text, task.answer)

    def words(self):
        return (Path(__file__).parent / "words_s.txt").read_text()
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    folder = tmp_path / "envs"
    folder.mkdir()
    (folder / "sums_s.py").write_text(SUMS)
    (folder / "helper_s.py").write_text("def double(i): return 2 * i")
    (folder / "lazy_s.py").write_text("def right(text, answer): return text == answer")
    (folder / "words_s.txt").write_text("one two")
    (folder / "unrelated_s.py").write_text("")
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.endswith(("_s", "_t")):
            del sys.modules[name]


def plan_snapshot(run="run", spec="envs/sums_s.py:Sums?top=2"):
    return write_snapshot(resolve(spec), Path(run) / "source")


def test_the_users_source_is_copied_with_what_it_imports_and_reads():
    spec = plan_snapshot()
    copied = {p.relative_to("run/source").as_posix() for p in Path("run/source").rglob("*")}
    assert copied == {"sums_s.py", "helper_s.py", "lazy_s.py", "words_s.txt"}
    assert (spec.target, spec.snapshot, spec.origin) == ("sums_s:Sums", "source", "envs/sums_s.py")
    assert len(spec.digest) == 64


def test_the_digest_is_that_of_names_and_bytes():
    first = plan_snapshot("one").digest
    assert plan_snapshot("two").digest == first
    Path("envs/helper_s.py").write_text("def double(i): return i + i")
    assert plan_snapshot("three").digest != first


def test_an_edit_of_any_pinned_file_is_noticed_and_named():
    spec = plan_snapshot()
    assert find_changed_file(spec, Path("run")) is None
    Path("envs/unrelated_s.py").write_text("x = 1")
    assert find_changed_file(spec, Path("run")) is None
    Path("envs/lazy_s.py").write_text("def right(text, answer): return True")
    assert find_changed_file(spec, Path("run")) == "envs/lazy_s.py"
    Path("envs/helper_s.py").unlink()
    assert find_changed_file(spec, Path("run")) == "envs/helper_s.py"


def test_an_origin_out_of_sight_is_not_called_changed(monkeypatch, tmp_path):
    spec = plan_snapshot()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert find_changed_file(spec, tmp_path / "run") is None


def test_another_process_runs_the_snapshot_and_not_the_edited_source():
    spec = plan_snapshot()
    Path("envs/helper_s.py").write_text("raise RuntimeError('edited')")
    Path("envs/words_s.txt").write_text("edited")
    Path("spec.json").write_bytes(msgspec.json.encode(spec))
    code = (
        "import msgspec, sys; from pathlib import Path;"
        "from rollbook.core import EnvironmentSpec; from rollbook.environments import load_environment;"
        "spec = msgspec.json.decode(Path('../spec.json').read_bytes(), type=EnvironmentSpec);"
        "env = load_environment(spec, Path('../run'));"
        "print([t.answer for t in env.tasks()], env.words(), env.verify.__code__.co_filename.split('/')[-3:])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd="envs", capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['0', '2'] one two ['run', 'source', 'sums_s.py']", done.stderr
    assert not list(Path("run").rglob("__pycache__"))


def test_the_snapshot_is_loaded_beside_the_original_of_the_same_name():
    loaded = resolve("envs/sums_s.py:Sums")
    spec = write_snapshot(loaded, Path("run/source"))
    Path("run/source/helper_s.py").write_text("def double(i): return 100 + i")
    spec = msgspec.structs.replace(spec, digest=digest_source(Path("run/source")))
    copied = load_environment(spec, Path("run"))
    assert type(copied) is not loaded.cls
    assert [t.answer for t in copied.tasks()] == ["100", "101", "102"]
    assert [t.answer for t in loaded.instance.tasks()] == ["0", "2", "4"]


def test_a_package_keeps_its_shape():
    for name in ("pkg_t/__init__.py", "pkg_t/inner/__init__.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    Path("pkg_t/helper.py").write_text("TOP = 2")
    text = SUMS.replace("from helper_s import double", "from ..helper import TOP\ndouble = lambda i: i + TOP")
    Path("pkg_t/inner/sums.py").write_text(text.replace('"words*.txt",', ""))
    spec = write_snapshot(resolve("pkg_t.inner.sums:Sums?top=1"), Path("run/source"))
    copied = {p.relative_to("run/source").as_posix() for p in Path("run/source").rglob("*.py")}
    assert copied == {"pkg_t/__init__.py", "pkg_t/helper.py", "pkg_t/inner/__init__.py", "pkg_t/inner/sums.py"}
    assert [t.answer for t in load_environment(spec, Path("run")).tasks()] == ["2"]
    Path("pkg_t/helper.py").write_text("TOP = 3")
    assert find_changed_file(spec, Path("run")) == "pkg_t/helper.py"


def test_a_module_imported_by_a_computed_name_is_kept_too():
    Path("envs/sums_s.py").write_text("import importlib\nimportlib.import_module('unre' + 'lated_s')\n" + SUMS)
    plan_snapshot()
    assert Path("run/source/unrelated_s.py").exists()


def test_a_built_in_is_pinned_by_its_scoring_version_and_not_copied():
    spec = write_snapshot(resolve("gsm8k"), Path("run/source"))
    assert spec.snapshot is None
    assert spec.digest == f"scoring-version-{GSM8K.scoring_version}"
    assert not Path("run").exists()
    assert find_changed_file(spec, Path("run")) is None
    for digest in ("scoring-version-0", "0" * 64):
        other = msgspec.structs.replace(spec, digest=digest)
        assert find_changed_file(other, Path("run")) == "gsm8k"
    assert len(list(load_environment(spec).tasks())) == 1319


def test_an_installed_package_is_digested_and_not_copied():
    loaded = resolve("gsm8k")
    installed = replace(loaded, spec=msgspec.structs.replace(loaded.spec, target="msgspec.json:Sums"))
    spec = write_snapshot(installed, Path("run/source"))
    assert spec.snapshot is None
    assert spec.digest == hashlib.sha256(Path(msgspec.json.__file__).read_bytes()).hexdigest()
    assert not Path("run").exists()
    assert find_changed_file(spec, Path("run")) is None
    other = msgspec.structs.replace(spec, digest="0" * 64)
    assert find_changed_file(other, Path("run")) == "msgspec.json"


def test_a_pattern_of_data_files_that_matches_nothing_is_named():
    Path("envs/words_s.txt").unlink()
    with pytest.raises(UsageError, match=r"Sums.files: nothing matches 'words\*.txt' next to envs/sums_s.py"):
        plan_snapshot()


def test_a_data_file_outside_the_folder_is_refused():
    Path("words_up.txt").touch()
    Path("envs/sums_s.py").write_text(SUMS.replace("words*.txt", "../words_up.txt"))
    with pytest.raises(UsageError, match=r"is outside envs"):
        plan_snapshot()


def test_a_snapshot_without_its_run_directory_is_refused():
    with pytest.raises(UsageError, match="kept in a run directory"):
        load_environment(EnvironmentSpec("x.py:X", "x:X", snapshot="source"))
