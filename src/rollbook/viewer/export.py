"""One run as one HTML file: the page, its scripts and as much of the run as fits, with a line on what was left out.

report.html is such a file without tasks and rollouts: the numbers, and for every environment charts and its slowest
tasks.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from rollbook.book import Book, write_atomically
from rollbook.core import (
    JSON,
    MEDIA_TYPES,
    OTHER_SUFFIX,
    REFERENCE_PREFIX,
    as_messages,
    decode,
    encode,
    list_sources,
    read_reference,
)
from rollbook.errors import BookError, RollbookError, UsageError
from rollbook.reports import Report, RunData
from rollbook.stats import Columns, Floats, Ints, TaskStats, finite_or_none
from rollbook.viewer.rollout_pages import MAX_TOKENS, make_rollout_page, make_token_page
from rollbook.viewer.run_cache import CachedRun, RunFolder
from rollbook.viewer.run_overview import (
    MAX_REWARD,
    clip_rewards,
    make_histogram,
    make_pass_curve,
    make_run_page,
    make_run_summary,
    reward_range,
)
from rollbook.viewer.snapshot import Snapshot, find_state, make_plain_report, replace_surrogates
from rollbook.viewer.task_pages import MAX_SAMPLES, make_task_page, make_task_row
from rollbook.viewer.vocabulary import Vocabulary

WEB_FOLDER = Path(__file__).with_name("web")
MAX_TASKS = 2000
MAX_BYTES = 24 << 20
"""The most bytes of rollouts in a file; a browser opens that without a pause."""

CHART_SCRIPTS = ("uplot",)
VENDOR_SCRIPTS = (*CHART_SCRIPTS, "markdown-it", "temml", "highlight")
MAX_DOTS = 1500
"""More dots are neither distinguishable nor fast to open: of more, a random selection is drawn."""

MAX_LISTED = 10
Bounds = tuple[float, float]
_IMPORT = re.compile(r"""^import (?P<names>\{[^}]*\}) from "(?P<path>[^"]+)";\n""", re.MULTILINE)
_EXPORT = re.compile(r"^export (?:async )?(?:function|const) (?P<name>\w+)", re.MULTILINE)
_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def export_run(folder: RunFolder, out: Path, vocabulary: Vocabulary | None = None) -> str:
    """Write the one run of a folder to a file; return a line that describes its contents."""
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
    """Return the data of the pages, task by task until the file is full."""
    rows = range(min(len(snapshot.table), max_tasks))
    contents: dict[str, JSON] = {
        "run": {**make_run_page(name, snapshot), "live": False},
        "tasks": [make_task_row(snapshot, row) for row in rows],
        "scale": snapshot.scale,
        "pages": {},
        "rollouts": {},
        "tokens": {},
        "media": {},
    }
    size, counts = 0, Counter[str]()
    for row in rows:
        page, played, tokens = _collect_task(snapshot, row)
        media = _collect_media(snapshot.book, page, played, contents["media"])
        size += len(encode([page, played, tokens, media]))
        if size > max_bytes:
            break
        task = page["id"]
        contents["media"] |= media
        contents["pages"][task], contents["rollouts"][task], contents["tokens"][task] = page, played, tokens
        counts.update(_count_contents(page, played, tokens))
    return contents | {"left": describe_contents(snapshot, len(rows), len(contents["pages"]), counts)}


def _count_contents(page: dict[str, JSON], played: dict[str, JSON], tokens: dict[str, JSON]) -> dict[str, int]:
    """Count what a file contains and lacks of a task."""
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
    """Describe what a file contains and lacks."""
    report, every = snapshot.numbers["report"], len(snapshot.table)
    played = report["scored"] + sum(report["failed"].values())
    words = f"{shown:,} of {every:,} tasks in the table, {counts['rollouts']:,} of {played:,} finished rollouts"
    out = {
        f"the rollouts of {every - pages:,} tasks, to keep the file small": pages < every,
        f"{counts['samples']:,} samples after the first {MAX_SAMPLES} of a task": counts["samples"],
        f"{counts['tries']:,} failed tries at rollouts that were tried again": counts["tries"],
        f"the tokens of {counts['cut']:,} sequences after their first {MAX_TOKENS:,}": counts["cut"],
    }
    missing = "; ".join(what for what, is_so in out.items() if is_so)
    return f"{words}. Left out: {missing or 'nothing'}. Filters, search and comparison need `rollbook view`."


def _collect_task(snapshot: Snapshot, row: int) -> tuple[dict[str, JSON], dict[str, JSON], dict[str, JSON]]:
    """Return a task's page, its rollouts and their tokens."""
    page = make_task_page(snapshot, row)
    samples = snapshot.samples(row)[:MAX_SAMPLES]
    played = {str(sample): make_rollout_page(snapshot, row, sample, None) for sample in samples}
    tokens = {str(sample): list(_collect_tokens(snapshot, row, sample)) for sample in samples}
    return page, played, {sample: sequences for sample, sequences in tokens.items() if sequences}


