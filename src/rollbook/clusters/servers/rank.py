"""`python -m rollbook.clusters.servers.rank HEAD COMMANDS`: become the command of this rank of a multi-node server."""

from __future__ import annotations

import os
import sys

import msgspec

from rollbook.clusters.slurm import NODE_PLACEHOLDER, RankCommands

CANNOT_START = 127


def make_rank_command(commands: RankCommands, rank: int, node: str) -> list[str]:
    """What this rank runs on this node."""
    return [*(word.replace(NODE_PLACEHOLDER, node) for word in commands.before), *commands.ranks[rank]]


def main(words: list[str]) -> int:
    """Become the command of this rank; comes back only if that cannot be."""
    head, told = words[0], msgspec.json.decode(words[1], type=RankCommands)
    rank, node = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"]
    if (rank == 0) != (node == head):
        sys.stderr.write(f"rank {rank} is on {node}, where the first was to be on {head}\n")
        return CANNOT_START
    command = make_rank_command(told, rank, node)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]} on {node}: {error.strerror}\n")
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
