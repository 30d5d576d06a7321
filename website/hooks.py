"""Hooks of mkdocs: add the generated pages and the project's files, and adapt our Markdown to that of the site."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from reference_pages import make_llms_text, make_pages

ROOT = Path(__file__).parents[1]
PROJECT_FILES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "ARCHITECTURE.md": "architecture.md",
    "SECURITY.md": "security.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
"""Files of the repository's root that are pages of the site too."""
SUMMARY = (
    "Rollbook runs a language model many times on every task of an environment, scores each attempt, and accounts for"
    " every one."
)
SOURCE_LINK = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)*(?:src|tests|benchmarks|examples|\.github|LICENSE|Makefile|README\.md)[^)]*\)"
)
TITLE = re.compile(r"^(```\w*) title=([^\s\"]+)$", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not files below docs."""
    for path, text in make_pages().items():
        files.append(File.generated(config, path, content=text))
    for name, path in PROJECT_FILES.items():
        text = (ROOT / name).read_text().replace("](docs/", "](")
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Adapt titles of code blocks, links to the project's files and links to source files, which the site lacks."""
    markdown = TITLE.sub(r'\1 title="\2"', markdown)
    for name, path in PROJECT_FILES.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{re.escape(name)}", f"]({_climb(page)}{path}", markdown)
    return SOURCE_LINK.sub(r"\1", markdown)


def _climb(page: Page) -> str:
    return "../" * page.file.src_uri.count("/")


def on_post_build(config: Any) -> None:
    """Write llms.txt beside the pages."""
    site = Path(config.site_dir)
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    titles = {str(path.relative_to(site)): _read_title(path) for path in pages}
    (site / "llms.txt").write_text(make_llms_text(titles, SUMMARY))


def _read_title(path: Path) -> str:
    found = re.search(r"<title>(.*?)</title>", path.read_text(), re.DOTALL)
    return found[1].removesuffix(" - Rollbook").strip() if found else path.stem
