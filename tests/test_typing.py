"""Snippets of the documentation pass mypy --strict: the package says that it is typed."""

import subprocess
import sys
from pathlib import Path

from support.pages import blocks

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("getting-started.md", "python.md")


def test_snippets_of_the_documentation_are_typed(tmp_path):
    for page in PAGES:
        code = [each.code for each in blocks((DOCS / page).read_text()) if each.language == "python" and not each.title]
        assert code, page
        for number, snippet in enumerate(code):
            (tmp_path / f"{Path(page).stem.replace('-', '_')}_{number}.py").write_text(snippet)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), *tmp_path.glob("*.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
