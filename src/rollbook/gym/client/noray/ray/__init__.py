"""Stub of Ray for servers of NeMo Gym that import it but never use it: saves a cluster of twenty processes."""

from typing import NoReturn

__version__ = "0"


def is_initialized() -> bool:
    """Return True, so that no cluster is started."""
    return True


def shutdown() -> None:
    """Nothing was started."""


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"ray.{name}: this server was started without Ray, for its source does not import it")
