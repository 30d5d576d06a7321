"""Content parts with images and sounds: what they hold, and what stands for it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import (
    MAX_MEDIA_BYTES,
    Media,
    Message,
    check_media_size,
    check_source,
    choose_suffix,
    decode_part,
    encode_media,
    has_media,
    has_own_data,
    has_references,
    identify_part,
    is_media_name,
    list_sources,
    map_parts,
    media,
    read_reference,
    read_source,
    replace_source,
)
from rollbook.errors import UsageError
from support.pictures import data_url, make_png, name_of

IMAGE = {"type": "image_url", "image_url": {"url": data_url(make_png()), "detail": "low"}}
TEXT = {"type": "text", "text": "Look:"}


@given(st.binary(max_size=300), st.sampled_from(["png", "jpg", "webp"]))
def test_what_is_put_in_comes_out_as_it_was(data, suffix):
    part = encode_media(IMAGE, Media(data, suffix))
    assert decode_part(part) == Media(data, suffix)
    assert part["image_url"]["detail"] == "low"


def test_a_sound_is_base64_with_its_format():
    part = {"type": "input_audio", "input_audio": {"data": "file:a.wav"}}
    made = encode_media(part, Media(b"RIFF", "wav"))
    assert made["input_audio"] == {"data": "UklGRg==", "format": "wav"}
    assert decode_part(made) == Media(b"RIFF", "wav")


def test_a_reference_and_the_data_are_the_same_image():
    named = replace_source(IMAGE, f"media:{name_of(make_png())}", "png")
    other = {"type": "image_url", "image_url": {"url": data_url(make_png(blue=9))}}
    assert identify_part(named) == identify_part(IMAGE)
    assert identify_part(other) != identify_part(IMAGE)
    assert identify_part(TEXT) == ""


def test_urls_and_texts_hold_no_data():
    far = {"type": "image_url", "image_url": {"url": "https://host/cat.png"}}
    assert decode_part(far) is None
    assert not has_own_data([Message("user", [far, TEXT]), Message("user", "data:image/png;base64,AAAA")])
    assert has_own_data([Message("user", [IMAGE])])
    assert list_sources([Message("user", [TEXT, far])]) == ["https://host/cat.png"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png,raw", "write a data URL as data:image/png;base64"),
        ("data:image/png;base64,A", "the data is not base64"),
        ("data:text/html;base64,AAAA", "data of the type text/html; known are image/png"),
        ("data:image/png;base64," + "A" * (2 * MAX_MEDIA_BYTES), "an image or a sound may have at most 20,971,520"),
    ],
)
def test_data_that_cannot_be_stored_is_named_with_its_place(url, words):
    message = Message("user", [TEXT, {"type": "image_url", "image_url": {"url": url}}])

    def decode(part):
        decode_part(part)
        return part

    with pytest.raises(UsageError, match=rf"messages\[0\].content\[1\]: .*{words}"):
        map_parts([message], decode)


SOUND = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


@pytest.mark.parametrize(("part", "path", "suffix"), [(IMAGE, "a/b.PNG", "png"), (SOUND, "b.wav", "wav")])
def test_the_name_of_a_file_says_what_it_holds(part, path, suffix):
    assert choose_suffix(part, path) == suffix


@pytest.mark.parametrize(
    ("part", "path", "message"),
    [
        (IMAGE, "a.wav", r"a.wav: the name of an image ends in \.png"),
        (IMAGE, "a.txt", r"a.txt: the name of an image ends in \.png"),
        (IMAGE, "png.", r"png.: the name of an image ends in \.png"),
        (SOUND, "a.changed", r"a.changed: the name of a sound ends in \.wav"),
        (SOUND, "a.png", r"a.png: the name of a sound ends in \.wav"),
        (SOUND, "a", "a: the name of a sound ends in"),
    ],
)
def test_a_file_of_another_kind_is_refused(part, path, message):
    with pytest.raises(UsageError, match=message):
        choose_suffix(part, path)


@pytest.mark.parametrize(("given", "named"), [("ogg-of-old", "ogg-of-old"), (None, "not given")])
def test_a_sound_of_an_unknown_format_is_refused(given, named):
    with pytest.raises(UsageError, match=f"audio of the format '{named}'; known are"):
        decode_part({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": given}})


def test_messages_without_images_stay_the_same_objects():
    messages = [Message("user", "hi"), Message("user", [TEXT])]
    assert all(a is b for a, b in zip(map_parts(messages, lambda part: {}), messages, strict=True))


def test_only_images_and_sounds_are_changed():
    (changed,) = map_parts([Message("user", [TEXT, IMAGE])], lambda part: SOUND)
    assert changed.content == [TEXT, SOUND]


def test_data_that_cannot_be_read_stands_for_itself():
    assert identify_part({"type": "image_url", "image_url": {"url": "data:nonsense"}}) == "data:nonsense"
    assert identify_part(TEXT) == ""


def image(url):
    return {"type": "image_url", "image_url": {"url": url}}


def test_the_source_of_a_part_is_a_text_or_there_is_none():
    assert read_source({"type": "image_url", "image_url": "https://host/cat.png"}) == "https://host/cat.png"
    sounds = [{"type": "input_audio", "input_audio": held} for held in ({"data": "UklG"}, "UklG", {"data": 7}, {})]
    assert [read_source(part) for part in sounds] == ["UklG", None, None, None]
    assert [read_source(part) for part in (image(7), image(None), {"type": "image_url"}, TEXT)] == [None] * 4


@pytest.mark.parametrize(
    "url", [f"media:{'0' * 64}.png", "file:cat.png", "https://host/cat.png", "http://h", data_url(make_png())]
)
def test_a_source_that_can_be_sent_is_accepted_by_its_scheme_and_left_as_it_is(url):
    part = image(url)
    check_source(part)
    assert part == image(url)
    with pytest.raises(UsageError, match="write file:PATH"):
        check_source(image(url[1:]))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (image(None), "image_url has no url"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "input_audio has no data"),
        (image("data:image/png;base64,"), "the data is empty"),
        (image("data:image/png;base64,A"), "the data is not base64"),
        (image("cat.png"), "'cat.png': write file:PATH, a data URL, or an address with http:// or https://"),
        (image("ftp://host/cat.png"), "write file:PATH"),
        (image("https:///cat.png"), "write file:PATH"),
        (image("http://[1::2"), "write file:PATH"),
    ],
)
def test_a_source_that_no_model_could_be_sent_is_refused(part, words):
    with pytest.raises(UsageError, match=words):
        check_source(part)


def test_a_refused_source_is_shown_by_its_first_80_characters():
    with pytest.raises(UsageError, match=rf"^'{'x' * 80}': write"):
        check_source(image("x" * 81))


def test_drawings_are_text_and_written_with_or_without_base64():
    drawing = Media(b"<svg a='1 %'/>", "svg")
    assert decode_part(image("data:image/svg+xml,%3Csvg a='1 %25'/>")) == drawing
    assert decode_part(encode_media(IMAGE, drawing)) == drawing
    assert decode_part(image("DATA:IMAGE/SVG+XML;charset=utf-8;BASE64,PHN2Zy8+")) == Media(b"<svg/>", "svg")
    assert decode_part(image("data:image/png;base64,iV BO\nRw==")) == Media(b"\x89PNG", "png")


@pytest.mark.parametrize("url", ["data:image/png;base64", "data:;base64,AAAA", "data:image/png;base64;AAAA"])
def test_half_a_data_url_is_refused(url):
    with pytest.raises(UsageError, match="write a data URL as"):
        decode_part(image(url))


def test_data_of_a_type_without_a_suffix_keeps_its_type():
    media = decode_part(image("data:image/avif;base64,AAAA"))
    assert media == Media(b"\0\0\0", "bin", "image/avif")
    stored = replace_source({**IMAGE}, media.reference, media.suffix, media.media_type)
    assert stored["image_url"] == {"url": media.reference, "detail": "low", "media_type": "image/avif"}
    assert encode_media(stored, Media(media.data, "bin"))["image_url"]["url"] == "data:image/avif;base64,AAAA"
    assert "media_type" not in replace_source(stored, "media:x", "png")["image_url"]
    unknown = [
        image("x"),
        {"type": "image_url", "image_url": "x"},
        {"type": "image_url", "image_url": {"media_type": 7}},
    ]
    unknown.append({"type": "image_url", "image_url": {"media_type": "image/avif, and more"}})
    for part in unknown:
        assert encode_media(part, Media(b"", "bin"))["image_url"]["url"] == "data:application/octet-stream;base64,"
    with pytest.raises(UsageError, match="data of the type image/avif; known are"):
        decode_part(image("data:image/avif;base64,AAAA"), any_type=False)


def test_the_size_is_checked_before_data_is_decoded(monkeypatch):
    check_media_size(MAX_MEDIA_BYTES + 2)  # base64 has up to two bytes of padding
    with pytest.raises(UsageError, match=r"^20,971,523 bytes; an image or a sound may have at most 20,971,520$"):
        check_media_size(MAX_MEDIA_BYTES + 3)
    monkeypatch.setattr(media, "MAX_MEDIA_BYTES", 1000)
    percents = "%20" * 1002
    assert len(decode_part(image(f"data:image/svg+xml,{percents}")).data) == 1002
    with pytest.raises(UsageError, match=r"^1,003 bytes"):
        decode_part(image(f"data:image/svg+xml,{percents}x"))
    assert len(decode_part(image("data:image/png;base64," + "A" * 1336)).data) == 1002
    for broken in ("A" * 1338, "!" * 1338):  # it is not looked at before
        with pytest.raises(UsageError, match=r"^1,003 bytes"):
            decode_part(image(f"data:image/png;base64,{broken}"))


def test_types_that_are_not_known_are_shown_cut():
    with pytest.raises(UsageError) as caught:
        decode_part({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "x" * 60}})
    assert re.findall("x{5,}", str(caught.value)) == ["x" * 39]  # behind a quote
    with pytest.raises(UsageError) as caught:
        decode_part(image(f"data:text/{'y' * 60};base64,AAAA"))
    assert re.findall("y{5,}", str(caught.value)) == ["y" * 35]  # behind text/
    with pytest.raises(UsageError) as caught:
        decode_part(image(f"data:{'z' * 60},AAAA"))
    assert re.findall("z{5,}", str(caught.value)) == ["z" * 35]  # behind data:


def test_only_errors_about_the_part_are_given_its_place():
    def fail(part):
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        map_parts([Message("user", [IMAGE])], fail)


def test_a_source_that_can_be_sent_is_returned():
    for url in ("https://host/cat.png", "file:cat.png", data_url(make_png())):
        assert check_source(image(url)) == url


def test_references_are_told_from_other_sources():
    name = name_of(make_png())
    assert [read_reference(source) for source in (f"media:{name}", f"file:{name}", "", None)] == [
        name,
        None,
        None,
        None,
    ]
    assert [is_media_name(each) for each in (name, name[1:], f"{name}x", name.replace("png", "exe"))] == [
        True, False, False, False,
    ]  # fmt: skip
    stored, far = Message("user", [TEXT, image(f"media:{name}")]), Message("user", [image("https://host/cat.png")])
    assert (has_references([far, stored]), has_references([far]), has_references([])) == (True, False, False)
    assert (has_own_data([stored, far]), has_own_data([Message("user", [image("file:a.png")])])) == (False, True)
    assert has_media([Message("user", "hi"), Message("user", [TEXT, {"type": "input_audio"}])])
    assert not has_media([Message("user", "hi"), Message("user", [TEXT])])


def test_a_part_with_a_reference_or_a_path_holds_no_data():
    paths = [image("media:x.png"), image("file:x.png"), {"type": "input_audio", "input_audio": {"data": "file:x.wav"}}]
    assert [decode_part(part) for part in [*paths, TEXT, image(None)]] == [None] * 5
    assert identify_part(image("https://host/cat.png")) == "https://host/cat.png"
