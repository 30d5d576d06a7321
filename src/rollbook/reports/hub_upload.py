"""Upload the rollouts of a run to the Hugging Face Hub: Parquet files and a dataset card, in one commit.

The card says only what the run directory says. The token is that of the client (HF_TOKEN, or a login); it is never
printed or written.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from rollbook.book import Book, rollouts
from rollbook.core import JSON
from rollbook.errors import UsageError
from rollbook.reports.export import (
    BATCH_ROWS,
    COLUMN_KINDS,
    CountedRollouts,
    ExportCounts,
    check_filter_names,
    make_rows,
)
from rollbook.reports.report import Report, make_report
from rollbook.reports.table_files import write_parquet
from rollbook.stats import Expression

HUB_SCHEME = "hf://"
SHARD_ROWS = 50_000
_is_dataset_name = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*").fullmatch
_is_license = re.compile(r"[A-Za-z0-9][\w.-]*").fullmatch


class HubUpload(msgspec.Struct, frozen=True):
    """Where a run was uploaded to, and what was uploaded."""

    url: str
    counts: ExportCounts


def upload_rollouts(
    run: str | Path, target: str, keep: Expression | None = None, license_id: str = "unknown"
) -> HubUpload:
    """Upload a run's scored rollouts to hf://ORG/NAME, a dataset that is created private, or has no data yet."""
    name = _parse_target(target)
    if not _is_license(license_id):
        raise UsageError(f"--license {license_id}: write the identifier of a license, such as cc-by-4.0")
    hub = _import_client(target)
    book = Book(run)
    book.check_tasks()
    if keep is not None:
        check_filter_names(book, keep)
    seen = CountedRollouts(rollouts(book, tokens=True))
    with tempfile.TemporaryDirectory(prefix="rollbook-export-") as folder:
        shards, written = _write_shards(Path(folder), make_rows(book, "parquet", keep, seen), f"--to {target}")
        if not written:
            why = f"--keep '{keep.text}' matches none of {seen.count}" if keep else "there are no"
            raise UsageError(f"--to {target}: {why} scored rollouts, so nothing was uploaded")
        counts = ExportCounts(written, book.plan.requested - seen.count, seen.count - written)
        card = make_card(book, make_report(run, write=False), counts, license_id, name, keep)
        return HubUpload(_commit(hub, target, name, {**shards, "README.md": card.encode()}, book), counts)


def _parse_target(target: str) -> str:
    name = target.removeprefix(HUB_SCHEME)
    if name == target or not _is_dataset_name(name):
        raise UsageError(f"--to {target}: write hf://ORG/NAME, the name of a dataset on the Hugging Face Hub")
    return name


def _import_client(target: str) -> Any:
    """Import the client; refuse where it or a token is missing, before anything is read."""
    try:
        hub: Any = import_module("huggingface_hub")
    except ImportError:
        raise UsageError(f"--to {target} needs huggingface_hub: pip install 'rollbook[hf]'") from None
    if not hub.get_token():
        raise UsageError(f"--to {target}: no token: set HF_TOKEN to one that may write, or log in with `hf auth login`")
    hub.utils.disable_progress_bars()
    return hub


def _write_shards(folder: Path, rows: Iterator[dict[str, JSON]], what: str) -> tuple[dict[str, Path], int]:
    """Write rows as Parquet files of at most SHARD_ROWS; return them by their names in the dataset, and the rows."""
    paths: list[Path] = []
    total = 0
    while not paths or total == len(paths) * SHARD_ROWS:
        path = folder / f"{len(paths)}.parquet"
        count = write_parquet(path, COLUMN_KINDS, islice(rows, SHARD_ROWS), BATCH_ROWS, what)
        if paths and not count:
            break
        paths.append(path)
        total += count
    names = (f"data/train-{number:05}-of-{len(paths):05}.parquet" for number in range(len(paths)))
    return dict(zip(names, paths, strict=True)), total


