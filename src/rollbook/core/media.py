"""Images and audio in messages: content parts of the chat completions protocol, and references to stored data.

A part holds a URL, data, or a reference `media:NAME` to a file of the run directory, whose name is the SHA-256 of its
content and a suffix for its type. Messages in run directories and in memory hold references; the data is put in when
the model is called. No I/O here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote_to_bytes, urlsplit

import msgspec

from rollbook.core.json import JSON
from rollbook.core.task import Message
from rollbook.errors import UsageError

ContentPart: TypeAlias = dict[str, JSON]

REFERENCE_PREFIX, FILE_PREFIX, DATA_PREFIX = "media:", "file:", "data:"
MAX_MEDIA_BYTES = 20 << 20
"""The largest image or sound: a bigger one is refused."""

MEDIA_TYPES = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "svg": "image/svg+xml",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
}
"""The media types by the suffix of a stored file."""
AUDIO_FORMATS = ("wav", "mp3", "flac", "ogg")
OTHER_SUFFIX = "bin"
"""The suffix of data of any other type, such as image/avif; the part that refers to it has the `media_type`."""
_OTHER_TYPE = re.compile(r"(?:image|audio|video|application)/[\w.+-]+")
_SUFFIXES = {kind: suffix for suffix, kind in MEDIA_TYPES.items()} | {
    "image/jpg": "jpg",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mp3": "mp3",
}
_FILE_SUFFIXES = {suffix: suffix for suffix in MEDIA_TYPES} | {"jpeg": "jpg"}
_NAME = re.compile(rf"[0-9a-f]{{64}}\.({'|'.join([*MEDIA_TYPES, OTHER_SUFFIX])})")
PART_TYPES = {"image_url": "url", "input_audio": "data"}
"""The types of content parts that hold an image or a sound, and the field with its source."""


class Media(NamedTuple):
    """The content of an image or a sound, and the suffix of its type; `media_type` only where no suffix names it."""

    data: bytes
    suffix: str
    media_type: str = ""

    @property
    def name(self) -> str:
        """The name of its file: the same content of the same type has the same name."""
        return f"{hashlib.sha256(self.data).hexdigest()}.{self.suffix}"

    @property
    def reference(self) -> str:
        """What stands for it in a message."""
        return f"{REFERENCE_PREFIX}{self.name}"


def is_media_name(name: str) -> bool:
    """Return whether a text is the name of a stored file."""
    return _NAME.fullmatch(name) is not None


def read_source(part: ContentPart) -> str | None:
    """Return the URL, the data or the reference of an image or a sound; None for other parts.

    >>> read_source({"type": "image_url", "image_url": {"url": "https://host/cat.png"}})
    'https://host/cat.png'
    """
    if part.get("type") == "image_url":
        image = part.get("image_url")
        source = image.get("url") if isinstance(image, dict) else image
    elif part.get("type") == "input_audio":
        audio = part.get("input_audio")
        source = audio.get("data") if isinstance(audio, dict) else None
    else:
        return None
    return source if isinstance(source, str) else None


def check_source(part: ContentPart) -> str:
    """Return the source of an image or a sound; a UsageError says what is wrong with one that no model can be sent."""
    source = read_source(part)
    if source is None:
        raise UsageError(f"{part['type']} has no {PART_TYPES[part['type']]}")
    if source.startswith((REFERENCE_PREFIX, FILE_PREFIX)):
        return source
    media = decode_part(part)
    if media is not None and not media.data:
        raise UsageError("the data is empty")
    if media is None and not _is_web_address(source):
        raise UsageError(f"{source[:80]!r}: write file:PATH, a data URL, or an address with http:// or https://")
    return source


def _is_web_address(source: str) -> bool:
    try:
        address = urlsplit(source)
    except ValueError:
        return False
    return address.scheme in ("http", "https") and bool(address.hostname)


def replace_source(part: ContentPart, source: str, suffix: str, media_type: str = "") -> ContentPart:
    """Return the part with another source; a sound gets the format that the suffix names."""
    if part["type"] == "input_audio":
        return {**part, "input_audio": {**part["input_audio"], "data": source, "format": suffix}}
    image = dict(part["image_url"]) if isinstance(part["image_url"], dict) else {}
    image.pop("media_type", None)
    kind = {"media_type": media_type} if media_type else {}
    return {**part, "image_url": {**image, "url": source, **kind}}


def read_reference(source: str | None) -> str | None:
    """Return the name of the stored file that a source refers to; None if it is not a reference."""
    return source.removeprefix(REFERENCE_PREFIX) if source and source.startswith(REFERENCE_PREFIX) else None


def decode_part(part: ContentPart, *, any_type: bool = True) -> Media | None:
    """Return the data that a part holds itself; None if it holds a URL, a path or a reference.

    Raises a UsageError if the data cannot be read, is too large, or is of a type that no image has. Without `any_type`,
    it must be one of MEDIA_TYPES.
    """
    source = read_source(part)
    if source is None or source.startswith((REFERENCE_PREFIX, FILE_PREFIX)):
        return None
    if part["type"] == "input_audio":
        suffix = str(part["input_audio"].get("format") or "").lower()
        if suffix not in AUDIO_FORMATS:
            raise UsageError(f"audio of the format {suffix or 'not given'!r:.40}; known are {', '.join(AUDIO_FORMATS)}")
        return Media(_decode_base64(source), suffix)
    if not source.lower().startswith(DATA_PREFIX):
        return None
    return _decode_data_url(source, any_type)


def _decode_data_url(source: str, any_type: bool) -> Media:
    """Return the data of a URL such as data:image/png;charset=utf-8;base64,AAAA; its parameters mean nothing here."""
    head, comma, body = source[len(DATA_PREFIX) :].partition(",")
    kind, *parameters = [each.strip().lower() for each in head.split(";")]
    encoded = "base64" in parameters
    if not comma or not kind or not (encoded or kind == MEDIA_TYPES["svg"]):  # only text is written without base64
        raise UsageError(f"{source[:40]}...: write a data URL as data:image/png;base64,...")
    suffix = _SUFFIXES.get(kind, "")
    if not suffix and not (any_type and _OTHER_TYPE.fullmatch(kind)):
        raise UsageError(f"data of the type {kind:.40}; known are {', '.join(_SUFFIXES)}")
    data = _decode_base64(body) if encoded else _decode_percents(body)
    return Media(data, suffix) if suffix else Media(data, OTHER_SUFFIX, kind)


def _decode_base64(text: str) -> bytes:
    check_media_size(len(text) * 3 // 4)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("the data is not base64") from None


def _decode_percents(text: str) -> bytes:
    check_media_size(len(text) - 2 * text.count("%"))
    return unquote_to_bytes(text)


def check_media_size(size: int) -> None:
    """Refuse data that is too large."""
    if size > MAX_MEDIA_BYTES + 2:
        raise UsageError(f"{size:,} bytes; an image or a sound may have at most {MAX_MEDIA_BYTES:,}")


def choose_suffix(part: ContentPart, path: str) -> str:
    """Return the suffix of a file that a part names; a UsageError lists the known ones."""
    suffix = _FILE_SUFFIXES.get(path.rpartition(".")[2].lower(), "")
    wanted = part["type"] == "input_audio"
    if not suffix or (suffix in AUDIO_FORMATS) != wanted:
        known = [each for each in _FILE_SUFFIXES if (each in AUDIO_FORMATS) == wanted]
        raise UsageError(f"{path}: the name of {'a sound' if wanted else 'an image'} ends in .{', .'.join(known)}")
    return suffix


def encode_media(part: ContentPart, media: Media) -> ContentPart:
    """Return a part with its data, as the protocol has it: a data URL, or for a sound base64."""
    text = base64.b64encode(media.data).decode()
    if part["type"] == "input_audio":
        return replace_source(part, text, media.suffix)
    kind = MEDIA_TYPES.get(media.suffix) or media.media_type or read_media_type(part)
    return replace_source(part, f"data:{kind};base64,{text}", media.suffix)


def read_media_type(part: ContentPart) -> str:
    """Return the type of the data that a part refers to, where the name of the file does not tell it."""
    image = part.get("image_url")
    kind = image.get("media_type") if isinstance(image, dict) else None
    return kind if isinstance(kind, str) and _OTHER_TYPE.fullmatch(kind) else "application/octet-stream"


def list_sources(messages: Iterable[Message]) -> list[str]:
    """Return the sources of all images and sounds of messages, in their order."""
    return [
        source
        for message in messages
        if isinstance(message.content, list)
        for part in message.content
        if (source := read_source(part)) is not None
    ]


def has_media(messages: Sequence[Message]) -> bool:
    """Return whether messages have parts for images or sounds, whatever these hold."""
    parts = [part for message in messages if isinstance(message.content, list) for part in message.content]
    return any(part.get("type") in PART_TYPES for part in parts)


def has_references(messages: Sequence[Message]) -> bool:
    """Return whether messages refer to stored files."""
    return any(source.startswith(REFERENCE_PREFIX) for source in list_sources(messages))


def has_own_data(messages: Sequence[Message]) -> bool:
    """Return whether messages hold data or paths themselves, which can be stored apart."""
    return any(not source.startswith((REFERENCE_PREFIX, "http:", "https:")) for source in list_sources(messages))


def map_parts(messages: Sequence[Message], change: Callable[[ContentPart], ContentPart]) -> list[Message]:
    """Return messages whose images and sounds were changed; an error names the place of the part."""
    return [_map_message(message, number, change) for number, message in enumerate(messages)]


def _map_message(message: Message, number: int, change: Callable[[ContentPart], ContentPart]) -> Message:
    if not isinstance(message.content, list) or not any(part.get("type") in PART_TYPES for part in message.content):
        return message
    content = []
    for place, part in enumerate(message.content):
        try:
            content.append(change(part) if part.get("type") in PART_TYPES else part)
        except UsageError as error:
            raise UsageError(f"messages[{number}].content[{place}]: {error}") from None
    return msgspec.structs.replace(message, content=content)


def identify_part(part: ContentPart) -> str:
    """Return what a part shows, the same for its data and for a reference to it; empty for a text."""
    try:
        media = decode_part(part)
    except UsageError:
        media = None
    return media.reference if media else read_source(part) or ""
