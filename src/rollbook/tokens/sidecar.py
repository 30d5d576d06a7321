"""A turn's record in the token sidecar: only what its prompt adds to what came before, compressed, checked.

    version u8 · shared u32 · prompt ids u32 · sampled ids u32 · crc32 u32 · zlib(ids int32, logprobs float32)

All little-endian. `shared` counts the leading prompt ids that `held` (the previous prompt and its sampled
ids) already has; the crc covers the other header fields and the compressed bytes.
"""

from __future__ import annotations

import struct
import zlib

from rollbook.core.turn import Turn
from rollbook.errors import TokenError
from rollbook.tokens.merge import tokens_of
from rollbook.tokens.prefix import shared_prefix

VERSION = 1
_HEAD = struct.Struct("<BIII")
_CRC = struct.Struct("<I")
_START = HEAD_BYTES = _HEAD.size + _CRC.size


def encode(turn: Turn, held: list[int]) -> bytes:
    """The record of a turn whose ids are recorded; `held` is what decode will be given too."""
    prompt, ids, logprobs = tokens_of(turn)
    shared = shared_prefix(held, prompt)
    rest = prompt[shared:]
    try:
        body = struct.pack(f"<{len(rest) + len(ids)}i{len(ids)}f", *rest, *ids, *logprobs)
    except (struct.error, OverflowError) as error:
        raise TokenError(f"ids must fit int32 and logprobs float32: {error}") from None
    packed = zlib.compress(body, 1)
    head = _HEAD.pack(VERSION, shared, len(rest), len(ids))
    return head + _CRC.pack(zlib.crc32(packed, zlib.crc32(head))) + packed


def decode(record: bytes, held: list[int]) -> tuple[list[int], list[int], list[float]]:
    """The prompt ids, sampled ids and logprobs of a record; a TokenError if a byte of it is wrong."""
    _check(record)
    shared, rest, sampled = read_head(record)
    if shared > len(held):
        raise TokenError(f"a token record continues {shared} ids, but only {len(held)} came before it")
    body = _unpack(record)
    if len(body) != 4 * (rest + 2 * sampled):
        raise TokenError(f"a token record of {rest} + {sampled} ids holds {len(body)} bytes")
    values = struct.unpack(f"<{rest + sampled}i{sampled}f", body)
    prompt = held[:shared]
    prompt += values[:rest]
    return prompt, list(values[rest : rest + sampled]), list(values[rest + sampled :])


def _unpack(record: bytes) -> bytes:
    try:
        return zlib.decompress(memoryview(record)[_START:])
    except zlib.error as error:
        raise TokenError(f"a token record of {len(record)} bytes is damaged: {error}") from None


def _check(record: bytes) -> None:
    if len(record) < _START:
        raise TokenError(f"a token record of {len(record)} bytes is cut short")
    (crc,) = _CRC.unpack_from(record, _HEAD.size)
    view = memoryview(record)
    if zlib.crc32(view[_START:], zlib.crc32(view[: _HEAD.size])) != crc:
        raise TokenError(f"a token record of {len(record)} bytes is damaged: its checksum does not match")


def read_head(record: bytes) -> tuple[int, int, int]:
    """How many prompt ids a record shares with what was held, how many it adds, and how many were sampled.

    The first HEAD_BYTES of it are enough; whether they are damaged is not looked at.
    """
    if len(record) < HEAD_BYTES:
        raise TokenError(f"a token record of {len(record)} bytes is cut short")
    version, shared, rest, sampled = _HEAD.unpack_from(record)
    if version != VERSION:
        raise TokenError(f"a token record of version {version}; this Rollbook reads version {VERSION}")
    return shared, rest, sampled
