"""Every mistake of the table is one line that says what to do, with its exit code, and leaves nothing behind."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.commands import Commands
from support.mistakes import DEADLINE_S, MISTAKES, RUN_LINE, Mistake, serve_wrong_endpoints, write_files

OURS = {".said", "__pycache__"}


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    """The command line in a folder with the files that the table names."""
    started = Commands(tmp_path_factory.mktemp("mistakes"))
    write_files(started.folder)
    assert started.run(*shlex.split(RUN_LINE)).code == 0
    yield started
    started.close()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of endpoints that are wrong."""
    with serve_wrong_endpoints() as address:
        yield address


def list_files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder with its bytes, and every folder."""
    paths = [path for path in folder.rglob("*") if not OURS & set(path.relative_to(folder).parts)]
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in paths}


def test_the_table_has_forty_mistakes_and_none_twice():
    assert len({(mistake.line, tuple(mistake.environ.items())) for mistake in MISTAKES}) == len(MISTAKES) >= 40


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.line[:60])
def test_a_mistake_is_one_line_that_says_what_to_do(commands: Commands, server: str, mistake: Mistake):
    before = list_files(commands.folder)
    words = shlex.split(mistake.line.replace("{server}", server))
    done = commands.run(*words, within_s=DEADLINE_S, **mistake.environ)
    assert done.stderr.startswith("rollbook: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert (done.code, done.stdout) == (mistake.code, ""), done.stderr
    assert [words for words in mistake.says if words not in done.stderr] == [], done.stderr
    assert [words for words in mistake.never if words in done.stderr] == [], done.stderr
    assert list_files(commands.folder) == before
    assert commands.nothing_left()
