"""The site: its generated pages say what the code says, its navigation has every page, its checker finds mistakes."""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

import rollbook
from rollbook.cli import COMMANDS
from rollbook.core import FAILURE_KINDS, list_all_parameters
from rollbook.core.schema import SCHEMA_TYPES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "website"))

from check_site import find_problems  # noqa: E402
from reference_pages import make_pages  # noqa: E402


@pytest.fixture(scope="module")
def generated():
    return make_pages()


def test_every_command_and_option_is_on_the_reference_page(generated):
    page = generated["reference/commands.md"]
    assert [name for name in COMMANDS if f"## rollbook {name}\n" not in page] == []
    assert [each.flag for each in list_all_parameters().values() if each.flag not in page] == []


def test_every_failure_kind_schema_and_public_name_has_an_entry(generated):
    assert [kind for kind in FAILURE_KINDS if f"| {kind} |" not in generated["reference/failure-kinds.md"]] == []
    assert [name for name in SCHEMA_TYPES if f"## {name}.json" not in generated["reference/schemas.md"]] == []
    public = [name for name in rollbook.__all__ if not name.startswith("__")]
    assert [name for name in public if f"## {name}\n" not in generated["reference/python-api.md"]] == []


def test_every_exit_code_of_an_error_is_explained(generated):
    codes = {each.exit_code for each in vars(rollbook.errors).values() if hasattr(each, "exit_code")}
    assert [code for code in codes if f"| {code} |" not in generated["reference/exit-codes.md"]] == []


def test_every_environment_variable_of_the_code_is_listed():
    page = (ROOT / "docs/reference/environment-variables.md").read_text()
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = set(re.findall(r'"(_?ROLLBOOK_[A-Z_]+)"', sources))
    assert named
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []


def test_the_navigation_has_every_page(generated):
    class Loader(yaml.SafeLoader):
        pass

    config = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = set(list_pages(config["nav"]))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    project = {"changelog.md", "contributing.md", "architecture.md", "security.md", "code-of-conduct.md"}
    assert listed == written | set(generated) | project


def list_pages(entries):
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from list_pages(value)


def test_the_drawings_have_a_title_and_name_no_colour_of_the_page():
    drawings = sorted((ROOT / "docs/pictures").glob("*.svg"))
    assert len(drawings) == 6
    for path in drawings:
        root = ET.parse(path).getroot()
        assert root.find("{http://www.w3.org/2000/svg}title").text
        texts = root.findall("{http://www.w3.org/2000/svg}text")
        assert texts
        assert all(text.get("fill") for text in texts)  # readable on any background: boxes are filled too


def test_the_checker_finds_broken_links_and_outside_files(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a><a href="https://example.org">out</a>')
    (tmp_path / "b.html").write_text('<h1 id="here">b</h1><img src="x.png">')
    assert find_problems(tmp_path) == []
    (tmp_path / "a.html").write_text(
        '<a href="b.html#gone">b</a><a href="c.html">c</a><script src="//cdn/x.js"></script>'
    )
    assert find_problems(tmp_path) == [
        "a.html links to b.html#gone",
        "a.html links to c.html",
        "a.html loads //cdn/x.js",
    ]
