"""Seeds: that of a sample is a hash of the run's seed, the task id and the sample; that of a role's call likewise."""

from __future__ import annotations

import hashlib


def derive_seed(run_seed: int, task_id: str, sample: int) -> int:
    """Return a sample's seed: a hash, so adding tasks or samples changes no other; 31 bits, which servers accept."""
    digest = hashlib.blake2b(f"{run_seed}\0{task_id}\0{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1


def derive_role_seed(rollout_seed: int, role: str, number: int) -> int:
    """Return the seed of a role's call: a hash of the rollout's seed, the role and the number of the call."""
    digest = hashlib.blake2b(f"{rollout_seed}\0{role}\0{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") >> 1
