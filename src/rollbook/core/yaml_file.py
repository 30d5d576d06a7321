"""Strict reading of YAML files that people write: every mistake is one line with the file and the line number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from rollbook.core.json import JSON
from rollbook.errors import UsageError

if TYPE_CHECKING:
    from yaml import Node, SafeLoader


S = TypeVar("S", bound=msgspec.Struct)
MAX_VALUES = 100_000
"""Anchors can expand a small file to more values than fit into memory."""


class YamlEntry(NamedTuple):
    """The node of a key or an item, and the line it is on."""

    line: int
    node: Node


class YamlFile:
    """One document; every entry has its line number."""

    def __init__(self, path: Path) -> None:
        import yaml

        self.path = path
        try:
            self._loader = _make_loader(path.read_text(encoding="utf-8"))
            root: Node | None = self._loader.get_single_node()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; check the path") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{path}: not UTF-8 (byte {error.start + 1})") from None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            raise self.error_at(mark.line + 1 if mark else 1, f"not YAML: {error.problem}") from None
        except (yaml.YAMLError, RecursionError) as error:
            raise UsageError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        if root is None:
            raise self.error_at(1, "there is nothing in the file")
        self._check_keys(root, set())
        self.root = make_entry(root)

    def error_at(self, line: int, reason: object) -> UsageError:
        """Return the error for a mistake on a line."""
        return UsageError(f"{self.path}:{line}: {reason}")

    def _check_keys(self, node: Node, seen: set[int]) -> None:
        """Refuse a key that is twice in a mapping. What `<<` merges comes later and has lower priority."""
        import yaml

        if not isinstance(node, yaml.CollectionNode) or id(node) in seen:
            return
        seen.add(id(node))
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        keys: set[str] = set()
        for key, _ in pairs:
            if not isinstance(key, yaml.ScalarNode):
                raise self.error_at(make_entry(key).line, "a key has to be one word")
            if key.value in keys:
                raise self.error_at(make_entry(key).line, f"{key.value} is given twice")
            keys.add(key.value)
        for inner in [value for _, value in pairs] or node.value:
            self._check_keys(inner, seen)

    def read_mapping(self, entry: YamlEntry, what: str) -> dict[str, YamlEntry]:
        """Return the entries of a mapping by their keys."""
        import yaml

        if not isinstance(entry.node, yaml.MappingNode):
            actual = "a list" if isinstance(entry.node, yaml.SequenceNode) else repr(entry.node.value)
            raise self.error_at(entry.line, f"{what} is written as `key: value`, not as {actual}")
        try:
            self._loader.flatten_mapping(entry.node)
        except yaml.MarkedYAMLError as error:
            raise self.error_at(entry.line, error.problem) from None
        return {key.value: YamlEntry(make_entry(key).line, value) for key, value in entry.node.value}

    def read_items(self, entry: YamlEntry, what: str) -> list[YamlEntry]:
        """Return the items of a list."""
        import yaml

        if not isinstance(entry.node, yaml.SequenceNode):
            raise self.error_at(entry.line, f"{what} is written as a list, each beginning with a dash")
        return [make_entry(node) for node in entry.node.value]

    def read_fields(self, entries: Mapping[str, YamlEntry], struct_type: type[S], what: str) -> dict[str, JSON]:
        """Return the values of a struct's fields; an unknown field or a wrong type is an error."""
        types = {field.name: field.type for field in msgspec.structs.fields(struct_type)}
        values: dict[str, JSON] = {}
        for key, one in entries.items():
            if key not in types:
                raise self.error_at(one.line, f"{what} has no {key!r}; there are {', '.join(types)}")
            try:
                values[key] = msgspec.convert(self.read_value(one), types[key])
            except msgspec.ValidationError as error:
                raise self.error_at(one.line, f"{key}: {_describe_error(error)}") from None
        return values

    def read_value(self, entry: YamlEntry) -> JSON:
        """Return the value of an entry; it must be one that JSON can hold."""
        import yaml

        try:
            value: JSON = self._loader.construct_object(entry.node, deep=True)
        except yaml.MarkedYAMLError as error:
            raise self.error_at(entry.line, error.problem) from None
        except (ValueError, RecursionError) as error:
            raise self.error_at(entry.line, f"cannot be read: {error}") from None
        except (LookupError, AttributeError):  # PyYAML raises these for `!!bool soup`, `!!int ""`, `!!timestamp soup`
            raise self.error_at(entry.line, "cannot be read: a value does not fit its tag") from None
        for count, leaf in enumerate(_iterate_leaves(value)):
            if count > MAX_VALUES:
                raise self.error_at(entry.line, f"more than {MAX_VALUES} values")
            if not _is_json_scalar(leaf):
                raise self.error_at(entry.line, f"{leaf} cannot be written as JSON; put quotes around it if it is text")
        return value


def make_entry(node: Node) -> YamlEntry:
    """Return a node with the line it begins on."""
    return YamlEntry(node.start_mark.line + 1, node)


def _make_loader(text: str) -> SafeLoader:
    """Return PyYAML's safe loader, changed to read 1e-3 as a number, as other parsers do."""
    import yaml

    loader = yaml.SafeLoader(text)
    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
    resolvers = {first: list(known) for first, known in loader.yaml_implicit_resolvers.items()}
    for first in "-+0123456789":
        resolvers.setdefault(first, []).append(("tag:yaml.org,2002:float", number))
    loader.yaml_implicit_resolvers = resolvers
    return loader


def _describe_error(error: msgspec.ValidationError) -> str:
    """Return msgspec's message in the style of ours."""
    words = str(error).replace("`", "").replace(" | null", "")
    return words[:1].lower() + words[1:]


def _iterate_leaves(value: JSON) -> Iterator[JSON]:
    """Yield every key and every value that contains no others."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _iterate_leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _iterate_leaves(inner)
    else:
        yield value


def _is_json_scalar(leaf: JSON) -> bool:
    return leaf is None or isinstance(leaf, str | int) or (isinstance(leaf, float) and math.isfinite(leaf))
