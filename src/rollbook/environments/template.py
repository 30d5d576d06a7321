"""A prompt template: a text file in which {field} stands for that field of a row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from rollbook.core.json import JSON, encode
from rollbook.errors import UsageError

_FIELD = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*(?:\.\w+)*)\}")


class Template(msgspec.Struct, frozen=True):
    """The text of a template. Only {name} and {name.inner} are filled in; \\boxed{} is left alone, {{x}} gives {x}."""

    path: str
    text: str

    @classmethod
    def read(cls, path: str) -> Template:
        """The template of a file; a UsageError says what is wrong with it."""
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise UsageError(f"--prompt-template {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"--prompt-template {path}: not UTF-8 (byte {error.start + 1})") from None
        if not any(match[1] for match in _FIELD.finditer(text)):
            raise UsageError(f"--prompt-template {path}: names no field; write {{question}} where the question goes")
        return cls(path, text.rstrip("\n"))

    def fill(self, values: Mapping[str, JSON], where: str) -> str:
        """The prompt of a row; a field that the row lacks is a UsageError that names the row.

        >>> Template("t", "Q: {question} Put it in \\\\boxed{}.").fill({"question": "1 + 1?"}, "rows.jsonl:1")
        'Q: 1 + 1? Put it in \\\\boxed{}.'
        """

        def value(match: re.Match[str]) -> str:
            return match[0][0] if match[1] is None else self._text(match[1], values, where)

        return _FIELD.sub(value, self.text)

    def _text(self, name: str, values: Mapping[str, JSON], where: str) -> str:
        found: JSON = values
        for part in name.split("."):
            if not isinstance(found, Mapping) or found.get(part) is None:
                has = ", ".join(values) or "nothing"
                raise UsageError(f"{where}: no {name!r}, which {self.path} asks for; it has: {has}")
            found = found[part]
        return found if isinstance(found, str) else encode(found).decode()
