from pathlib import Path
from urllib.parse import quote

from rollbook.viewer import server

MOST_BYTES = 600_000


def test_the_assets_are_small():
    assert 0 < sum(path.stat().st_size for path in server.WEB_FOLDER.rglob("*") if path.is_file()) < MOST_BYTES


def test_every_library_has_its_licence_beside_it():
    vendor = server.WEB_FOLDER / "vendor"
    scripts = list(vendor.glob("*.js"))
    assert scripts
    for path in scripts:
        assert "Permission" in (vendor / f"LICENSE.{path.stem}").read_text() or path.stem == "highlight"
    assert "Redistribution" in (vendor / "LICENSE.highlight").read_text()


def test_our_scripts_never_set_html():
    scripts = list((server.WEB_FOLDER / "js").rglob("*.js"))
    assert scripts
    for path in scripts:
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert word not in text, f"{path.name}: {word}"


def test_every_asset_is_served_as_what_it_is(served):
    assets = [path for path in server.WEB_FOLDER.rglob("*") if path.suffix in server.CONTENT_TYPES]
    assert {path.suffix for path in assets} >= {".html", ".js", ".css"}
    for path in assets:
        status, headers, body = served.ask(f"/{path.relative_to(server.WEB_FOLDER).as_posix()}")
        assert (status, body) == (200, path.read_bytes())
        assert headers["Content-Type"].startswith(server.CONTENT_TYPES[path.suffix])
    assert Path(server.__file__).with_name("web") == server.WEB_FOLDER


def test_a_long_address_is_answered(served):
    status, _, body = served.ask("/api/task?run=baseline&task=" + quote("题" * 1200))
    assert (status, b"no task is called" in body) == (400, True)
    assert served.ask("/api/tasks?run=baseline&keep=" + quote("mean > 0 and " * 230 + "n > 0"))[0] == 200
