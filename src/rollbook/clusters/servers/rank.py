"""`python -m rollbook.clusters.servers.rank HEAD COMMANDS`: become the command of this rank of a multi-node server."""

from __future__ import annotations

import os
import sys

import msgspec

from rollbook.clusters.scheduler import find_scheduler
from rollbook.clusters.servers.launch import NODE_PLACEHOLDER, RankCommands

CANNOT_START = 127


def make_rank_command(commands: RankCommands, rank: int, node: str) -> list[str]:
    """Return what this rank runs on this node."""
    return [*(word.replace(NODE_PLACEHOLDER, node) for word in commands.before), *commands.ranks[rank]]


def main(words: list[str]) -> int:
    """Become the command of this rank; return only if that is impossible."""
    head, commands = words[0], msgspec.json.decode(words[1], type=RankCommands)
    rank, node = find_scheduler(commands.scheduler).read_rank(os.environ)
    if (rank == 0) != (node == head):
        sys.stderr.write(f"rank {rank} is on {node}, but the first rank was expected on {head}\n")
        return CANNOT_START
    command = make_rank_command(commands, rank, node)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]} on {node}: {error.strerror}\n")
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
