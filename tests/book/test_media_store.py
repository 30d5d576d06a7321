"""media/: what is stored once, what is refused, and what is damage."""

import os
from pathlib import Path

import pytest

from rollbook.book import MediaStore, list_media
from rollbook.book import media as media_module
from rollbook.book.media import put_media_in, read_files_into
from rollbook.core import MAX_MEDIA_BYTES, Media, Message
from rollbook.core import media as media_parts
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
        ("file:folder.png", "this is not a file"),
        ("file:big.png", "20,971,521 bytes; an image or a sound may have 20,971,520"),
        ("file:a\0b.png", "no such file"),
    ],
)
def test_paths_that_lead_out_and_what_is_no_image_are_refused(store, root, tmp_path, url, words):
    (tmp_path / "secret.png").write_bytes(RED.data)
    (root / "link.png").symlink_to(tmp_path / "secret.png")
    (root / "inside").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.png")
    (root / "folder.png").mkdir()
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


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("data:image/png;charset=utf-8;base64,AAAA", "data:image/png;base64,AAAA"),
        ("data:image/x-odd;base64,AAAA", "data:image/x-odd;base64,AAAA"),
        ("DATA:image/avif;name=a.avif;base64,AAAA", "data:image/avif;base64,AAAA"),
        ("data:image/svg+xml,%3Csvg/%3E", "data:image/svg+xml;base64,PHN2Zy8+"),
    ],
)
def test_data_of_every_type_is_stored_once_and_sent_as_it_was(store, tmp_path, url, sent):
    stored = store.store_parts(show(url))
    assert source_of(stored).startswith("media:")
    assert store.store_answered(show(url)) == stored
    assert len(list_media(tmp_path / "run")) == 1
    assert store.expand(stored) == show(sent)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("cat.png", "write file:PATH, a data URL, or an address"),
        ("", "write file:PATH, a data URL, or an address"),
        ("ftp://host/cat.png", "write file:PATH, a data URL, or an address"),
        ("https://", "write file:PATH, a data URL, or an address"),
        ("http://[", "write file:PATH, a data URL, or an address"),
        ("data:image/png;base64,A!", "the data is not base64"),
        ("data:image/png;base64,", "the data is empty"),
        ("data:image/png;base64", "write a data URL as"),
        ("data:;base64,AAAA", "write a data URL as"),
        ("data:text/html;base64,AAAA", "data of the type text/html; known are image/png"),
        (f"media:{'0' * 64}.png", "the run has stored no such file"),
        ("media:../run.json", "the run has stored no such file"),
        (None, "image_url has no url"),
        (7, "image_url has no url"),
        ("file:pics/empty.png", "the file is empty"),
    ],
)
def test_what_no_model_could_be_sent_is_refused_with_its_place(store, root, tmp_path, url, words):
    (root / "pics" / "empty.png").write_bytes(b"")
    with pytest.raises(UsageError, match=rf"messages\[0\].content\[\d\]: .*{words}"):
        store.store_parts(show(url), [root])
    assert list_media(tmp_path / "run") == []


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        ({"data": "AAAA"}, "audio of the format"),
        ({"data": "A!", "format": "wav"}, "the data is not base64"),
        ({"format": "wav"}, "input_audio has no data"),
        ("AAAA", "input_audio has no data"),
    ],
)
def test_sounds_that_no_model_could_be_sent_are_refused(store, audio, words):
    with pytest.raises(UsageError, match=words):
        store.store_parts([Message("user", [{"type": "input_audio", "input_audio": audio}])])


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
    assert source_of(store.store_answered(show("https://host/a.png"))) == "https://host/a.png"
    assert [path.name for path in list_media(tmp_path / "run")] == [RED.name]


def test_files_are_read_into_messages_where_nothing_is_stored(root):
    assert source_of(read_files_into(show("file:pics/red.png"), [root])) == data_url(RED.data)
    assert source_of(read_files_into(show("https://host/a.png"), [root])) == "https://host/a.png"


def test_data_that_cannot_be_decoded_stays_in_an_answer(store, tmp_path):
    broken = show("data:image/png;base64,A!")
    assert store.store_answered(broken) == broken
    assert list_media(tmp_path / "run") == []


def test_what_another_writer_stored_is_made_durable_too(store, tmp_path, monkeypatch):
    store.put(RED)
    synced = []
    monkeypatch.setattr(media_module, "sync_folder", synced.append)
    again = MediaStore(tmp_path / "run")
    assert [again.put(RED), again.put(RED)] == [RED.reference, RED.reference]
    assert synced == [tmp_path / "run" / "media"]  # once: it is known afterwards


def test_no_more_is_kept_in_memory_than_allowed(store, tmp_path, monkeypatch):
    images = [Media(make_png(shade), "png") for shade in (1, 2, 3)]
    for image in images:
        store.put(image)
    monkeypatch.setattr(media_module, "MAX_CACHED_BYTES", len(images[0].data) + len(images[1].data))
    for image in images[:2]:
        store.read(image.name)
    (tmp_path / "run" / "media" / images[0].name).unlink()
    assert store.read(images[0].name) == images[0]  # both fit
    store.read(images[2].name)
    with pytest.raises(BookError, match="is missing"):
        store.read(images[0].name)


