"""What a guest may see of this machine: the interpreter, its libraries, and the chosen packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path

import msgspec

from rollbook.core.json import JSON
from rollbook.sandbox.errors import Refused, SandboxError

HERE = Path(__file__).parent
SURVEY_S = 120.0
ALONE = ("-P", "-s", "-S")
SEED = {"PYTHONHASHSEED": "0"}
"""How an interpreter for guests is started: -I would not read its environment, where the seed of all hashes stands."""


class Places(msgspec.Struct, frozen=True):
    """Folders to show; folders inside those to hide; and what to show of these after all."""

    places: list[str]
    hidden: list[str]
    shown: list[str]


def base_python() -> str:
    """The interpreter itself: a virtual environment's link to it would lead out of the walls."""
    return os.path.realpath(sys.executable)


def configuration(packages: list[str]) -> dict[str, JSON]:
    """What a zygote is told about the world it may show.

    Of the folders where packages lie, only those are shown that the chosen ones have imported when they were. What one
    of them imports later, on demand, has to be chosen as well.
    """
    paths = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}) if packages else []
    found = survey(base_python(), tuple(packages), tuple(paths))
    return {"packages": packages, "paths": paths, **msgspec.to_builtins(found)}


@lru_cache(maxsize=64)
def survey(python: str, packages: tuple[str, ...], paths: tuple[str, ...]) -> Places:
    """Asked of a clean interpreter: this one has loaded what the host needs."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); from inner import survey; del sys.path[0]; survey.main()"
    command = [python, "-I", "-S", "-c", code, json.dumps({"packages": packages, "paths": paths})]
    try:
        done = subprocess.run(command, env={}, capture_output=True, timeout=SURVEY_S, check=True)
        return msgspec.json.decode(done.stdout, type=Places)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise Refused(f"the packages {', '.join(packages)} cannot be loaded: {' '.join(words)}") from None
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise SandboxError(f"{python} does not say where its libraries lie: {error}") from None
