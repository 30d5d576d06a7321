"""One server on all nodes of its job: a step of Slurm's that starts a process on each, and ends when one of them does.

`python -m rollbook.clusters.servers.spread HEAD COMMANDS` is such a process: it becomes the command of its rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

from rollbook.core.json import encode
from rollbook.processes.child import module_argv

CANNOT_START = 127
NODE = "{node}"


class Commands(msgspec.Struct):
    """What each rank runs, and what stands before that on every node: the words of a container."""

    before: list[str]
    ranks: list[list[str]]


def spread_argv(head: str, before: Sequence[str], ranks: Sequence[list[str]]) -> list[str]:
    """The step that starts every rank, the first of them on the node `head`."""
    count = len(ranks)
    step = ["srun", "--overlap", f"--nodes={count}", f"--ntasks={count}", "--cpu-bind=none", "--kill-on-bad-exit=1"]
    told = encode(Commands(on_this_node(before), list(ranks))).decode()
    return [*step, *module_argv("rollbook.clusters.servers.spread", head, told)]


def last_words(tail: str) -> str:
    """What a server said last; that its step was ended too is Slurm's word, and no reason."""
    own = [line.strip() for line in tail.splitlines() if not line.startswith(("srun: ", "slurmstepd"))]
    return next((line for line in reversed(own) if any(map(str.isalnum, line))), "")


def on_this_node(before: Sequence[str]) -> list[str]:
    """The words of a container; where they are a step of their own, each rank's is on its own node."""
    if before[:1] != ["srun"]:
        return list(before)
    return ["srun", "--nodes=1", f"--nodelist={NODE}", "--cpu-bind=none", *before[1:]]


def command_of(told: Commands, rank: int, node: str) -> list[str]:
    """What this rank runs on this node."""
    return [*(word.replace(NODE, node) for word in told.before), *told.ranks[rank]]


def main(words: list[str]) -> int:
    """Become the command of this rank; comes back only if that cannot be."""
    head, told = words[0], msgspec.json.decode(words[1], type=Commands)
    rank, node = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"]
    if (rank == 0) != (node == head):
        sys.stderr.write(f"rank {rank} is on {node}, where the first was to be on {head}\n")
        return CANNOT_START
    command = command_of(told, rank, node)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]} on {node}: {error.strerror}\n")
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
