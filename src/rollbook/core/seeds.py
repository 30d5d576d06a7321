"""The seed of each sample: a hash of the run's seed, the task id and the sample number."""

from __future__ import annotations

import hashlib


def derive_seed(run_seed: int, task_id: str, sample: int) -> int:
    """Return a sample's seed: a hash, so adding tasks or samples changes no other; 31 bits, which servers accept."""
    digest = hashlib.blake2b(f"{run_seed}\0{task_id}\0{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
