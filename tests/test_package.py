import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollbook
from rollbook.core import Rollout, Task
from rollbook.errors import Shortfall

SOURCE = Path(rollbook.__file__).parents[1]


def test_the_public_names_are_the_nouns_themselves():
    assert rollbook.Task is Task
    assert rollbook.Rollout is Rollout
    assert rollbook.Shortfall is Shortfall


@pytest.mark.parametrize("name", rollbook.__all__)
def test_every_public_name_exists(name):
    assert getattr(rollbook, name) is not None
    assert name in dir(rollbook)


@pytest.mark.parametrize("name", sorted({*rollbook.__all__} - {"__version__"}))
def test_every_public_name_has_a_docstring_and_a_line_in_the_documentation(name):
    assert len(getattr(rollbook, name).__doc__.split()) > 3
    page = (SOURCE.parent / "docs" / "python.md").read_text()
    assert len(re.findall(rf"^\| `{name}` \| .{{10,}} \|$", page, re.MULTILINE)) == 1


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Manager'"):
        rollbook.Manager  # noqa: B018


def test_types_are_published():
    assert Path(rollbook.__file__).with_name("py.typed").exists()


def test_importing_rollbook_imports_no_dependency():
    code = "import sys, rollbook; print(sorted(m for m in sys.modules if m.startswith('rollbook') or m == 'msgspec'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=_env(), timeout=60)
    assert done.stdout.strip() == "['rollbook', 'rollbook._exports']"


@pytest.mark.parametrize(
    ("code", "most"),
    [
        ("import rollbook", 3),
        ("from rollbook.cli.main import main; main(['--help'])", 15),
    ],
)
def test_starting_is_cheap_beside_a_bare_python(code, most):
    bare, ours = [], []
    for _ in range(5):
        bare.append(cpu_s("pass"))
        ours.append(cpu_s(code))
    assert min(ours) <= most * min(bare)


def cpu_s(code):
    """The processor seconds of a Python that runs this."""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, env=_env())
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_utime + usage.ru_stime


def _env():
    return {**os.environ, "PYTHONPATH": str(SOURCE)}
