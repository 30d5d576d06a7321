"""Stored images and sounds in the viewer: what is served, with which headers, and what an exported file holds."""

import pytest

from rollbook.book import BookDraft
from rollbook.core import Media, Message, Task
from rollbook.viewer import RunFolder, export_run
from support.pictures import data_url, make_png, make_wav, name_of
from support.sample_runs import Pen, make, rollout
from support.viewing import Served

RED, TONE = make_png(), make_wav()
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.fixture
def folder(tmp_path):
    """A run whose only rollout shows an image, a sound and a drawing that holds a script."""
    pen = Pen(make(tmp_path / "runs" / "shown", tasks=1, samples=1))
    stored = [Media(RED, "png"), Media(TONE, "wav"), Media(SVG, "svg")]
    image, sound, drawing = map(pen.book.media.put, stored)
    made = rollout(pen.book, 0, 0, text="fine")
    parts = [
        {"type": "image_url", "image_url": {"url": image}},
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        {"type": "image_url", "image_url": {"url": drawing}},
        {"type": "image_url", "image_url": {"url": "https://beacon.invalid/cat.png"}},
    ]
    made.messages = [*made.messages, Message("user", parts)]
    pen.score(made)
    return tmp_path / "runs"


def test_an_image_is_served_as_such_and_cannot_act(folder):
    with Served(folder) as server:
        status, headers, body = server.ask(f"/api/media?run=shown&name={name_of(RED)}")
    assert (status, body, headers["Content-Type"]) == (200, RED, "image/png")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"


def test_a_drawing_is_only_ever_plain_text_to_download(folder):
    with Served(folder) as server:
        status, headers, _ = server.ask(f"/api/media?run=shown&name={name_of(SVG, 'svg')}")
    assert (status, headers["Content-Type"]) == (200, "text/plain")
    assert headers["Content-Disposition"] == "attachment"
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["../run.json", "run.json", "", "a" * 64 + ".png", "%2e%2e/run.json", "a" * 64 + ".html"]
)
def test_nothing_else_is_served(folder, name):
    with Served(folder) as server:
        status, _, body = server.ask(f"/api/media?run=shown&name={name}")
        assert server.ask(f"/api/media?run=shown&name={name_of(RED)}", X_Other="1")[0] == 401
    assert status in (400, 409)
    assert b"schema" not in body


def test_a_damaged_image_is_not_served(folder):
    (folder / "shown" / "media" / name_of(RED)).write_bytes(RED[:30])
    with Served(folder) as server:
        assert server.ask(f"/api/media?run=shown&name={name_of(RED)}")[0] == 409


def test_an_exported_file_holds_images_and_sounds_but_no_drawing(folder, tmp_path):
    export_run(RunFolder(folder / "shown"), tmp_path / "shown.html")
    text = (tmp_path / "shown.html").read_text()
    assert data_url(RED) in text
    assert data_url(TONE, "audio/wav") in text
    assert "data:image/svg" not in text
    assert "media-src data:" in text


def test_the_images_of_tasks_are_exported_with_them(tmp_path):
    book = make(tmp_path / "old", tasks=1, samples=1)
    with BookDraft(tmp_path / "run") as draft:
        content = [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": data_url(RED)}}]
        draft.add_tasks([Task("a", messages=[Message("user", content)])], "Calculus")
        draft.finish(book.manifest, book.plan.parts)
    export_run(RunFolder(tmp_path / "run"), tmp_path / "run.html")
    assert data_url(RED) in (tmp_path / "run.html").read_text()
