"""Every Python snippet and file of README and docs passes mypy --strict: the package says that it is typed."""

import subprocess
import sys
from pathlib import Path

from support.pages import blocks

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
UNTYPED = ("datasets", "nemo_rl", "trl")
"""Packages of others that pages import, which are not typed or not installed here."""


WRONG = "import rollbook\nrun = rollbook.run('gsm8k', samples='8')\nprint(run.paths)\n"
ACCEPTED = """
from pathlib import Path

import rollbook


class Sums(rollbook.Environment):
    def verify(self, task: rollbook.Task, rollout: rollbook.Rollout) -> float:
        return 1.0


models: tuple[str, ...] = ("http://localhost:8000/v1",)
result: rollbook.RunResult = rollbook.run(Sums, models, data=Path("rows.jsonl"), out=Path("run"))
rollbook.check(Sums, data=Path("rows.jsonl"))
rollbook.score(Sums, "sum-1", "2")
rollbook.load(result)
"""
"""Calls that work, and that must not be type errors either."""


def test_every_snippet_of_the_documentation_is_typed(tmp_path):
    files = write_snippets(tmp_path)
    assert len(files) > 45
    (tmp_path / "wrong.py").write_text(WRONG)  # shows that mistakes are found, without another run of mypy
    (tmp_path / "accepted.py").write_text(ACCEPTED)
    found = check_types(tmp_path, [*files, tmp_path / "accepted.py", tmp_path / "wrong.py"]).stdout.splitlines()
    wrong = [line for line in found if line.startswith("wrong.py:")]
    assert ['"samples"' in wrong[0], '"paths"' in wrong[-1]] == [True, True]
    assert [line for line in found if line not in wrong and not line.startswith("Found 2 errors in 1 file")] == []


def write_snippets(folder):
    """Write all Python blocks as files, those with a title under it, in one package a page.

    A page imports its own files by their names, as they lie beside each other where it is run.
    """
    files = []
    for page in PAGES:
        package = page.stem.replace("-", "_").lower()
        found = [each for each in blocks(page.read_text()) if each.language == "python"]
        named = {Path(each.title).stem for each in found if each.title}
        for number, block in enumerate(found):
            path = folder / package / (block.title or f"snippet_{number}.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_import_from_package(block.code, package, named))
            files.append(path)
    for path in {parent for each in files for parent in each.relative_to(folder).parents if parent.name}:
        (folder / path / "__init__.py").touch()
    return files


def _import_from_package(code, package, named):
    for name in named:
        code = code.replace(f"\nfrom {name} import ", f"\nfrom {package}.{name} import ")
    return code


def check_types(folder, files):
    """Run mypy once over all files."""
    ignored = ",".join(f"mypy-{name}.*" for name in UNTYPED).replace(",mypy-", ",")
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\n\n[{ignored}]\nignore_missing_imports = True\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(folder / "cache")]
    return subprocess.run([*command, *files], capture_output=True, text=True, check=False, cwd=folder)
