"""kill -9 around the storing of an image: a line never refers to what is not on the disk, and resume completes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.book_assertions import assert_complete
from support.commands import Commands, Served
from support.pictures import PICTURES, data_url, make_png, name_of, write_pictures

BLUE = make_png(0, 0, 255)
REPLYING = PICTURES.replace("import Environment,", "import Environment, Message,").replace(
    "    def verify",
    f"""    def open(self, task):
        return []

    def reply(self, task, rollout, state):
        shown = {{"type": "image_url", "image_url": {{"url": "{data_url(BLUE)}"}}}}
        return None if len(rollout.turns) > 1 else Message("user", [{{"type": "text", "text": "2 + 2?"}}, shown])

    def verify""",
)
KILLED = """
import os, signal, sys
from rollbook.book import media

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def before(function):
    return die

def after(function):
    def call(*words):
        function(*words)
        die()
    return call

def of_media(make):
    '''Leave other files of the run alone.'''
    real = os.replace
    replaced = make(real)
    os.replace = lambda a, b: (replaced if "BLUE" in str(b) else real)(a, b)

if sys.argv[1] == "before the rename":
    of_media(before)
elif sys.argv[1] == "after the rename":
    of_media(after)
else:
    media.MediaStore.store_answered = after(media.MediaStore.store_answered)
from rollbook.cli.main import main
main(sys.argv[2:])
"""


@pytest.fixture
def endpoint() -> Iterator[Served]:
    served = Served("--mode", "ok")
    yield served
    served.kill()


@pytest.mark.parametrize("instant", ["before the rename", "after the rename", "between the image and the line"])
def test_a_worker_that_is_killed_around_an_image_is_resumed(
    rollbook: Commands, endpoint: Served, tmp_path: Path, instant: str
) -> None:
    (tmp_path / "killed.py").write_text(KILLED.replace("BLUE", name_of(BLUE)))
    env, run = write_pictures(tmp_path, REPLYING), tmp_path / "run"
    words = "run", env, "-m", endpoint.url, "-o", run, "-c", 1
    killed = rollbook.python(tmp_path / "killed.py", instant, *words).wait()
    assert killed.code == -9, killed.stderr
    lines = "".join(path.read_text() for path in (run / "journals").glob("*.jsonl"))
    if name_of(BLUE) in lines:
        assert (run / "media" / name_of(BLUE)).read_bytes() == BLUE
    resumed = rollbook.run("resume", run)
    assert resumed.code == 0, resumed.stderr
    assert_complete(run)
    assert (run / "media" / name_of(BLUE)).read_bytes() == BLUE
    verified = rollbook.run("verify", run)
    assert verified.code == 0, verified.stdout
    lines = [json.loads(line) for path in (run / "journals").glob("*.jsonl") for line in path.read_text().splitlines()]
    assert {line["messages"][2]["content"][1]["image_url"]["url"] for line in lines} == {f"media:{name_of(BLUE)}"}
