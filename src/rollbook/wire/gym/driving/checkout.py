"""A checkout of NeMo Gym: where its servers lie, which Python runs them, and which of them need Ray."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rollbook.environments import source
from rollbook.errors import UsageError
from rollbook.wire.gym.driving.composition import RESOURCES, Block

CHECKOUT, PYTHON = "ROLLBOOK_GYM", "ROLLBOOK_GYM_PYTHON"
"""The variables that name a checkout, and the Python that has it installed."""

EXTRA_ROOTS = "NEMO_GYM_EXTRA_ROOTS"
PACKAGE = "nemo_gym"
NO_RAY = Path(__file__).parent / "noray"
_RAY = re.compile(rb"^\s*(import ray\b|from ray\b)", re.MULTILINE)


def find_config(name: str) -> Path:
    """The file that `gym:NAME` names: beneath the current folder, or in the checkout."""
    homes = [Path(), *([Path(os.environ[CHECKOUT])] if os.environ.get(CHECKOUT) else [])]
    for home in homes:
        if (home / name).is_file():
            return (home / name).resolve()
    looked = "" if len(homes) > 1 else f", and {CHECKOUT} names no checkout to look in"
    raise UsageError(f"gym:{name}: no such file{looked}")


class Checkout:
    """The checkout that a configuration belongs to: the one it lies in, else the one that ROLLBOOK_GYM names."""

    def __init__(self, config: Path) -> None:
        given = os.environ.get(CHECKOUT)
        homes = [*config.parents, *([Path(given).resolve()] if given else [])]
        home = next((home for home in homes if (home / PACKAGE).is_dir() and (home / RESOURCES).is_dir()), None)
        if home is None:
            raise UsageError(f"{config} lies in no checkout of NeMo Gym: name one with {CHECKOUT}=/path/to/Gym")
        self.home = home

    @property
    def roots(self) -> Sequence[Path]:
        """Where Gym looks for files: extra roots, the current folder, the checkout."""
        extra = [Path(root) for root in os.environ.get(EXTRA_ROOTS, "").split(os.pathsep) if root]
        return [*extra, Path.cwd(), self.home]

    def folder(self, block: Block) -> Path:
        """Where a server's source lies."""
        for root in self.roots:
            if (root / block.kind / block.code).is_dir():
                return root / block.kind / block.code
        raise UsageError(f"{block.name}: no folder {block.kind}/{block.code} in {self.home}")

    def entry(self, block: Block) -> Path:
        """The program of a server."""
        name = block.settings.get("entrypoint")
        path = self.folder(block) / str(name)
        if not isinstance(name, str) or not path.is_file():
            raise UsageError(f"{block.name}: its entrypoint {name!r} is no file in {path.parent}")
        return path

    def python(self, block: Block) -> Path:
        """The Python of a server: as told, else of the virtual environment that Gym made for it, or for all."""
        given = os.environ.get(PYTHON)
        homes = [self.folder(block), self.home]
        known = [Path(given)] if given else [home / ".venv" / "bin" / "python" for home in homes]
        for python in known:
            if python.is_file():
                return python.absolute()
        raise UsageError(f"{block.name}: no {' or '.join(map(str, known))}; name a Python that has Gym with {PYTHON}")

    def needs_ray(self, block: Block) -> bool:
        """Whether the server's own source imports Ray; that Gym itself does is no reason to start a cluster."""
        entry = self.entry(block).resolve()
        own = source.closure(entry.parent, entry)
        own |= source.closure(self.home, entry) if entry.is_relative_to(self.home) else set()
        return any(_RAY.search(path.read_bytes()) for path in own if not path.is_relative_to(self.home / PACKAGE))
