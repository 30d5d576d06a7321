"""Check a built site: every link leads to a page and an anchor that exist, and nothing is loaded from another host.

python website/check_site.py build/site
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""The attributes from which a browser loads files when it shows a page."""
NOT_LOADED = {"canonical", "next", "prev", "alternate"}


class SitePage(HTMLParser):
    """The links, the anchors and the loaded files of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag names."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and not NOT_LOADED & set(values.get("rel", "").split()):
            self.loaded.append(values.get(LOADED[tag], ""))


def find_problems(site: Path) -> list[str]:
    """Return every broken link and every file that another host would have to deliver."""
    pages = {path: SitePage(path) for path in site.rglob("*.html") if path.name != "404.html"}
    problems = [
        f"{path.relative_to(site)} loads {url}" for path, page in pages.items() for url in page.loaded if _leaves(url)
    ]
    for path, page in pages.items():
        broken = [link for link in page.links if not _leaves(link) and not _exists(link, path, pages)]
        problems += [f"{path.relative_to(site)} links to {link}" for link in broken]
    return sorted(set(problems))


def _leaves(url: str) -> bool:
    return bool(urlsplit(url).netloc or urlsplit(url).scheme in ("mailto", "javascript"))


def _exists(link: str, path: Path, pages: dict[Path, SitePage]) -> bool:
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if target.is_dir():
        target = target / "index.html"
    if not target.exists():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].anchors


def main() -> None:
    """Print the problems; exit with 1 if there are any."""
    site = Path(sys.argv[1]).resolve()
    problems = find_problems(site)
    fine = "every link leads to a page and nothing is loaded from other hosts"
    print("\n".join(problems) or f"{len(list(site.rglob('*.html')))} pages: {fine}")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
