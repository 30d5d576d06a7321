"""The tasks of `benchmarks/peers.py` in Rollbook: python rollbook_program.py KIND URL COUNT CONCURRENCY FOLDER."""

from __future__ import annotations

import sys

from rollbook_environments import Code, Single, Tools

import rollbook

KINDS = {"single": Single, "tools": Tools, "code": Code}


def main() -> None:
    kind, url, count, concurrency, folder = sys.argv[1:]
    if kind != "read":
        rollbook.run(KINDS[kind](int(count)), url, out=folder, concurrency=int(concurrency), progress=False)
    print(sum(rollout.reward == 1 for rollout in rollbook.load(folder).rollouts()))


if __name__ == "__main__":
    main()
