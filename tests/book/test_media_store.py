"""media/: what is stored once, what is refused, and what is damage."""

import os

import pytest

from rollbook.book import MediaStore, list_media
from rollbook.book.media import read_files_into
from rollbook.core import MAX_MEDIA_BYTES, Media, Message
from rollbook.errors import BookError, UsageError
from support.pictures import data_url, make_png, name_of

RED = Media(make_png(), "png")


def show(url):
    return [Message("user", [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}])]


def source_of(messages):
    return messages[0].content[1]["image_url"]["url"]


@pytest.fixture
def store(tmp_path):
    (tmp_path / "run").mkdir()
    return MediaStore(tmp_path / "run")


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "env"
    (folder / "pics").mkdir(parents=True)
    (folder / "pics" / "red.png").write_bytes(RED.data)
    return folder


def test_the_same_image_is_stored_once_however_it_is_given(store, root, tmp_path):
    stored = [store.store_parts(show(url), [root]) for url in (data_url(RED.data), "file:pics/red.png")]
    stored.append(store.store_parts(show(f"file://{root}/pics/red.png"), [root]))
    assert {source_of(each) for each in stored} == {f"media:{name_of(RED.data)}"}
    assert [path.name for path in list_media(tmp_path / "run")] == [name_of(RED.data)]
    assert source_of(store.expand(stored[0])) == data_url(RED.data)


def test_file_and_folder_are_synced_before_the_reference_is_known(store, monkeypatch):
    synced = []
    real = os.fsync

    def sync(handle):
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", sync)
    store.put(RED)
    names = [path.rpartition("/")[2] for path in synced]
    assert names[0] == "run"  # the new folder media/ itself
    assert names[1].startswith(f".{RED.name}")
    assert names[2] == "media"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:../secret.png", "it is outside of the environment's folder"),
        ("file:pics/../../secret.png", "it is outside of the environment's folder"),
        ("file:link.png", "it is outside of the environment's folder"),
        ("file:inside/secret.png", "it is outside of the environment's folder"),
        ("file:/etc/hostname.png", "no such file in the environment's folder"),
        ("file:pics/none.png", "no such file in the environment's folder"),
        ("file:pics/red.txt", "the name of an image ends in .png, .jpg"),
        ("file:pipe.png", "this is not a file"),
        ("file:big.png", "20,971,521 bytes; an image or a sound may have 20,971,520"),
        ("file:a\0b.png", "no such file"),
    ],
)
def test_paths_that_lead_out_and_what_is_no_image_are_refused(store, root, tmp_path, url, words):
    (tmp_path / "secret.png").write_bytes(RED.data)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "inside").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.png")
    with open(root / "big.png", "wb") as file:
        file.truncate(MAX_MEDIA_BYTES + 1)
    with pytest.raises(UsageError, match=words):
        store.store_parts(show(url), [root])
    assert list_media(tmp_path / "run") == []


def test_a_link_within_the_folder_is_followed(store, root):
    (root / "again.png").symlink_to(root / "pics" / "red.png")
    assert source_of(store.store_parts(show("file:again.png"), [root])) == RED.reference


@pytest.mark.parametrize("damage", ["missing", "torn", "replaced", "link"])
def test_a_file_that_is_not_what_was_stored_is_an_error_and_never_another_prompt(store, tmp_path, damage):
    messages = store.store_parts(show(data_url(RED.data)))
    path = tmp_path / "run" / "media" / RED.name
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(RED.data[:20])
    elif damage == "replaced":
        path.write_bytes(make_png(blue=200))
    else:
        path.rename(tmp_path / "elsewhere.png")
        path.symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(BookError, match=rf"media/{RED.name} .*restore it from a copy of the run"):
        MediaStore(tmp_path / "run").expand(messages)


def test_a_torn_file_is_replaced_by_whoever_has_the_data(store, tmp_path):
    path = tmp_path / "run" / "media" / RED.name
    path.parent.mkdir()
    path.write_bytes(RED.data[:20])
    store.put(RED)
    assert path.read_bytes() == RED.data


def test_a_name_that_leads_elsewhere_is_no_reference(store):
    with pytest.raises(BookError, match="is not the name of a stored image or sound"):
        store.expand(show("media:../run.json"))


def test_data_of_an_unknown_type_stays_where_it_is(store, tmp_path):
    messages = show("data:image/x-odd;base64,AAAA")
    assert store.store_parts(messages) == messages
    assert list_media(tmp_path / "run") == []


def test_damage_of_what_messages_refer_to_is_found(store, tmp_path):
    good, lost = store.put(RED), Media(make_png(0, 255), "png").reference
    assert list(store.find_damage(show(good))) == []
    assert list(store.find_damage(show(lost))) == [f"{lost.replace(':', '/', 1)} is missing"]
    assert list(store.find_damage(show("media:../run.json"))) == [
        "media: '../run.json' is not the name of a stored image or sound"
    ]
    assert list(store.find_damage(show("https://host/a.png"))) == []
    (tmp_path / "run" / "media" / RED.name).write_bytes(b"other")
    assert list(MediaStore(tmp_path / "run").find_damage(show(good))) == [f"media/{RED.name} is not what was stored"]


def test_a_copy_holds_everything_that_was_stored_and_no_damage(store, tmp_path):
    store.put(RED)
    (tmp_path / "copy").mkdir()
    MediaStore(tmp_path / "copy").copy_from(tmp_path / "run")
    assert [path.read_bytes() for path in list_media(tmp_path / "copy")] == [RED.data]
    (tmp_path / "run" / "media" / RED.name).write_bytes(b"other")
    with pytest.raises(BookError, match="is not what was stored"):
        MediaStore(tmp_path / "copy").copy_from(tmp_path / "run")


def test_data_of_answers_is_stored_where_it_can_be(store, tmp_path):
    assert source_of(store.store_answered(show(data_url(RED.data)))) == RED.reference
    for url in ("https://host/a.png", "data:text/html;base64,AAAA"):
        assert source_of(store.store_answered(show(url))) == url
    assert [path.name for path in list_media(tmp_path / "run")] == [RED.name]


def test_files_are_read_into_messages_where_nothing_is_stored(root):
    assert source_of(read_files_into(show("file:pics/red.png"), [root])) == data_url(RED.data)
    assert source_of(read_files_into(show("https://host/a.png"), [root])) == "https://host/a.png"
