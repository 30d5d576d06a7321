"""Images and sounds in a real browser: from the run directory or an exported file, and never from elsewhere."""

import pytest

from rollbook.core import Media, Message
from rollbook.viewer import RunFolder, export_run
from support.pictures import data_url, make_png, make_wav
from support.sample_runs import Pen, make, rollout
from support.viewing import Served

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>window.harmed = true</script></svg>'
DRAWN = "e => e.complete && e.naturalWidth"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    folder = tmp_path_factory.mktemp("media") / "runs"
    pen = Pen(make(folder / "shown", tasks=1, samples=1))
    stored = [Media(make_png(size=40), "png"), Media(make_wav(), "wav"), Media(SVG, "svg")]
    image, sound, drawing = map(pen.book.media.put, stored)
    made = rollout(pen.book, 0, 0, text="fine")
    urls = [
        image,
        data_url(make_png(0, 0, 255)),
        drawing,
        data_url(SVG, "image/svg+xml"),
        "https://beacon.invalid/c.png",
    ]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    made.messages = [*made.messages, Message("user", [*parts, {"type": "input_audio", "input_audio": {"data": sound}}])]
    pen.score(made)
    return folder


def check(looked, page):
    page.wait_for_selector("img.media")
    page.wait_for_function("[...document.querySelectorAll('img.media')].every((e) => e.complete && e.naturalWidth)")
    assert page.locator("img.media").count() == 2  # the stored one, and the one in the line itself
    assert page.locator("img.media").first.evaluate(DRAWN) == 40
    assert page.locator("audio.media").count() == 1
    assert page.locator("p.dead:has-text('image (not shown)')").count() == 3
    assert page.evaluate("window.harmed") is None
    assert looked.elsewhere == []
    assert looked.complaints == []


def test_images_are_drawn_and_drawings_with_scripts_are_not(look, shown):
    with Served(shown) as server:
        looked = look(server)
        page = looked.go("#/run/shown/task/area-0/sample/0")
        check(looked, page)
        looked.context.close()


def test_an_exported_file_draws_them_without_a_server(look, shown, tmp_path):
    out = tmp_path / "shown.html"
    export_run(RunFolder(shown / "shown"), out)
    looked = look()
    looked.page.goto(f"file://{out}#/run/shown/task/area-0/sample/0")
    looked.there()
    check(looked, looked.page)
