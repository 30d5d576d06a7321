"""The documentation is true: its links lead somewhere, its files, snippets and commands are run, their output comes."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import nbformat
import pytest
import typer
from nbclient import NotebookClient

from rollbook.cli import COMMANDS, build_app
from rollbook.errors import UsageError
from rollbook.models import weights
from support.pages import SHELLS, Session, blocks, commands, plain, unsaid

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NOT_RUN_AT_MOST = 2
HELP = {"--help", "-h"}
EMBEDDED = {"README.md"}
"""Pages whose commands are answered by the embedded model."""

FIRST = {"README.md", "getting-started.md"}
"""The pages that `make test` plays; `make docs` plays all."""


def pages(slow):
    """A test for each page."""
    marks = {page: [pytest.mark.slow] if slow and page.name not in FIRST else [] for page in PAGES}
    return pytest.mark.parametrize(
        "page", [pytest.param(page, marks=marks[page], id=str(page.relative_to(ROOT))) for page in PAGES]
    )


every_page, every_page_in_full = pages(slow=False), pages(slow=True)


@pytest.fixture(scope="session")
def places():
    """Two endpoints that can add, under the addresses that the pages use."""
    command = [sys.executable, str(ROOT / "tests/support/endpoint.py"), "--vllm", "--names", "my-model"]
    served = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ports = [json.loads(child.stdout.readline())["port"] for child in served]
    yield {f"http://localhost:{8000 + i}": f"http://127.0.0.1:{port}" for i, port in enumerate(ports)}
    for child in served:
        child.terminate()
        child.communicate(timeout=30)


@every_page_in_full
def test_everything_on_a_page_runs_and_says_what_it_shows(page, places, tmp_path):
    if page.name in EMBEDDED and not weights.has_weights():
        pytest.skip("needs the embedded model: rollbook local pull")
    text = page.read_text()
    folder = tmp_path / "session"
    folder.mkdir()
    session = Session(folder, places)
    session.play(text)
    wanted = [block for block in blocks(text) if not (block.skipped or block.title)]
    assert session.ran >= sum(block.language in (*SHELLS, "python") for block in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_in_a_kernel_against_the_embedded_model(path, tmp_path, monkeypatch):
    if not weights.has_weights():
        pytest.skip("needs the embedded model: rollbook local pull")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)


def test_notebooks_are_stored_without_outputs_and_linked():
    assert len(NOTEBOOKS) >= 2
    linked = {Path(link).name for page in PAGES for link in LINK.findall(page.read_text())}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells), path
        assert path.name in linked


def test_what_is_not_run_is_little_and_marked():
    skipped = [block.code for page in PAGES for block in blocks(page.read_text()) if block.skipped]
    assert len(skipped) <= NOT_RUN_AT_MOST, skipped


def test_jq_was_there_for_the_commands_that_use_it():
    if shutil.which("jq") is None:
        pytest.skip("no jq on this machine: the commands that use it were passed over")
    lines = [line for page in PAGES for block in shell_blocks(page) for line, _ in commands(block)]
    assert any("jq " in line for line in lines)


@every_page
def test_every_link_to_a_file_leads_to_one(page):
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert missing == []


@every_page
def test_every_make_target_that_is_named_exists(page):
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"`make ([a-z-]+)", page.read_text())
    assert set(named) <= set(known)


@every_page
def test_every_command_and_option_that_is_named_exists(page):
    for words in named_commands(page):
        assert understood(words), f"rollbook {shlex.join(words)}"


def test_every_page_of_the_docs_is_reached_from_the_index():
    linked = set(LINK.findall((ROOT / "docs/index.md").read_text()))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"} <= linked


def test_the_pages_with_a_role_of_their_own_exist():
    assert {page.name for page in PAGES} >= FIRST | EMBEDDED


def test_a_misspelt_command_would_be_noticed():
    assert understood(["run", "gsm8k", "-k", "4"])
    assert not understood(["run", "gsm8k", "--smaples", "4"])
    assert not understood(["rum", "gsm8k"])


def test_output_that_does_not_come_would_be_noticed():
    came = "runs/a: m: 4/8 scored\nSums  4  0.25  0.100-0.400\nmore"
    assert unsaid(["runs/a: m: 8/8 scored", "...", "Sums 2 0.75 0.600-0.900"], came) is None
    assert unsaid(["Sums 2 0.75 0.600-0.900", "runs/a: m: 8/8 scored"], came) == "runs/a: m: 8/8 scored"
    assert plain("pass@2 of sum-3") == "pass@2 of sum-3"


def test_a_command_that_fails_would_be_noticed(tmp_path, places):
    folder = tmp_path / "session"
    folder.mkdir()
    with pytest.raises(AssertionError, match="exited 1"):
        Session(folder, places).play("```console\n$ false\n```\n")
    Session(folder, places).play("```console\n$ false\n$ echo $?\n1\n```\n")


def shell_blocks(page):
    return [block for block in blocks(page.read_text()) if block.language in SHELLS]


def named_commands(page):
    """Every `rollbook ...`: of the shell blocks, also those that are not run, and within the lines of the text."""
    lines = [line for block in shell_blocks(page) for line, _ in commands(block)]
    lines += re.findall(r"`(rollbook [a-z]+ [^`]*)`", page.read_text())
    for line in lines:
        words = shlex.split(line, comments=True)
        if words and words[0].rpartition("/")[2] == "rollbook":
            own = takewhile(lambda word: word not in ("|", "&", "&&", ";"), words[1:])
            yield [word for word in own if word != "..."]


def understood(words):
    """Whether the command line would take these words, without doing anything."""
    if not words or words[0].startswith("-"):
        return words in (["--help"], ["-h"], ["--version"], [])
    if words[0] not in COMMANDS:
        return False
    group = typer.main.get_command(build_app(words[0]))
    command, rest = group.commands[words[0]], words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(words[0], [word for word in rest if word not in HELP])
    except typer.TyperException:
        return not HELP.isdisjoint(rest)
    except UsageError:  # the options are known; the file of one of them is not here
        return True
    return True
