"""A Ray of this process alone, whose workers import what this process can import."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import ray


@contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    """Start Ray on this machine, and stop it at the end."""
    paths = os.pathsep.join(path for path in sys.path if path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": paths}},
        )
    try:
        yield
    finally:
        ray.shutdown()
