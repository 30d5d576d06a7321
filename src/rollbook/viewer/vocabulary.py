"""The text of token ids, from the tokenizer.json of the model that sampled them; without it ids stay ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rollbook.core import JSON, JSON_ERRORS, decode
from rollbook.errors import UsageError

SPACE_MARK = "\u2581"
_BYTE_PREFIX = "<0x"


class Vocabulary:
    """Texts by id. A token that is only part of a character is shown as its bytes."""

    def __init__(self, path: Path) -> None:
        content = _read_tokenizer(path)
        model = content.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict | list):
            raise UsageError(f"--tokenizer {path}: it has no vocabulary; name the tokenizer.json of the model")
        decoder = (
            _make_byte_decoder() if "ByteLevel" in str([content.get("decoder"), content.get("pre_tokenizer")]) else {}
        )
        try:
            self._texts = {number: _decode_token(written, decoder) for written, number in _list_entries(model["vocab"])}
            for added in content.get("added_tokens") or []:
                self._texts[added["id"]] = added["content"]
        except (TypeError, KeyError, ValueError, LookupError) as error:
            raise UsageError(f"--tokenizer {path}: its vocabulary cannot be read ({error})") from None

    def texts(self, ids: Sequence[int]) -> list[str | None]:
        """Return the text of each id; None for an unknown one."""
        return [self._texts.get(each) for each in ids]


def _read_tokenizer(path: Path) -> dict[str, JSON]:
    try:
        content = decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--tokenizer {path}: {error.strerror}") from None
    except JSON_ERRORS as error:
        raise UsageError(f"--tokenizer {path}: not JSON ({error}); name the tokenizer.json of the model") from None
    if not isinstance(content, dict):
        raise UsageError(f"--tokenizer {path}: not a tokenizer; name the tokenizer.json of the model")
    return content


def _list_entries(vocabulary: dict[str, int] | list[JSON]) -> Iterator[tuple[str, int]]:
    """Yield (token, id) from a table, or with a Unigram model from a list in the order of the ids."""
    if isinstance(vocabulary, dict):
        return iter(vocabulary.items())
    return ((str(entry[0]), number) for number, entry in enumerate(vocabulary))


def _decode_token(token: str, decoder: dict[str, int]) -> str:
    if decoder and all(character in decoder for character in token):
        return bytes(decoder[character] for character in token).decode("utf-8", "backslashreplace")
    if token.startswith(_BYTE_PREFIX) and token.endswith(">") and len(token) == 6:
        return bytes([int(token[3:5], 16)]).decode("utf-8", "backslashreplace")
    return token.replace(SPACE_MARK, " ")


def _make_byte_decoder() -> dict[str, int]:
    """Return how byte-level tokenizers write bytes: printable ones as they are, the others from U+0100 on, in order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + at): byte for at, byte in enumerate(others)}
