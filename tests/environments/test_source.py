import json
import sys
from pathlib import Path

import msgspec
import pytest

from rollbook.environments.source import (
    ALIAS_PREFIX,
    explain_error,
    find_module_file,
    import_closure,
    import_from,
    is_user_file,
    locate_module,
)
from rollbook.errors import UsageError


@pytest.fixture(autouse=True)
def untouched_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)


def test_the_library_and_packages_are_not_the_users(tmp_path):
    assert is_user_file(tmp_path / "sums.py")
    assert not is_user_file(Path(msgspec.__file__))
    assert not is_user_file(Path(ascii_module()))
    assert not is_user_file(Path(import_path_of_rollbook()))
    assert not is_user_file(tmp_path / ".venv/lib/python3.11/site-packages/x.py")


def ascii_module():
    import json

    return json.__file__


def import_path_of_rollbook():
    import rollbook.errors

    return rollbook.errors.__file__


def test_a_file_in_a_package_keeps_its_dotted_name(tmp_path):
    (tmp_path / "pkg/sub").mkdir(parents=True)
    for folder in ("pkg", "pkg/sub"):
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "pkg/sub/sums.py").touch()
    assert locate_module(tmp_path / "pkg/sub/sums.py") == (tmp_path.resolve(), "pkg.sub.sums")
    assert locate_module(tmp_path / "pkg/__init__.py") == (tmp_path.resolve(), "pkg")
    assert find_module_file(tmp_path, "pkg") == tmp_path / "pkg/__init__.py"
    assert find_module_file(tmp_path, "pkg.none") is None


def test_namesakes_in_two_folders_are_two_modules(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder, value in ((one, 1), (two, 2)):
        folder.mkdir()
        (folder / "helper_xy.py").write_text(f"VALUE = {value}")
        (folder / "sums_xy.py").write_text("from helper_xy import VALUE")
    first, second = import_from(one, "sums_xy"), import_from(two, "sums_xy")
    assert (first.VALUE, second.VALUE) == (1, 2)
    assert import_from(one, "sums_xy").VALUE == 1


def test_a_file_called_like_the_library_does_not_replace_it(tmp_path):
    import random

    (tmp_path / "random.py").write_text("MINE = True")
    module = import_from(tmp_path, "random")
    assert module.MINE
    assert module.__name__ == f"{ALIAS_PREFIX}random"
    assert sys.modules["random"] is random
    assert import_from(tmp_path, "random") is module


def test_a_module_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match="holds no module nothing_here"):
        import_from(tmp_path, "nothing_here")


def test_the_closure_follows_imports_wherever_they_stand(tmp_path):
    root = tmp_path.resolve()
    files = {
        "sums.py": "import json\nimport one\ndef f():\n    from pkg.inner import two",
        "one.py": "import sums",
        "pkg/__init__.py": "",
        "pkg/inner.py": "from . import three\nfrom .deep.four import x",
        "pkg/three.py": "",
        "pkg/deep/__init__.py": "",
        "pkg/deep/four.py": "from ..five import y",
        "pkg/five.py": "this is broken (",
        "unrelated.py": "",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = {p.relative_to(root).as_posix() for p in import_closure(root, root / "sums.py")}
    assert found == set(files) - {"unrelated.py"}


def test_a_place_in_a_library_tells_nobody_anything():
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    away = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert "(" not in explain_error(away).replace("(char 1)", "")


def test_an_exception_is_explained_in_one_line_with_its_place(tmp_path):
    (tmp_path / "broken_xy.py").write_text("x = 1\n\nraise ValueError('two\\nlines')")
    with pytest.raises(ValueError) as caught:
        import_from(tmp_path, "broken_xy")
    assert explain_error(caught.value, tmp_path) == f"ValueError: two lines ({tmp_path.resolve() / 'broken_xy.py'}:3)"


@pytest.mark.parametrize(
    "text",
    [b"x = \xc5\n", b"x = 1\0\n", b"x = " + b"(" * 500, b"import " + b"help" * 100 + b"\n"],
    ids=["not UTF-8", "NUL", "nested", "long name"],
)
def test_source_that_cannot_be_imported_is_a_file_like_any_other(tmp_path: Path, text: bytes) -> None:
    """Found by the fuzzer: a traceback while planning. Importing it is what explains the mistake."""
    path = tmp_path / "broken.py"
    path.write_bytes(text)
    assert import_closure(tmp_path, path) == {path}
