"""Small images and sounds, and an environment that shows them."""

from __future__ import annotations

import base64
import struct
import zlib
from hashlib import sha256
from pathlib import Path


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def make_png(red: int = 255, green: int = 0, blue: int = 0, size: int = 16) -> bytes:
    """A square of one colour."""
    rows = (b"\0" + bytes((red, green, blue)) * size) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def make_wav(samples: int = 64) -> bytes:
    """Silence."""
    data = bytes(2 * samples)
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def name_of(data: bytes, suffix: str = "png") -> str:
    """The name under which a run directory holds it."""
    return f"{sha256(data).hexdigest()}.{suffix}"


PICTURES = """
from rollbook import Environment, Task


def show(*parts):
    return [{"role": "user", "content": [{"type": "text", "text": "What is 1 + 1?"}, *parts]}]


class Pictures(Environment):
    def tasks(self):
        for i in range(3):
            red = {"type": "image_url", "image_url": {"url": "file:pics/red.png", "detail": "low"}}
            sound = {"type": "input_audio", "input_audio": {"data": "file:pics/tone.wav"}}
            yield Task(id=f"p{i}", messages=show(red, sound), answer="2")

    def verify(self, task, rollout):
        return True
"""


def write_pictures(folder: Path, source: str = PICTURES) -> str:
    """Write the environment with its image and its sound; gives its spec."""
    (folder / "pics").mkdir(exist_ok=True)
    (folder / "pics" / "red.png").write_bytes(make_png())
    (folder / "pics" / "tone.wav").write_bytes(make_wav())
    (folder / "pictures.py").write_text(source)
    return f"{folder / 'pictures.py'}:Pictures"