def _commit(hub: Any, target: str, name: str, files: Mapping[str, Path | bytes], book: Book) -> str:
    """Create the dataset where there is none, and add all files in one commit; return its address."""
    api = hub.HfApi()
    operations = [hub.CommitOperationAdd(path, content) for path, content in files.items()]
    try:
        url = api.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
        if any(path.startswith("data/") for path in api.list_repo_files(name, repo_type="dataset")):
            raise UsageError(f"--to {target}: has data already: choose another name, or delete its folder data/")
        message = f"Rollouts of run {book.manifest.run}"
        api.create_commit(name, operations, commit_message=message, repo_type="dataset")
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001  the classes depend on the version of the client
        server = urlsplit(api.endpoint).netloc.rpartition("@")[2]
        words = _describe_error(error, hub.get_token())
        raise UsageError(f"--to {target}: {words if server in words else f'{server}: {words}'}") from None
    return str(url)


def _describe_error(error: Exception, token: str | None) -> str:
    """Return the client's message on one line, without the token."""
    words = " ".join(str(error).split())[:300] or type(error).__name__
    return words.replace(token, "***") if token else words


COLUMN_NOTES = {
    "task": "the id of the task",
    "sample": "the number of the attempt at the task, from 0",
    "env": "the environment of the task",
    "model": "the model that answered",
    "seed": "the seed of the sample",
    "reward": "the reward of the verifier",
    "parts": "the parts of the reward (JSON)",
    "answer": "the answer that the verifier read",
    "expected": "the answer of the task",
    "prompt_tokens": "tokens of all prompts",
    "completion_tokens": "sampled tokens",
    "truncated": "whether a limit ended the rollout",
    "seconds": "seconds of the rollout",
    "messages": "the conversation (JSON)",
    "turns": "the model calls, with token ids where the server gave them (JSON)",
    "outcome": "what the environment recorded at the end (JSON)",
    "info": "what the verifier recorded (JSON)",
    "fields": "further fields of the task (JSON)",
}


def make_card(
    book: Book, report: Report, counts: ExportCounts, license_id: str, name: str, keep: Expression | None
) -> str:
    """Return the dataset card: a YAML header that the Hub reads, then what the run directory says about the run."""
    manifest, sampling = book.manifest, book.manifest.sampling
    facts = {
        "environment": ", ".join(manifest.environments),
        "model": manifest.model.name,
        "run": manifest.run,
        "tasks": str(len(book.tasks)),
        "samples of a task": str(manifest.samples),
        "rollouts requested": str(report.requested),
        "rollouts scored": str(report.scored),
        "rollouts failed": str(sum(report.failed.values())),
        "rollouts in this dataset": str(counts.written) + (f", those with `{keep.text}`" if keep else ""),
        "mean reward of the scored": "-" if report.overall.mean is None else f"{report.overall.mean:.4f}",
        "temperature, top_p, max_tokens": f"{sampling.temperature:g}, {sampling.top_p:g}, {sampling.max_tokens}",
        "license": license_id,
    }
    header = [
        "---",
        f"license: {license_id}",
        "tags:",
        "- rollbook",
        "- rollouts",
        "configs:",
        "- config_name: default",
    ]
    header += ["  data_files:", "  - split: train", "    path: data/train-*.parquet", "---"]
    body = [f"# {name.partition('/')[2]}", "", "Rollouts of a language model with their scores, made by Rollbook.", ""]
    return "\n".join([*header, "", *body, *_make_table(("fact", "value"), facts), "", "## Columns", ""]) + (
        "\n".join([*_make_table(("column", "content"), COLUMN_NOTES), ""])
    )


def _make_table(names: tuple[str, str], rows: Mapping[str, str]) -> list[str]:
    cells = [(key, re.sub(r"([|<\\])", r"\\\1", value).replace("\n", " ")) for key, value in rows.items()]
    return [f"| {names[0]} | {names[1]} |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in cells)]