def test_replies_name_neither_files_nor_what_is_not_stored(store):
    long = "x" * 100
    for url, held, words in [
        (f"file:{long}.png", store, f"file:{'x' * 75}: only tasks may name files; give the data in a reply"),
        (f"file:{long}.png", None, f"file:{'x' * 75}: only tasks may name files; give the data in a reply"),
        (RED.reference, None, f"{RED.reference[:80]}: nothing is stored here; give the data"),
        ("cat.png", store, "'cat.png': write file:PATH, a data URL, or an address with http:// or https://"),
    ]:
        with pytest.raises(UsageError) as caught:
            put_media_in(show(url), held)
        assert str(caught.value) == f"messages[0].content[1]: {words}"


def test_replies_are_sent_with_the_data_of_what_is_stored(store):
    store.put(RED)
    for url, held, sent in [
        (RED.reference, store, data_url(RED.data)),
        (data_url(RED.data), None, data_url(RED.data)),
        ("https://host/a.png", store, "https://host/a.png"),
        ("https://host/a.png", None, "https://host/a.png"),
    ]:
        assert source_of(put_media_in(show(url), held)) == sent


def test_a_file_of_the_largest_size_is_stored(store, root):
    with open(root / "largest.png", "wb") as file:
        file.truncate(MAX_MEDIA_BYTES)
    assert source_of(store.store_parts(show("file:largest.png"), [root])).startswith("media:")


@pytest.mark.parametrize(("url", "words"), [("cat.png", "write file:PATH"), (None, "image_url has no url")])
def test_files_are_not_read_into_messages_that_no_model_could_be_sent(root, url, words):
    with pytest.raises(UsageError, match=rf"messages\[0\].content\[1\]: .*{words}"):
        read_files_into(show(url), [root])


@pytest.mark.parametrize("prefix", ["file:", "file://", "file:///../.."])
def test_a_file_is_named_by_its_path_from_the_folder_or_from_the_root(store, root, prefix):
    path = "pics/red.png" if prefix == "file:" else f"{root}/pics/red.png"
    assert source_of(store.store_parts(show(f"{prefix}{path}"), [root])) == RED.reference


def test_two_slashes_that_begin_no_path_from_the_root_are_part_of_the_name(store, root):
    with pytest.raises(UsageError, match=r"^messages\[0\].content\[1\]: //host/red.png: no such file"):
        store.store_parts(show("file://host/red.png"), [root])


def test_the_image_of_the_first_folder_that_has_it_is_taken(store, root, tmp_path):
    other = tmp_path / "other"
    (other / "pics").mkdir(parents=True)
    (other / "pics" / "red.png").write_bytes(make_png(blue=9))
    (other / "more.png").symlink_to(root / "pics" / "red.png")
    assert source_of(store.store_parts(show("file:pics/red.png"), [root, other])) == RED.reference
    assert source_of(store.store_parts(show("file:pics/red.png"), [other, root])) != RED.reference
    assert source_of(store.store_parts(show("file:more.png"), [other, root])) == RED.reference
    with pytest.raises(UsageError, match="it is outside of the environment's folder"):
        store.store_parts(show("file:more.png"), [other])


def test_a_disk_that_fails_is_no_reason_to_leave_data_in_an_answer(store, monkeypatch):
    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(media_module, "write_atomically", fail)
    with pytest.raises(OSError, match="no room"):
        store.store_answered(show(data_url(RED.data)))


def test_a_disk_that_cannot_be_read_is_not_taken_for_a_missing_file(store, tmp_path, monkeypatch):
    store.put(RED)

    def fail(*_):
        raise OSError("cannot be read")

    monkeypatch.setattr(Path, "read_bytes", fail)
    for use in (lambda each: each.read(RED.name), lambda each: each.put(RED)):
        with pytest.raises(OSError, match="cannot be read"):
            use(MediaStore(tmp_path / "run"))


def test_what_is_stored_is_read_from_the_disk_once(store, tmp_path):
    store.put(RED)
    reader = MediaStore(tmp_path / "run")
    assert reader.read(RED.name) == RED
    (tmp_path / "run" / "media" / RED.name).unlink()
    assert reader.read(RED.name) == RED


def test_temporary_files_of_a_killed_writer_are_not_listed(store, tmp_path):
    assert list_media(tmp_path / "run") == []
    store.put(RED)
    (tmp_path / "run" / "media" / f".{RED.name}.00ff").touch()
    assert [path.name for path in list_media(tmp_path / "run")] == [RED.name]


def test_what_is_too_large_is_not_stored(store, tmp_path, monkeypatch):
    monkeypatch.setattr(media_parts, "MAX_MEDIA_BYTES", 10)
    with pytest.raises(UsageError, match=r"^13 bytes"):
        store.put(Media(b"x" * 13, "png"))
    assert list_media(tmp_path / "run") == []
    assert store.put(Media(b"x" * 12, "png")).startswith("media:")


def test_two_that_store_the_first_image_at_once_both_store_it(store, tmp_path, monkeypatch):
    (tmp_path / "run" / "media").mkdir()
    is_dir, looked = Path.is_dir, list[Path]()
    # It was not there when it was looked for.
    monkeypatch.setattr(Path, "is_dir", lambda path: (bool(looked) and is_dir(path)) or bool(looked.append(path)))
    assert store.put(RED) == RED.reference


def test_a_reference_to_nothing_is_shown_cut(store):
    with pytest.raises(UsageError) as caught:
        store.store_parts(show(f"media:{'x' * 200}"))
    assert f"media:{'x' * 74}: the run" in str(caught.value)


@pytest.mark.parametrize(
    "use", [lambda store, name: store.read(name), lambda store, name: store.expand(show(f"media:{name}"))]
)
def test_a_name_that_is_none_is_shown_cut(store, use):
    with pytest.raises(BookError, match=r"'x{80}' is not the name of a stored image or sound"):
        use(store, "x" * 200)
