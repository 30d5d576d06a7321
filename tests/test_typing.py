"""Snippets of the documentation pass mypy --strict: the package says that it is typed."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import blocks

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["getting-started.md", "python.md"])
def test_the_snippets_of_a_page_are_typed(page, tmp_path):
    snippets = [each.code for each in blocks((DOCS / page).read_text()) if each.language == "python" and not each.title]
    assert snippets
    for number, code in enumerate(snippets):
        (tmp_path / f"snippet_{number}.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *tmp_path.glob("*.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