def _collect_media(
    book: Book, page: dict[str, JSON], played: dict[str, JSON], held: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Return the images and sounds of a task and its rollouts as data URLs by name, apart from those in `held`."""
    lines = [each["raw"] for each in played.values() if each["raw"] and REFERENCE_PREFIX in each["raw"]]
    messages = [*page["messages"], *(message for line in lines for message in decode(line)["messages"])]
    names = {read_reference(source) for source in list_sources(as_messages(messages))} - {None, *held}
    found: dict[str, JSON] = {}
    for name in sorted(filter(None, names)):
        with suppress(BookError):  # the page says that it cannot be shown
            media = book.media.read(name)
            if media.suffix not in ("svg", OTHER_SUFFIX):  # the one can hold scripts, the other is not shown
                found[name] = f"data:{MEDIA_TYPES[media.suffix]};base64,{base64.b64encode(media.data).decode()}"
    return found


def _collect_tokens(snapshot: Snapshot, row: int, sample: int) -> Iterator[JSON]:
    """Yield the beginning of every sequence of a rollout; nothing where no tokens were recorded."""
    try:
        first = make_token_page(snapshot, row, sample, None, 0, 0)
    except RollbookError:
        return
    yield first
    for sequence in range(1, len(first["sequences"])):
        yield make_token_page(snapshot, row, sample, None, sequence, 0)


def write_report_page(read: RunData, report: Report) -> Path:
    """Write report.html into the run directory."""
    path = Path(report.path) / ("report.merged.html" if report.merged else "report.html")
    document = make_document(collect_report(read, report), CHART_SCRIPTS)
    write_atomically(path, document.encode("utf-8", "replace"))
    return path


def collect_report(read: RunData, report: Report) -> dict[str, JSON]:
    """Return what report.html shows: the summary of a run, and a section for every environment."""
    plain = make_plain_report(report) | {"missing": report.missing[:MAX_LISTED]}
    name = replace_surrogates(Path(report.path).resolve().name)
    run = make_run_summary(
        name, read.book, plain, find_state(read.book, report.requested, report.scored, report.pending)
    )
    run["live"] = False
    if report.disagreeing:
        run["notes"].append(report.disagreement)
    run["sections"] = [make_section(read, env, plain["environments"][name]) for env, name in enumerate(read.names)]
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return {"run": run, "left": f"The report of run {report.run}, written {made}. Rollouts: `rollbook view`."}


def make_section(read: RunData, env: int, metrics: dict[str, JSON]) -> dict[str, JSON]:
    """Return the charts of one environment and its slowest tasks."""
    columns = read.columns(env)
    tasks = TaskStats(columns, metrics["threshold"])
    return {
        "env": metrics["env"],
        "note": "" if len(columns) else "nothing scored yet",
        "curve": make_pass_curve(metrics),
        "histogram": make_histogram(columns.reward),
        "caption": f"{len(columns):,} rollouts{_describe_clipped(columns.reward)}",
        "tasks": _make_task_dots(read, tasks),
        "lengths": _make_length_dots(columns),
        "slowest": list(_list_slowest(read, tasks)),
    }


def _make_task_dots(read: RunData, tasks: TaskStats) -> dict[str, JSON]:
    """Return every task as a dot at its mean reward; the height only separates the dots."""
    drawn, means = _choose_drawn(len(tasks)), clip_rewards(tasks.means)
    labels = [f"{_task_id(read, tasks, at)}: {tasks.means[at]:.6g} of {tasks.n[at]}" for at in drawn.tolist()]
    heights = np.random.default_rng(0).random(len(tasks))
    caption = _describe_drawn(len(tasks), "tasks") + _describe_clipped(tasks.means)
    return _make_dots(means[drawn], heights[drawn], labels, caption, reward_range(means), (0.0, 1.0))


def _make_length_dots(columns: Columns) -> dict[str, JSON]:
    """Return every rollout as a dot at its completion tokens and its reward, with equal ones slightly apart."""
    drawn, rewards = _choose_drawn(len(columns)), clip_rewards(columns.reward)
    tokens = columns.completion_tokens
    low, high = reward_range(rewards)
    apart = (np.random.default_rng(1).random(len(drawn)) - 0.5) * 0.06 * (high - low)
    labels = [f"{tokens[at]} tokens: {columns.reward[at]:g}" for at in drawn.tolist()]
    room = 0.05 * (high - low)
    caption = _describe_drawn(len(columns), "rollouts") + _describe_clipped(columns.reward)
    x_range = (0.0, float(tokens.max(initial=1)))
    return _make_dots(tokens[drawn], rewards[drawn] + apart, labels, caption, x_range, (low - room, high + room))


def _make_dots(
    x: Floats | Ints, y: Floats, labels: list[str], caption: str, x_range: Bounds, y_range: Bounds
) -> dict[str, JSON]:
    """Return dots from left to right, as the chart needs them."""
    order = np.argsort(x, kind="stable").tolist()
    axes = {"x": x[order].tolist(), "y": y[order].tolist(), "x_range": x_range, "y_range": y_range}
    return {**axes, "labels": [labels[at] for at in order], "caption": caption}


def _choose_drawn(count: int) -> Ints:
    """Return the indices to draw: all, or MAX_DOTS random ones."""
    if count <= MAX_DOTS:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, MAX_DOTS, replace=False))


def _describe_drawn(count: int, what: str) -> str:
    return f"{MAX_DOTS:,} of {count:,} {what}" if count > MAX_DOTS else f"{count:,} {what}"


def _describe_clipped(values: Floats) -> str:
    """Return how many values are too far out to be drawn where they are, where there are any."""
    count = int((~(np.abs(values) <= MAX_REWARD)).sum())
    return f"; {count:,} beyond {MAX_REWARD:g} drawn at the edge" if count else ""


def _list_slowest(read: RunData, tasks: TaskStats) -> Iterator[dict[str, JSON]]:
    """Yield the tasks that took longest, with their means over scored rollouts."""
    seconds, tokens = tasks.sum_column("seconds") / tasks.n, tasks.sum_column("completion_tokens") / tasks.n
    for at in np.argsort(-seconds, kind="stable")[:MAX_LISTED].tolist():
        yield {
            "id": _task_id(read, tasks, at),
            "seconds": float(seconds[at]),
            "n": int(tasks.n[at]),
            "mean": finite_or_none(tasks.means[at]),
            "completion_tokens": float(tokens[at]),
        }


def _task_id(read: RunData, tasks: TaskStats, at: int) -> str:
    return read.book.tasks.read(int(tasks.rows[at])).id


def make_document(data: dict[str, JSON], vendor_scripts: Sequence[str] = VENDOR_SCRIPTS) -> str:
    """Return the file: nothing is loaded, and only these very scripts and styles may run."""
    styles = [(WEB_FOLDER / name).read_text() for name in ("vendor/uplot.css", "app.css")]
    scripts = [
        *(_read_script(WEB_FOLDER / "vendor" / f"{name}.js") for name in vendor_scripts),
        bundle_modules(WEB_FOLDER / "js" / "main.js"),
    ]
    script_hashes, style_hashes = (" ".join(map(_hash, each)) for each in (scripts, styles))
    policy = f"default-src 'none'; script-src {script_hashes}; style-src {style_hashes}; img-src data:; "
    policy += "media-src data:; base-uri 'none'"
    head, body = _read_shell()
    contents = encode(data).decode().replace("<", "\\u003c")
    return "".join(
        (
            f'<!doctype html><html lang="en"><head><meta http-equiv="Content-Security-Policy" content="{policy}">',
            head,
            *(f"<style>{style}</style>" for style in styles),
            f"</head>{body}",
            f'<script type="application/json" id="rollbook-data">{contents}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</html>\n",
        )
    )


def _read_shell() -> tuple[str, str]:
    """Return the head and the body of index.html, without the files it loads."""
    page = (WEB_FOLDER / "index.html").read_text()
    head = "".join(re.findall(r"<meta[^>]*>\n|<title>.*</title>\n", page))
    return head, page[page.index("<body>") : page.index("</html>")].replace("</body>", "")


def _read_script(path: Path) -> str:
    return _MAP.sub("", path.read_text()).replace("</script", "<\\/script")


def bundle_modules(main: Path) -> str:
    """Return a module and its imports as one script: each in its own scope, dependencies first."""
    modules: dict[str, str] = {}
    _collect_modules(main.resolve(), modules)
    return "const modules = {};\n" + "\n".join(modules.values())


def _collect_modules(path: Path, modules: dict[str, str]) -> None:
    text = path.read_text()
    for match in _IMPORT.finditer(text):
        needed = (path.parent / match["path"]).resolve()
        if needed.name not in modules:
            _collect_modules(needed, modules)
    names = ", ".join(match["name"] for match in _EXPORT.finditer(text))
    body = _IMPORT.sub(lambda match: f"const {match['names']} = modules[{_module_key(match['path'])}];\n", text)
    body = _EXPORT.sub(lambda match: match[0].removeprefix("export "), body)
    modules[path.name] = f"modules[{_module_key(path.name)}] = (() => {{\n{body}\nreturn {{ {names} }};\n}})();"


def _module_key(path: str) -> str:
    """Return the key of a module, its file name, which is unique."""
    return f'"{path.rpartition("/")[2]}"'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
