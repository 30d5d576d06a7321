"""Python values kept exactly in JSON: what JSON would change (tuples, sets, keys that are not text) gets a tag."""

from __future__ import annotations

import math
from collections.abc import Callable

from rollbook.core.json import JSON

TAG = "$python"

_KINDS: dict[str, Callable[[list[JSON]], object]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "float": lambda items: float(items[0]),
}


def pack(value: object) -> JSON:
    """The value as JSON that `unpack` turns back into an equal value of the same types.

    >>> pack({"grid": [(1, 2)]})
    {'grid': [{'$python': 'tuple', 'of': [1, 2]}]}
    """
    if isinstance(value, dict):
        return _pack_dict(value)
    if isinstance(value, list):
        return [pack(v) for v in value]
    if isinstance(value, tuple):
        return {TAG: "tuple", "of": [pack(v) for v in value]}
    if isinstance(value, set | frozenset):
        return {TAG: type(value).__name__, "of": [pack(v) for v in sorted(value, key=repr)]}
    return _pack_scalar(value)


def _pack_scalar(value: object) -> JSON:
    """Text, numbers and None, also where NumPy made them."""
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {TAG: "float", "of": [repr(value)]}
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is None:
        return None
    raise TypeError(f"{type(value).__name__} cannot be kept as JSON")


def _pack_dict(value: dict[object, object]) -> JSON:
    if all(type(k) is str for k in value) and TAG not in value:
        return {k: pack(v) for k, v in value.items()}
    return {TAG: "dict", "of": [[pack(k), pack(v)] for k, v in value.items()]}


def unpack(value: JSON) -> JSON:
    """What `pack` was given."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {k: unpack(v) for k, v in value.items()}
    items = [unpack(v) for v in value["of"]]
    return _KINDS[value[TAG]](items)
