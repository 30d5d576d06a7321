"""Words and phrases that Rollbook no longer uses, in the documentation, in messages and docstrings, in make's help.

The list has only what is always wrong here. Code is not prose: fenced blocks and `code` in Markdown are skipped, and so
are string literals without a blank. A new entry needs its replacement.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import rollbook

HOME = Path(rollbook.__file__).parent
ROOT = HOME.parent.parent

RETIRED = {
    # Archaic verbs and words
    r"mend(s|ed|ing)?": "fix",
    r"heed(s|ed|ing)?": "handle, obey or read",
    r"bid(s|den|ding)?": "ask or tell",
    r"thereof|therein|hereof|whereof": "of it, in it",
    r"whoever|whomever|whosoever": "any user, every caller: name who it is",
    r"lest": "so that ... not",
    r"befall(s|en)?|befell": "happen to",
    r"upon which": "and then",
    r"beside": "next to, with",
    r"afar|thither|hither|whence": "from there, to there",
    # Names that were metaphors
    r"muster(s|ed|ing)?": "start or collect the workers",
    r"obituar(y|ies)": "record of a dead worker",
    r"forem[ae]n": "driver",
    r"crews?": "worker pool, or driver",
    r"courts?": "judge",
    r"dut(y|ies)": "task, or work",
    r"(weaker|the|these|its|no|four) walls": "isolation",
    r"walls (could|are|were|stand|hold)": "isolation",
    r"roll call": "name the check",
    # Phrases with an ordinary technical term
    r"by lot": "at random, or Monte Carlo",
    r"(time|s|seconds|more) on the wall": "wall-clock time",
    r"signs? of life": "heartbeat, or keep-alive",
    r"(those|that|which) come along": "built-in, included",
    r"hangs? up|hung up": "close the connection",
    r"speaks? back": "reply to the model",
    r"doubled rollouts?": "duplicate rollouts",
    r"the disk takes no more": "the disk is full",
    r"play(s|ed|ing)? (a|an|the|its|his|every|each|all|whole|our|one) (rollouts?|rows?|samples?|tasks?)": "run",
    r"(rollouts?|rows?|samples?|tasks?) (is|are|was|were|has been|have been|not been|to be) played": "run",
    r"played (rollouts?|rows?|samples?|tasks?)": "finished",
    r"(go|goes|going|went|gone) on (with|in|from|without|here|there|otherwise)": "continue",
    r"(run|rollout|search|work) (is|are|was) going on": "in progress",
    r"while (they|it|a run|the run) go(es)? on": "while it runs",
    # Personification and riddles
    r"nobody (knows|asks|asked|needs|uses|used|counts|counted|can say|says|serves|carries)": "name what is missing",
    r"(own|run's|user's) affair": "is set by, is the responsibility of",
    r"of (its|their|our) own making": "that it made itself",
    r"(policy's|model's|environment's|its own) doing": "caused by",
    r"changes its mind": "changes",
    r"(is|are) not as (it|they) should be": "is invalid",
    r"(is|are) not what (it was|they were)": "changed",
    r"not to be had": "not available",
    r"no word of": "no message about",
    r"spoke unasked": "sent a message without a request",
    r"whose place": "what it replaces",
    r"nothing that JSON can say": "cannot be written as JSON",
    r"(lies|lie|lay) (in|on|beside|there|here|outside|where|next|under|beneath)": "is in, is there",
    r"had to lie|has to lie|to lie (in|where|beside)": "must be in",
    r"(is|are) no (object|list|text|number|whole number|mapping|file|price|job id|run directory|damage)": "is not a",
    r"is nobody": "there is no one, no server, no scheduler",
    r"comes? to something else": "gives another result",
    r"which is to say|that is to say": "that is",
    r"as it were|so to speak": "leave it out",
}
"""What is no longer written, as a regular expression of whole words, and what to write instead."""

TASK_TEXTS = "environments/builtin"
"""Texts of tasks, which models read: changing one changes results, so only the docstrings there are checked."""

TOOL_TEXTS = "environments/builtin/workplace"
"""Docstrings that are descriptions of tools, for models too."""

_PHRASES = [(re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE), instead) for phrase, instead in RETIRED.items()]
_ANY = re.compile(rf"\b(?:{'|'.join(RETIRED)})\b", re.IGNORECASE)
_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE = re.compile(r"`(?:[^`\n]|\n(?!\s*\n))*`")
"""Code may go over the end of a line, but not over a blank line."""


class Prose(NamedTuple):
    line: int
    text: str


Reader = Callable[[str], Iterator[Prose]]


def read_markdown(text: str) -> Iterator[Prose]:
    """Yield the lines outside of fenced blocks, without `code`."""
    lines, fenced = list[str](), False
    for line in text.splitlines():
        is_fence = bool(_FENCE.match(line))
        lines.append("" if fenced or is_fence else line)
        fenced ^= is_fence
    for number, line in enumerate(_drop_code("\n".join(lines)).split("\n"), 1):
        yield Prose(number, line)


def _drop_code(text: str) -> str:
    """Remove `code`, but no newline, so that line numbers stay."""
    return _CODE.sub(lambda found: "`" + "\n" * found[0].count("\n"), text)


def read_python(text: str, docstrings_only: bool = False) -> Iterator[Prose]:
    """Yield the lines of every string literal that has a blank in it, docstrings included, without code."""
    tree = ast.parse(text)
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in inside or (docstrings_only and id(node) not in docstrings):
            continue
        words = _join_literal(node)
        if " " in words:
            for offset, line in enumerate(_drop_code(words).split("\n")):
                if not line.lstrip().startswith((">>>", "...")):
                    yield Prose(getattr(node, "lineno", 0) + offset, line)


def _join_literal(node: ast.AST) -> str:
    """Return the text of a literal, with {} for what is filled in; empty for other nodes."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def read_make_help(text: str) -> Iterator[Prose]:
    """Yield the help of each target, and what recipes print."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"## (.+)$|\becho (.+)$", line):
            yield Prose(number, found[1] or found[2])


def find_retired(path: Path, prose: Iterator[Prose]) -> list[str]:
    """Return a line for every retired phrase: file, line, phrase, and what to write instead."""
    return [
        f"{path}:{line}: {found[0]!r}: write {instead!r}"
        for line, text in prose
        if _ANY.search(text)
        for phrase, instead in _PHRASES
        if (found := phrase.search(text))
    ]


def list_pages() -> list[Path]:
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob(".github/**/*.md"),
    ]
    return sorted(pages)


def test_the_documentation_has_no_retired_phrase() -> None:
    found = [
        line for page in list_pages() for line in find_retired(page.relative_to(ROOT), read_markdown(page.read_text()))
    ]
    assert not found, "\n" + "\n".join(found)


def test_messages_and_docstrings_have_no_retired_phrase() -> None:
    found = list[str]()
    for path in sorted(HOME.rglob("*.py")):
        place = path.relative_to(HOME).as_posix()
        if not place.startswith(TOOL_TEXTS):
            prose = read_python(path.read_text(), docstrings_only=place.startswith(TASK_TEXTS))
            found += find_retired(path.relative_to(ROOT), prose)
    assert not found, "\n" + "\n".join(found)


def test_the_help_of_make_has_no_retired_phrase() -> None:
    found = find_retired(Path("Makefile"), read_make_help((ROOT / "Makefile").read_text()))
    assert not found, "\n" + "\n".join(found)


def test_the_viewer_has_no_retired_phrase() -> None:
    found = list[str]()
    for path in sorted(HOME.glob("viewer/web/**/*.*")):
        if path.suffix in (".js", ".html") and "vendor" not in path.parts:
            lines = (Prose(number, line) for number, line in enumerate(path.read_text().splitlines(), 1))
            found += find_retired(path.relative_to(ROOT), lines)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("read", "text", "line"),
    [
        (read_markdown, "# Title\n\nResume it once the verifier is mended.\n", 3),
        (read_python, 'x = 1\nraise ValueError(f"{x}: mended by hand")\n', 2),
        (read_python, 'def f():\n    """Do it.\n\n    It was mended by hand.\n    """\n', 4),
        (read_make_help, "all:\n\ttrue\n\nrun: all ## Run what was mended.\n", 4),
    ],
)
def test_a_planted_phrase_is_named_with_its_place_and_replacement(read: Reader, text: str, line: int) -> None:
    assert find_retired(Path("page"), read(text)) == [f"page:{line}: 'mended': write 'fix'"]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (read_markdown, "```text\nmended\n```\nUse `mended` here, `make\nmended` there, or recommended.\n"),
        (read_python, 'kind = "crew"\n# mended by hand\n"""Read `crew` as driver."""\n'),
        (read_make_help, "mended: all\n\tmend it\n"),
    ],
)
def test_code_and_other_words_are_left_alone(read: Reader, text: str) -> None:
    assert find_retired(Path("page"), read(text)) == []
