"""Turns to exact sequences: merge and fork, the sidecar's record, padding and masks. Pure functions, no I/O.

Import `Sequence`, `Fork`, `merge`, `Batch` and `batch` from here, `encode` and `decode` from `sidecar`.
Nothing here tokenises text, and nothing may: ids come from the server that sampled them or do not exist.
"""

from rollbook.tokens.batch import Batch, batch
from rollbook.tokens.merge import merge
from rollbook.tokens.sequence import Fork, Sequence

__all__ = ["Batch", "Fork", "Sequence", "batch", "merge"]
