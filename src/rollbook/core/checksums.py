"""Checksums in JSON: of every journal line since schema 2, and of the small files of a run directory.

A checksum is the last field of its object, `"crc":"0a1b2c3d"`: the CRC-32 (as in zlib, gzip and PNG) of all bytes
before the comma in front of it, as eight hexadecimal digits. It is a field like any other to a reader that does not
check it.
"""

from __future__ import annotations

import re
import zlib
from typing import TypeVar

import msgspec

from rollbook.core.json import encode_pretty

T = TypeVar("T")
_CRC_START, _CRC_END = b',"crc":"', b'"}'
CRC_BYTES = len(_CRC_START) + 8 + len(_CRC_END)
_PRETTY_END = b"\n}\n"
_RECORD_CRC_BYTES = 64
"""More than the checksum of a file takes, however it is indented."""
WRONG_RECORD_CRC = 'its checksum is wrong (if you changed it on purpose, remove the field "crc")'


def add_crc(encoded: bytes) -> bytes:
    """Return an encoded JSON object with its checksum as the last field."""
    return b'%b,"crc":"%08x"}' % (encoded[:-1], zlib.crc32(memoryview(encoded)[:-1]))


def has_crc(line: bytes) -> bool:
    """Return whether a line, given without its newline, ends with a checksum."""
    return line[-CRC_BYTES : len(_CRC_START) - CRC_BYTES] == _CRC_START and line.endswith(_CRC_END)


def is_crc_right(line: bytes) -> bool:
    """Return whether the checksum at the end of a line is that of the line."""
    return b"%08x" % zlib.crc32(memoryview(line)[:-CRC_BYTES]) == line[-len(_CRC_END) - 8 : -len(_CRC_END)]


def encode_record(value: object) -> bytes:
    """Return an object as an indented JSON file whose last field is its checksum.

    >>> encode_record({"n": 1})
    b'{\\n  "n": 1,\\n  "crc": "c53d8937"\\n}\\n'
    """
    body = encode_pretty(value).removesuffix(_PRETTY_END)
    return b'%b,\n  "crc": "%08x"%b' % (body, zlib.crc32(body), _PRETTY_END)


def is_record_intact(data: bytes) -> bool:
    """Return whether a JSON file has the right checksum, or none: files of earlier versions have none."""
    found = _find_record_crc(data, max(0, len(data) - _RECORD_CRC_BYTES))
    return found is None or b'"%08x"' % zlib.crc32(memoryview(data)[: found.start()]) == found[1].rstrip(b" \t\r\n}")


def decode_record(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return the value of a JSON file; one with a wrong checksum raises the DecodeError that damaged JSON raises."""
    value = decoder.decode(data)
    if not is_record_intact(data):
        raise msgspec.DecodeError(WRONG_RECORD_CRC)
    return value


_find_record_crc = re.compile(rb',\s*"crc"\s*:\s*(.*)', re.DOTALL).search
