"""Content parts with images and sounds: what they hold, and what stands for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.core import (
    MAX_MEDIA_BYTES,
    Media,
    Message,
    choose_suffix,
    decode_part,
    encode_media,
    has_own_data,
    identify_part,
    list_sources,
    map_parts,
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
