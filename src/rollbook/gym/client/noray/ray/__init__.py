"""Stands in for Ray in servers of NeMo Gym that never use it, but import it: a cluster of twenty processes less."""

from typing import NoReturn

__version__ = "0"


def is_initialized() -> bool:
    """So that nobody starts a cluster."""
    return True


def shutdown() -> None:
    """Nothing was started."""


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"ray.{name}: this server was started without Ray, for its source does not import it")
