"""The tasks of `benchmarks/peers.py` in verifiers: python verifiers_program.py KIND URL COUNT CONCURRENCY FOLDER."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import verifiers as vf
from datasets import Dataset
from verifiers.utils.save_utils import load_outputs


async def same(completion, answer) -> float:
    return float(completion[-1]["content"].rpartition("#### ")[2] == answer)


async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def make_environment(kind: str, count: int) -> vf.Environment:
    rows = [{"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)} for n in range(count)]
    rubric = vf.Rubric(funcs=[same])
    if kind == "tools":
        return vf.ToolEnv(tools=[add], max_turns=10, eval_dataset=Dataset.from_list(rows), rubric=rubric)
    return vf.SingleTurnEnv(eval_dataset=Dataset.from_list(rows), rubric=rubric)


async def main() -> None:
    kind, url, count, concurrency, folder = sys.argv[1:]
    if kind == "read":
        print(sum(output["reward"] == 1 for output in load_outputs(Path(folder))))
        return
    os.environ["PEER_KEY"] = "none"
    client = vf.ClientConfig(api_base_url=url, api_key_var="PEER_KEY")
    results = await make_environment(kind, int(count)).evaluate(
        client=client,
        model="mock",
        num_examples=int(count),
        rollouts_per_example=1,
        max_concurrent=int(concurrency),
        save_results=True,
        results_path=Path(folder),
    )
    print(sum(output["reward"] == 1 for output in results["outputs"]))


if __name__ == "__main__":
    asyncio.run(main())
