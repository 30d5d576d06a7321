"""`python -m rollbook.clusters.servers.exec_child COMMAND...`: become a command that dies with its parent."""

from __future__ import annotations

import os
import sys

from rollbook.processes import die_with_parent

CANNOT_START = 127


def main(command: list[str]) -> int:
    """Replace this process; return only if there is no such command."""
    die_with_parent()  # the kernel keeps this setting over execve
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201 - the log
        return CANNOT_START


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
