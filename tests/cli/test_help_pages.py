"""The help pages: sections, 80 columns, plain words, and what a shell completes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from rollbook.cli import COMMANDS, build_app
from rollbook.cli.help_pages import group_options
from rollbook.core import GROUPS

SUBCOMMANDS = [("sandbox", "run"), ("sandbox", "serve"), ("local", "pull")]
PAGES = [(), *((name,) for name in COMMANDS), *SUBCOMMANDS]
RUN_STARTERS = ("run", "plan", "submit")


def read_parameters(command: str, subcommand: str = "") -> list[typer.core.TyperOption]:
    """The arguments and options of a command."""
    found = typer.main.get_command(build_app(command)).commands[command]
    return (found.commands[subcommand] if subcommand else found).params


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page_fits_80_columns_and_is_shown_by_both_options(rollbook, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    page = rollbook(*words, "-h")
    assert page.returncode == 0
    assert page.stdout == rollbook(*words, "--help").stdout
    assert [line for line in page.stdout.splitlines() if len(line) > 80] == []


def test_run_lists_every_option_in_a_section():
    sections = group_options([each for each in read_parameters("run") if each.param_type_name == "option"])
    assert list(sections) == list(GROUPS.values())
    assert sum(map(len, sections.values())) > 50


def test_the_sections_of_run_are_on_its_page(rollbook):
    page = rollbook("run", "-h").stdout
    titles = [line.removesuffix(":") for line in page.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Arguments", *GROUPS.values(), "Options"]
    assert page.index("\nModel:") < page.index("-m, --model MODEL") < page.index("\nSampling:")


def test_commands_are_listed_in_sections(rollbook):
    page = rollbook("-h").stdout
    for title in {entry.group for entry in COMMANDS.values()}:
        assert f"\n{title}:\n" in page
    assert "Commands:" not in page


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS if name not in ("sandbox", "local")), *SUBCOMMANDS])
def test_every_option_has_a_sentence_and_a_word_for_its_value(words):
    for each in read_parameters(*words):
        if each.param_type_name == "argument":
            assert each.metavar, each.name
        elif each.is_flag:
            assert not each.metavar
        else:
            assert each.metavar, each.opts
        sentence = re.sub(r" \[default: [^]]*\]$", "", each.help)
        assert re.fullmatch(r"[A-Z].*\.", sentence), each.help


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_no_page_shows_a_python_type_or_a_range_of_x(rollbook, words):
    page = rollbook(*words, "-h").stdout
    assert not re.search(r"<(int|float|str|path|text|file|dir)|range>|x[<>]=|None|\bPath\b|new run:", page)


@pytest.mark.parametrize("name", RUN_STARTERS)
def test_a_new_run_shows_its_defaults(rollbook, name):
    assert "[default: 300]" in " ".join(rollbook(name, "-h").stdout.split())


@pytest.mark.parametrize("name", ["resume", "extend", "work"])
def test_a_started_run_shows_no_defaults_because_its_last_start_decides(rollbook, name):
    page = " ".join(rollbook(name, "-h").stdout.split())
    assert "[default" not in page.replace("still starting. [default: 0]", "")  # --wait is of this start alone
    assert "stay as they were at its last start" in page


def test_one_short_option_means_one_thing_in_all_commands():
    meanings: dict[str, set[str]] = {}
    for words in [*((name,) for name in COMMANDS if name not in ("sandbox", "local")), *SUBCOMMANDS]:
        for each in read_parameters(*words):
            for short in [name for name in each.opts if re.fullmatch("-[a-z]", name)]:
                meanings.setdefault(short, set()).add(max(each.opts, key=len))
    assert meanings == {
        "-c": {"--concurrency"},
        "-k": {"--samples"},
        "-m": {"--model"},
        "-n": {"--limit"},
        "-o": {"--out"},
    }


def complete(line: str, tmp_path: Path) -> list[str]:
    """What bash is offered for a line."""
    words = line.split(" ")
    environ = {"_ROLLBOOK_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-m", "rollbook"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": source, **environ},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_shell_completes_commands_and_options(tmp_path):
    assert complete("rollbook re", tmp_path) == ["resume", "remove", "report", "reverify"]
    assert "--temperature" in complete("rollbook run --te", tmp_path)
    assert complete("rollbook sandbox s", tmp_path) == ["serve"]
    assert complete("rollbook run ma", tmp_path) == ["math", "math500"]
    assert complete("rollbook envs h", tmp_path) == ["harbor", "harness", "humaneval"]


def test_the_script_for_a_shell_is_shown(tmp_path):
    script = "import sys; from rollbook.cli.main import main; main(['--show-completion', 'bash'])"
    source = str(Path(__file__).parents[2] / "src")
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": source, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_ROLLBOOK_COMPLETE=complete_bash" in done.stdout
