"""A turn's record in the token sidecar: only the ids that its prompt adds to the previous ones, compressed and
checksummed.

    version u8 · shared u32 · prompt ids u32 · sampled ids u32 · crc32 u32 · zlib(ids int32, logprobs float32)

All little-endian. `shared` counts the leading prompt ids that `previous_ids` (the previous prompt and its sampled ids)
already has; the crc covers the other header fields and the compressed bytes.
"""

from __future__ import annotations

import struct
import zlib

from rollbook.core import Turn
from rollbook.errors import TokenError
from rollbook.tokens.sequences import require_tokens, shared_prefix_length

RECORD_VERSION = 1
_HEADER = struct.Struct("<BIII")
_CRC = struct.Struct("<I")
_BODY_START = HEADER_BYTES = _HEADER.size + _CRC.size


def encode_tokens(turn: Turn, previous_ids: list[int]) -> bytes:
    """Return the record of a turn whose ids are known; decode_tokens must get the same `previous_ids`."""
    prompt, ids, logprobs = require_tokens(turn)
    shared = shared_prefix_length(previous_ids, prompt)
    rest = prompt[shared:]
    try:
        body = struct.pack(f"<{len(rest) + len(ids)}i{len(ids)}f", *rest, *ids, *logprobs)
    except (struct.error, OverflowError) as error:
        raise TokenError(f"ids must fit int32 and logprobs float32: {error}") from None
    packed = zlib.compress(body, 1)
    head = _HEADER.pack(RECORD_VERSION, shared, len(rest), len(ids))
    return head + _CRC.pack(zlib.crc32(packed, zlib.crc32(head))) + packed


def decode_tokens(record: bytes, previous_ids: list[int]) -> tuple[list[int], list[int], list[float]]:
    """Return the prompt ids, sampled ids and logprobs of a record; TokenError if a byte of it is wrong."""
    _check_crc(record)
    shared, rest, sampled = read_header(record)
    if shared > len(previous_ids):
        raise TokenError(f"a token record continues {shared} ids, but only {len(previous_ids)} came before it")
    body = _unpack(record)
    if len(body) != 4 * (rest + 2 * sampled):
        raise TokenError(f"a token record of {rest} + {sampled} ids holds {len(body)} bytes")
    values = struct.unpack(f"<{rest + sampled}i{sampled}f", body)
    prompt = previous_ids[:shared]
    prompt += values[:rest]
    return prompt, list(values[rest : rest + sampled]), list(values[rest + sampled :])


def _unpack(record: bytes) -> bytes:
    try:
        return zlib.decompress(memoryview(record)[_BODY_START:])
    except zlib.error as error:
        raise TokenError(f"a token record of {len(record)} bytes is damaged: {error}") from None


def _check_crc(record: bytes) -> None:
    if len(record) < _BODY_START:
        raise TokenError(f"a token record of {len(record)} bytes is cut short")
    (crc,) = _CRC.unpack_from(record, _HEADER.size)
    view = memoryview(record)
    if zlib.crc32(view[_BODY_START:], zlib.crc32(view[: _HEADER.size])) != crc:
        raise TokenError(f"a token record of {len(record)} bytes is damaged: its checksum does not match")


def read_header(record: bytes) -> tuple[int, int, int]:
    """Return how many prompt ids a record shares with the previous ones, how many it adds, and how many were sampled.

    The first HEADER_BYTES are enough; the checksum is not checked.
    """
    if len(record) < HEADER_BYTES:
        raise TokenError(f"a token record of {len(record)} bytes is cut short")
    version, shared, rest, sampled = _HEADER.unpack_from(record)
    if version != RECORD_VERSION:
        raise TokenError(f"a token record of version {version}; this Rollbook reads version {RECORD_VERSION}")
    return shared, rest, sampled
