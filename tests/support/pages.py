"""Documentation as a session: every page is read from top to bottom, its files written, its commands and snippets run.

```console        lines that begin with `$ ` are run by bash, all blocks of a page in one folder; the lines beneath a
                  command must come out of it, in this order, numbers aside (what else comes out need not be shown)
```python         run by this Python; a ```text block directly beneath is what comes out
```LANG title=F   written to the file F instead
<!-- not run: REASON -->   directly above a block: neither of these. There is a test that counts them.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"(?P<skip><!-- not run: [^>]+ -->\n)?^```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<code>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r"title=(\S+)")
MARK = "\x01"
SHELLS = ("console", "sh", "bash", "shell")
RUNNER = """
import ast, asyncio, inspect, sys
sys.path.insert(0, "")
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
made = eval(code, {"__name__": "__main__"})
if inspect.iscoroutine(made):
    asyncio.run(made)
"""
DEADLINE_S = 120


@dataclass(frozen=True)
class Block:
    """A fenced block; `after` is what stands between it and the block before."""

    language: str
    code: str
    title: str
    skipped: bool
    after: str


def blocks(text):
    """The blocks of a page, in their order."""
    found, end = [], 0
    for match in FENCE.finditer(text):
        title = TITLE.search(match["info"])
        after = text[end : match.start()]
        name = title[1] if title else ""
        found.append(Block(match["language"], match["code"], name, bool(match["skip"]), after))
        end = match.end()
    return found


def commands(block):
    """The commands of a shell block, each with the lines shown beneath it; continued lines are joined."""
    found = []
    for line in block.code.replace("\\\n", " ").splitlines():
        if line.startswith("$ ") or (block.language != "console" and line.strip()):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
    return found


class Session:
    """Runs a page in a folder. `places` maps what a page says to what is there, such as the URL of an endpoint."""

    def __init__(self, folder, places):
        self.folder, self.places = folder, places
        self.ran = 0

    def play(self, text):
        """Everything on a page, from top to bottom."""
        said = None
        for block in blocks(text):
            if block.skipped:
                continue
            if block.title:
                (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / block.title).write_text(self._placed(block.code))
            elif block.language in SHELLS:
                self._shell(block)
            elif block.language in ("python", "py"):
                said = self._python(block)
            elif block.language == "text" and said is not None and not block.after.strip():
                missing = unsaid(block.code.splitlines(), said)
                assert not missing, f"the snippet does not print {missing!r}; it prints:\n{said}"
            if block.language != "python":
                said = None

    def _shell(self, block):
        asked = [(line, shown) for line, shown in commands(block) if shutil.which("jq") or "jq " not in line]
        script = "\n".join(f"printf '{MARK}'; (exit $rc)\n{self._placed(line)}\nrc=$?" for line, _ in asked)
        done = self._run(["bash", "-c", f"rc=0\n{script}\nprintf '{MARK}'; exit $rc"])
        outputs = done.stdout.split(MARK)[1:-1]
        for (line, shown), output in zip(asked, outputs, strict=True):
            missing = unsaid(shown, output)
            assert not missing, f"$ {line}\ndoes not print {missing!r}; it prints:\n{output}"
            self.ran += 1
        assert done.returncode == 0, f"the last of these exited {done.returncode}:\n{block.code}\n{outputs[-1]}"

    def _python(self, block):
        path = self.folder / "snippet.py"
        path.write_text(self._placed(block.code))
        done = self._run([sys.executable, "-c", RUNNER, str(path)])
        assert done.returncode == 0, f"{block.code}\n{done.stdout}"
        self.ran += 1
        return done.stdout

    def _run(self, command):
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self._environ(),
            timeout=DEADLINE_S,
        )

    def _environ(self):
        """Our own source and our own `rollbook`, whatever else is installed; no key, no terminal."""
        programs = self.folder.parent / "bin"
        programs.mkdir(exist_ok=True)
        rollbook = programs / "rollbook"
        if not rollbook.exists():
            call = '-c "from rollbook.cli.main import main; main()"'
            rollbook.write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
            rollbook.chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "110"}

    def _placed(self, text):
        for said, meant in self.places.items():
            text = text.replace(said, meant)
        return text


def unsaid(shown, output):
    """The first line that is shown and does not come out in its turn; None if all do. Numbers may differ."""
    coming = iter([plain(line) for line in output.splitlines()])
    for line in shown:
        wanted = plain(line)
        if wanted and wanted != "..." and not any(came == wanted for came in coming):
            return line
    return None


def plain(line):
    """A line without what may differ from run to run: numbers, digests, ports, and the space between columns."""
    line = re.sub(r"http://127\.0\.0\.1:\d+", "http://localhost:#", line)
    line = re.sub(r"\b[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"\d\.\d+-\d\.\d+", "#", line)
    line = re.sub(r"(?<![\w@^-])\d+(\.\d+)?(e-?\d+)?", "#", line)
    return " ".join(line.replace("localhost:8000", "localhost:#").split())
