"""Workers that may not use namespaces, with a sandbox server beside them on the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clustered import Submit

from rollbook.book import Book, rollouts
from support.book_assertions import assert_complete
from support.commands import Commands, Served

CODED = """
from rollbook import Score, Task
from rollbook.environments.sandboxed import Sandboxed


class Coded(Sandboxed):
    def tasks(self):
        for i in range(6):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i))

    async def verify(self, task, rollout):
        code = f"def total(): return {rollout.text.split()[-1]}"
        verdict = await self.grader.function(code, f"assert total() == {task.answer}", "total")
        return Score(float(verdict.passed), info={"isolation": list(verdict.isolation)})
"""
IMAGE = """#!/bin/bash
# apptainer exec --bind MOUNT IMAGE COMMAND...: no image at all, but a place where nobody gets namespaces.
shift 4
exec unshare --user --map-root-user bash -c 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"' image "$@"
"""


@pytest.fixture
def boxless(rollbook: Commands) -> dict[str, object]:
    """The keys of a profile whose workers run in an image without namespaces."""
    programs = rollbook.folder / "bin"
    programs.mkdir()
    (programs / "apptainer").write_text(IMAGE)
    (programs / "apptainer").chmod(0o755)
    rollbook.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    return {"container": "apptainer", "worker": "{image_path: /none.sif}", "python": sys.executable}


def test_code_is_graded_by_the_server_where_the_worker_has_no_namespaces(
    submit: Submit, rollbook: Commands, serve: Callable[..., Served], boxless: dict[str, object]
) -> None:
    env = rollbook.folder / "coded.py"
    env.write_text(CODED)
    words = [f"{env}:Coded", "-m", serve().url, "--model-name", "mock"]
    sent = submit(*words, "--with-sandbox", profile_keys=boxless)
    assert sent.over() == "COMPLETED", sent.logs()
    assert_complete(sent.run)
    scores = [rollout.score for rollout in rollouts(Book(sent.run))]
    assert {score.reward for score in scores if score} >= {1.0}
    assert all({"remote", "pid", "mount"} <= set(score.info["isolation"]) for score in scores if score)
    said = b"".join(path.read_bytes() for path in Path(sent.run).rglob("*") if path.is_file())
    assert b"a sandbox is served at 127.0.0.1:" in said
    assert b"ROLLBOOK_SANDBOX=" not in said


def test_without_the_server_the_same_worker_has_no_sandbox(
    submit: Submit, rollbook: Commands, serve: Callable[..., Served], boxless: dict[str, object]
) -> None:
    env = rollbook.folder / "coded.py"
    env.write_text(CODED)
    sent = submit(f"{env}:Coded", "-m", serve().url, "--model-name", "mock", profile_keys=boxless)
    assert sent.over() == "FAILED"
    assert "namespace" in sent.logs()
