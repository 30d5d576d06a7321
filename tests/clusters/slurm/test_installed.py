"""Jobs that bring Rollbook along: a Python that has never heard of it, and the real package index."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from clustered import Submit

from support.book_assertions import assert_complete
from support.commands import Commands, Served


def test_the_first_worker_installs_and_all_of_them_use_it(
    submit: Submit, rollbook: Commands, serve: Callable[..., Served], sums: str
) -> None:
    python = getattr(sys, "_base_executable", sys.executable)
    rollbook.environ.pop("PYTHONPATH")
    bare = subprocess.run([python, "-c", "import rollbook"], env=rollbook.environ, capture_output=True)
    assert bare.returncode, "this Python has Rollbook already"
    keys: dict[str, object] = {"python": python}
    words = ["-m", serve().url, "--model-name", "mock", "--workers", 2, "--install"]
    sent = submit(f"{sums}?tasks=6", *words, profile_keys=keys)
    assert sent.over(240) == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    assert sent.logs().count("installing into") == 1
    (home,) = (sent.run / "jobs").glob("venv-*/bin/rollbook")
    assert home.exists()
