"""One run as one HTML file: the page, its scripts and as much of the run as fits, with a line on what was left out."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rollbook.book import write_atomically
from rollbook.core import JSON, encode
from rollbook.errors import RollbookError, UsageError
from rollbook.viewer.rollout_pages import MAX_TOKENS, make_rollout_page, make_token_page
from rollbook.viewer.run_cache import CachedRun, RunFolder
from rollbook.viewer.run_pages import make_run_page
from rollbook.viewer.server import WEB_FOLDER
from rollbook.viewer.snapshot import Snapshot
from rollbook.viewer.task_pages import MAX_SAMPLES, make_task_page, make_task_row
from rollbook.viewer.vocabulary import Vocabulary

MAX_TASKS = 2000
MAX_BYTES = 24 << 20
"""What a file holds of rollouts at most; a browser opens that without a pause."""

VENDOR_SCRIPTS = ("uplot", "markdown-it", "temml", "highlight")
_IMPORT = re.compile(r"""^import (?P<names>\{[^}]*\}) from "(?P<path>[^"]+)";\n""", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|const) (?P<name>\w+)", re.MULTILINE)
_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def export_run(folder: RunFolder, out: Path, vocabulary: Vocabulary | None = None) -> str:
    """Write the one run of a folder; gives a line that says what the file holds."""
    if not folder.single:
        raise UsageError(f"--export writes one run: name a run directory, such as {next(folder.names())}")
    if out.suffix != ".html":
        raise UsageError(f"--export {out}: the ending must be .html")
    data = collect_data(folder.name, CachedRun(folder.path(folder.name), vocabulary).take_snapshot())
    try:
        write_atomically(out, make_document(data).encode("utf-8", "replace"))
    except OSError as error:
        raise UsageError(f"--export {out}: {error.strerror}; choose another file") from None
    return f"{out}: {data['left']}"


def collect_data(
    name: str, snapshot: Snapshot, max_tasks: int = MAX_TASKS, max_bytes: int = MAX_BYTES
) -> dict[str, JSON]:
    """The answers that the pages will ask for, task by task until there is no room."""
    rows = range(min(len(snapshot.table), max_tasks))
    held: dict[str, JSON] = {
        "run": {**make_run_page(name, snapshot), "live": False},
        "tasks": [make_task_row(snapshot, row) for row in rows],
        "scale": snapshot.scale,
        "pages": {},
        "rollouts": {},
        "tokens": {},
    }
    size, counts = 0, Counter[str]()
    for row in rows:
        page, played, tokens = _collect_task(snapshot, row)
        size += len(encode([page, played, tokens]))
        if size > max_bytes:
            break
        task = page["id"]
        held["pages"][task], held["rollouts"][task], held["tokens"][task] = page, played, tokens
        counts.update(_count_contents(page, played, tokens))
    return held | {"left": describe_contents(snapshot, len(rows), len(held["pages"]), counts)}


def _count_contents(page: dict[str, JSON], played: dict[str, JSON], tokens: dict[str, JSON]) -> dict[str, int]:
    """What a file holds of a task, and what it does not hold of it."""
    begun = [
        each["sequences"][each["sequence"]]["tokens"] - len(each["ids"]) for all in tokens.values() for each in all
    ]
    unscored = [str(each["sample"]) for each in page["samples"] if each["status"] != "scored"]
    return {
        "rollouts": sum(each["status"] != "pending" for each in page["samples"]),
        "samples": page["asked"] - len(page["samples"]),
        "tries": sum(len(each["tries"]) for each in played.values()) - sum(bool(played[s]["tries"]) for s in unscored),
        "cut": sum(rest > 0 for rest in begun),
    }


def describe_contents(snapshot: Snapshot, shown: int, pages: int, counts: Counter[str]) -> str:
    """What a file holds, and what it does not."""
    report, every = snapshot.numbers["report"], len(snapshot.table)
    played = report["scored"] + sum(report["failed"].values())
    words = f"{shown:,} of {every:,} tasks in the table, {counts['rollouts']:,} of {played:,} played rollouts"
    out = {
        f"the rollouts of {every - pages:,} tasks, to keep the file small": pages < every,
        f"{counts['samples']:,} samples after the first {MAX_SAMPLES} of a task": counts["samples"],
        f"{counts['tries']:,} failed tries at rollouts that were tried again": counts["tries"],
        f"the tokens of {counts['cut']:,} sequences after their first {MAX_TOKENS:,}": counts["cut"],
    }
    missing = "; ".join(what for what, is_so in out.items() if is_so)
    return f"{words}. Left out: {missing or 'nothing'}. Filters, search and comparison need `rollbook view`."


