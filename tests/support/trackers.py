"""A tracker that an installed package brings: it writes what it is told to a file, and misbehaves on request."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from support.commands import Commands, Process
from support.forked_command import SOURCE

DIARY = """
import json, os, time


class Diary:
    package = os.environ.get("DIARY_NEEDS", "")

    def _write(self, **line):
        with open(os.environ["DIARY"], "a") as file:
            file.write(json.dumps({"pid": os.getpid(), **line}) + "\\n")

    def _misbehave(self, where):
        if os.environ.get("DIARY_FAULT") == f"{where} raises":
            raise ConnectionError(f"no route to the tracker\\nin {where}")
        if os.environ.get("DIARY_FAULT") == f"{where} hangs":
            time.sleep(3600)
        if os.environ.get("DIARY_FAULT") == f"{where} floods":
            print("word " * 2_000_000, flush=True)
        if os.environ.get("DIARY_FAULT") == f"{where} exits":
            os._exit(7)

    def open(self, run):
        self._write(call="open", settings=run.settings, name=run.name, id=run.tracker_id)
        self._misbehave("open")
        return "diary-1"

    def log_metrics(self, metrics, step):
        self._write(call="metrics", metrics=metrics, step=step)
        self._misbehave("log")

    def close(self, result):
        self._misbehave("close")
        tables = {"tasks": result.tasks, "samples": result.samples}
        tables = {name: {"columns": table.columns, "rows": table.rows} for name, table in tables.items()}
        self._write(call="close", state=result.state, metrics=result.metrics, **tables)
"""


def install_diary(folder: Path) -> Path:
    """Install the package into a folder for PYTHONPATH; its tracker is called diary."""
    site = folder / "site"
    about = site / "diary-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: diary\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rollbook.trackers]\ndiary = diary:Diary\n")
    (site / "diary.py").write_text(DIARY)
    return site


def read_diary(path: Path, call: str = "") -> list[dict[str, Any]]:
    """What the tracker was told, or the calls of one kind."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if call in ("", line["call"])]


class Logged:
    """Commands with the tracker `diary` installed, and what it was told."""

    def __init__(self, folder: Path, commands: Commands | None = None) -> None:
        self.commands = commands or Commands(folder)
        self.diary = folder / "diary.jsonl"
        self._environ = {"PYTHONPATH": f"{SOURCE}{os.pathsep}{install_diary(folder)}", "DIARY": str(self.diary)}

    def start(self, *words: object, fault: str = "", **environ: str) -> Process:
        return self.commands.start(*words, **self._environ, DIARY_FAULT=fault, **environ)

    def run(self, *words: object, fault: str = "", **environ: str) -> Process:
        return self.start(*words, fault=fault, **environ).wait(60)

    def python(self, *words: object, fault: str = "") -> Process:
        return self.commands.python(*words, **self._environ, DIARY_FAULT=fault).wait(60)

    def read(self, call: str = "") -> list[dict[str, Any]]:
        return read_diary(self.diary, call)
