"""Programs named like Slurm's: they note how they were called, and say what they are told to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

FAKE = """#!{python}
import json, os, pathlib, re, sys
here = pathlib.Path(__file__).parent
with open(here / "calls.jsonl", "a") as log:
    log.write(json.dumps([pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]) + "\\n")
said = json.loads((here / "said.json").read_text())
name = pathlib.Path(sys.argv[0]).name
if name == "sbatch":
    array = next((int(w.rpartition("-")[2]) + 1 for w in sys.argv if w.startswith("--array=")), 1)
    taken = json.loads((here / "taken.json").read_text())
    if sum(taken) + array > said.get("limit", 10**9):
        sys.exit("sbatch: error: AssocMaxSubmitJobLimit\\nsbatch: error: Batch job submission failed: Job violates "
                 "accounting/QOS policy (job submit limit, user's size and/or time limits)")
    (here / "taken.json").write_text(json.dumps([*taken, array]))
    print(f"{{101 + len(taken)}};private")
elif name == "scontrol":
    print(said.get("config", "MaxArraySize            = 1001"))
else:
    sys.stdout.write(said.get(name, ""))
    sys.exit(said.get(f"{{name}}_error"))
"""


class Fakes:
    """Programs named like Slurm's that note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol"):
            (folder / name).write_text(FAKE.format(python=sys.executable))
            (folder / name).chmod(0o755)
        (folder / "taken.json").write_text("[]")
        self.say()

    def say(self, **said: object) -> None:
        """What they answer from now on."""
        (self.folder / "said.json").write_text(json.dumps(said))

    def calls(self, name: str) -> list[list[str]]:
        """How a program was called."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [words[1:] for words in map(json.loads, lines) if words[0] == name]
