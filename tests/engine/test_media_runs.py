"""Images and sounds in a run: what the server is sent, what is stored, and what later starts read."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollbook
from rollbook import BookError, Collector, UsageError
from rollbook.book import Book, MediaStore, read_files_into, verify_run
from rollbook.processes import run_event_loop
from support.commands import Served
from support.pictures import PICTURES, data_url, make_png, make_wav, name_of, write_pictures
from support.role_server import RoleServer

RED, TONE = make_png(), make_wav()
STORED = sorted([name_of(RED), name_of(TONE, "wav")])


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Served]:
    served = Served("--mode", "ok")
    yield served
    served.kill()


@pytest.fixture
def start(tmp_path: Path, endpoint: Served) -> Any:
    """Run the pictures, or another environment, into `run`; gives its path."""

    def run(source: str = PICTURES, **options: Any) -> Path:
        env = write_pictures(tmp_path, source)
        return rollbook.run(env, endpoint.url, out=tmp_path / "run", progress=False, **options).path

    return run


def sent_parts(endpoint: Served, since: int) -> list[Any]:
    """The parts that are not text of every first message that was sent, the test call of a start left out."""
    bodies = [body for body in endpoint.bodies[since:] if isinstance(body["messages"][0]["content"], list)]
    return [body["messages"][0]["content"][1:] for body in bodies]


EXPECTED = [
    {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}},
    {"type": "input_audio", "input_audio": {"data": base64.b64encode(TONE).decode(), "format": "wav"}},
]


def journal_text(run: Path) -> str:
    return "".join(path.read_text() for path in (run / "journals").glob("*.jsonl"))


def test_files_are_sent_as_data_and_stored_once(start: Any, endpoint: Served) -> None:
    since = len(endpoint.bodies)
    run = start(samples=2)
    assert sent_parts(endpoint, since) == [EXPECTED] * 6
    assert sorted(path.name for path in (run / "media").iterdir()) == STORED
    for text in (journal_text(run), (run / "tasks.jsonl").read_text()):
        assert base64.b64encode(RED).decode() not in text
        assert f"media:{name_of(RED)}" in text
    assert verify_run(run).damage == []


def test_later_starts_read_the_stored_files_when_the_originals_are_gone(
    start: Any, endpoint: Served, tmp_path: Path
) -> None:
    run = start()
    shutil.rmtree(tmp_path / "pics")
    since = len(endpoint.bodies)
    rollbook.extend(run, 2, progress=False)
    assert sent_parts(endpoint, since) == [EXPECTED] * 3
    again = rollbook.reverify(run, tmp_path / "again")
    assert sorted(path.name for path in (again.path / "media").iterdir()) == STORED
    assert verify_run(again.path).damage == []


@pytest.mark.parametrize("damage", ["missing", "torn"])
def test_a_damaged_image_stops_the_run_and_is_named_by_verify(start: Any, endpoint: Served, damage: str) -> None:
    run = start()
    path = run / "media" / name_of(RED)
    path.unlink() if damage == "missing" else path.write_bytes(RED[:30])
    since = len(endpoint.bodies)
    with pytest.raises(BookError, match=f"{name_of(RED)} .*restore it from a copy of the run"):
        rollbook.extend(run, 2, progress=False)
    assert sent_parts(endpoint, since) == []  # nothing was asked with another prompt
    found = "; ".join(map(str, verify_run(run).damage))
    assert name_of(RED) in found
    assert ("which is missing" if damage == "missing" else "is not what was stored") in found


REPLYING = PICTURES.replace(
    "    def verify",
    """    def open(self, task):
        return []

    def reply(self, task, rollout, state):
        if len(rollout.turns) > 1:
            return None
        shown = {"type": "image_url", "image_url": {"url": "URL"}}
        return Message("user", [{"type": "text", "text": "And 2 + 2?"}, shown])

    def verify""",
).replace("import Environment,", "import Environment, Message,")


def test_the_image_of_a_reply_is_sent_as_it_is_and_stored_before_its_line(start: Any, endpoint: Served) -> None:
    blue = make_png(0, 0, 255)
    since = len(endpoint.bodies)
    run = start(REPLYING.replace("URL", data_url(blue)))
    last = [body["messages"][-1]["content"][1] for body in endpoint.bodies[since:] if len(body["messages"]) == 3]
    assert last == [{"type": "image_url", "image_url": {"url": data_url(blue)}}] * 3
    assert sorted(path.name for path in (run / "media").iterdir()) == sorted([*STORED, name_of(blue)])
    assert base64.b64encode(blue).decode() not in journal_text(run)
    assert verify_run(run).damage == []


def test_an_image_of_a_reply_that_is_too_large_is_one_line(start: Any) -> None:
    large = 'data:image/png;base64," + "A" * (30 << 20) + "'
    with pytest.raises(rollbook.Shortfall, match="an image or a sound may have at most 20,971,520"):
        start(REPLYING.replace("URL", large), attempts={"environment_error": 1}, limit=1)


@pytest.mark.parametrize("url", ["cat.png", "data:image/png;base64,A!"])
def test_an_image_of_a_reply_that_no_model_could_be_sent_is_one_line(start: Any, url: str) -> None:
    with pytest.raises(rollbook.Shortfall, match=r"environment_error.*messages\[2\].content\[1\]"):
        start(REPLYING.replace("URL", url), attempts={"environment_error": 1}, limit=1)


def test_a_reply_may_not_name_a_file(start: Any) -> None:
    with pytest.raises(rollbook.Shortfall, match="only tasks may name files; give the data in a reply"):
        start(REPLYING.replace("URL", "file:pics/red.png"), attempts={"environment_error": 1})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:../outside.png", r"Pictures: task 'p0': messages\[0\].content\[1\]: ../outside.png: it is outside"),
        ("file:pics/none.png", "no such file in the environment's folder"),
        ('data:image/png;base64," + "A" * (30 << 20) + "', "an image or a sound may have at most 20,971,520"),
        ("s3://bucket/cat.png", "write file:PATH, a data URL, or an address with http:// or https://"),
        ("data:image/png;base64,A!", "the data is not base64"),
    ],
)
def test_what_cannot_be_shown_is_one_line_before_anything_is_written(
    start: Any, tmp_path: Path, url: str, words: str
) -> None:
    (tmp_path.parent / "outside.png").write_bytes(RED)
    with pytest.raises(UsageError, match=words) as refused:
        start(PICTURES.replace("file:pics/red.png", url))
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_web_addresses_are_left_to_the_server(start: Any, endpoint: Served) -> None:
    since = len(endpoint.bodies)
    run = start(PICTURES.replace("file:pics/red.png", "https://example.com/cat.png"))
    assert sent_parts(endpoint, since)[0][0]["image_url"]["url"] == "https://example.com/cat.png"
    assert [path.name for path in (run / "media").iterdir()] == [name_of(TONE, "wav")]


def test_a_run_whose_lines_hold_data_themselves_stays_readable(
    start: Any, endpoint: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    inline = "data:image/x-old;base64,AAAA"
    since = len(endpoint.bodies)
    with monkeypatch.context() as earlier:  # versions before this one left such data in the lines
        earlier.setattr(MediaStore, "store_parts", lambda _, messages, roots=(): read_files_into(messages, roots))
        earlier.setattr(MediaStore, "store_answered", lambda _, messages: messages)
        run = start(PICTURES.replace("file:pics/red.png", inline))
    assert inline in journal_text(run)
    rollbook.extend(run, 2, progress=False)
    assert {parts[0]["image_url"]["url"] for parts in sent_parts(endpoint, since)} == {inline}
    assert verify_run(run).damage == []


def test_exports_hold_the_data(start: Any, tmp_path: Path) -> None:
    run = start()
    rollbook.export(run, tmp_path / "rows.jsonl", format="sft")
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["messages"][0]["content"][1:] for row in rows] == [EXPECTED] * 3


@pytest.mark.parametrize("has_book", [False, True])
def test_a_collector_sends_the_files_of_its_tasks(tmp_path: Path, endpoint: Served, has_book: bool) -> None:
    env, since = write_pictures(tmp_path), len(endpoint.bodies)

    async def collect() -> int:
        book = tmp_path / "book" if has_book else None
        async with Collector(env, endpoint.url, samples=2, book=book) as collector:
            return len([group async for group in collector.groups()])

    assert run_event_loop(collect) == 3
    assert sent_parts(endpoint, since) == [EXPECTED] * 6
    if has_book:
        assert sorted(path.name for path in (tmp_path / "book" / "media").iterdir()) == STORED
        assert Book(tmp_path / "book").tasks.read(0).messages[0].content[1]["image_url"]["url"].startswith("media:")  # type: ignore[index]


ROLE = "class Pictures(Environment):\n    roles = ('eye',)\n"
LOOKING = PICTURES.replace("class Pictures(Environment):", ROLE).replace(
    "    def verify(self, task, rollout):",
    "    async def verify(self, task, rollout):\n        await self.model('eye').ask(rollout.messages)",
)
FORMS = {
    "async": LOOKING,
    "sync": LOOKING.replace("async ", "").replace("await ", "").replace(".ask(", ".ask_blocking("),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_role_is_sent_the_data_of_stored_images(start: Any, endpoint: Served, form: str) -> None:
    with RoleServer() as eye:
        run = start(FORMS[form], roles={"eye": eye.url})
        parts = [body["messages"][0]["content"][1:] for body in eye.asked]
        assert parts
        assert {each[0]["image_url"]["url"] for each in parts} == {data_url(RED)}
        assert "media:" not in json.dumps(eye.asked)
        (run / "media" / name_of(RED)).unlink()
        with pytest.raises(BookError, match="is missing: restore it from a copy of the run"):
            rollbook.reverify(run, run.with_name("again"))