def _collect_task(snapshot: Snapshot, row: int) -> tuple[dict[str, JSON], dict[str, JSON], dict[str, JSON]]:
    """A task's page, its rollouts and their tokens."""
    page = make_task_page(snapshot, row)
    samples = snapshot.samples(row)[:MAX_SAMPLES]
    played = {str(sample): make_rollout_page(snapshot, row, sample, None) for sample in samples}
    tokens = {str(sample): list(_collect_tokens(snapshot, row, sample)) for sample in samples}
    return page, played, {sample: sequences for sample, sequences in tokens.items() if sequences}


def _collect_tokens(snapshot: Snapshot, row: int, sample: int) -> Iterator[JSON]:
    """The beginning of every sequence of a rollout; nothing where no tokens were recorded."""
    try:
        first = make_token_page(snapshot, row, sample, None, 0, 0)
    except RollbookError:
        return
    yield first
    for sequence in range(1, len(first["sequences"])):
        yield make_token_page(snapshot, row, sample, None, sequence, 0)


def make_document(data: dict[str, JSON]) -> str:
    """The file: nothing is loaded, and only these very scripts and styles may run."""
    styles = [(WEB_FOLDER / name).read_text() for name in ("vendor/uplot.css", "app.css")]
    scripts = [
        *(_read_script(WEB_FOLDER / "vendor" / f"{name}.js") for name in VENDOR_SCRIPTS),
        bundle_modules(WEB_FOLDER / "js" / "main.js"),
    ]
    script_hashes, style_hashes = (" ".join(map(_hash, each)) for each in (scripts, styles))
    policy = f"default-src 'none'; script-src {script_hashes}; style-src {style_hashes}; img-src data:; base-uri 'none'"
    head, body = _read_shell()
    held = encode(data).decode().replace("<", "\\u003c")
    return "".join(
        (
            f'<!doctype html><html lang="en"><head><meta http-equiv="Content-Security-Policy" content="{policy}">',
            head,
            *(f"<style>{style}</style>" for style in styles),
            f"</head>{body}",
            f'<script type="application/json" id="rollbook-data">{held}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</html>\n",
        )
    )


def _read_shell() -> tuple[str, str]:
    """The head and the body of our page, without what it loads."""
    page = (WEB_FOLDER / "index.html").read_text()
    head = "".join(re.findall(r"<meta[^>]*>\n|<title>.*</title>\n", page))
    return head, page[page.index("<body>") : page.index("</html>")].replace("</body>", "")


def _read_script(path: Path) -> str:
    return _MAP.sub("", path.read_text()).replace("</script", "<\\/script")


def bundle_modules(main: Path) -> str:
    """A module and what it imports as one script: each in a scope of its own, those that are needed first."""
    found: dict[str, str] = {}
    _collect_modules(main.resolve(), found)
    return "const modules = {};\n" + "\n".join(found.values())


def _collect_modules(path: Path, found: dict[str, str]) -> None:
    text = path.read_text()
    for match in _IMPORT.finditer(text):
        needed = (path.parent / match["path"]).resolve()
        if needed.name not in found:
            _collect_modules(needed, found)
    given = ", ".join(match["name"] for match in _EXPORT.finditer(text))
    body = _IMPORT.sub(lambda match: f"const {match['names']} = modules[{_module_key(match['path'])}];\n", text)
    body = _EXPORT.sub(lambda match: match[0].removeprefix("export "), body)
    found[path.name] = f"modules[{_module_key(path.name)}] = (() => {{\n{body}\nreturn {{ {given} }};\n}})();"


def _module_key(path: str) -> str:
    """The name of a module of ours: no two files have the same."""
    return f'"{path.rpartition("/")[2]}"'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
