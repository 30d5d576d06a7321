"""The documentation is true: its links lead somewhere, its snippets are Python, its commands are understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from rollbook.cli.commands import COMMANDS
from rollbook.cli.main import build

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page, *languages):
    return [code for language, code in FENCE.findall(page.read_text()) if language in languages]


def commands(page):
    """Every `rollbook ...` line of the shell blocks, continued lines joined, prompts and comments taken off."""
    for code in blocks(page, "sh", "bash", "console", "shell"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words and words[0].rpartition("/")[2] == "rollbook":
                yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_to_one(page):
    targets = [link.partition("#")[0] for link in LINK.findall(page.read_text()) if "://" not in link]
    missing = [target for target in targets if target and not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_snippet_is_python(page):
    for code in blocks(page, "python", "py"):
        compile(code, str(page), "exec", flags=0x2000)  # top-level await is allowed in a snippet


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_and_option_in_it_exists(page):
    for words in commands(page):
        assert understood(words), f"rollbook {shlex.join(words)}"


def test_a_misspelt_command_would_be_noticed():
    assert understood(["run", "gsm8k", "-k", "4"])
    assert not understood(["run", "gsm8k", "--smaples", "4"])
    assert not understood(["rum", "gsm8k"])


def understood(words):
    """Whether the command line would take these words, without doing anything."""
    if not words or words[0].startswith("-"):
        return words in (["--help"], ["--version"], [])
    if words[0] not in COMMANDS:
        return False
    group = typer.main.get_command(build(words[0]))
    command, rest = group.commands[words[0]], words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_context(words[0], [word for word in rest if word != "--help"])
    except typer.TyperException:
        return "--help" in rest
    return True
