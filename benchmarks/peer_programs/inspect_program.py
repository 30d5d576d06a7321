"""The tasks of `benchmarks/peers.py` in inspect_ai: python inspect_program.py KIND URL COUNT CONCURRENCY FOLDER."""

from __future__ import annotations

import re
import sys

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log
from inspect_ai.model import get_model
from inspect_ai.scorer import Score, accuracy, scorer
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import sandbox


@tool
def add():
    async def execute(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return a + b

    return execute


@scorer(metrics=[accuracy()])
def same():
    async def score(state, target):
        return Score(value=float(state.output.completion.rpartition("#### ")[2] == target.text))

    return score


@scorer(metrics=[accuracy()])
def passes():
    async def score(state, target):
        code = re.findall(r"```python\n(.*?)```", state.output.completion, re.DOTALL)[-1]
        result = await sandbox().exec(["python3", "-c", f"{code}\n{target.text}"], timeout=3)
        return Score(value=float(result.success))

    return score


def make_task(kind: str, count: int) -> Task:
    if kind == "code":
        samples = [
            Sample(input="Write a function add(a, b).", target=f"assert add({n}, 1) == {n + 1}") for n in range(count)
        ]
        return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=passes(), sandbox="local")
    samples = [Sample(input=f"What is {n} + {n + 1}?", target=str(2 * n + 1)) for n in range(count)]
    solver = [use_tools(add()), generate()] if kind == "tools" else generate()
    return Task(dataset=MemoryDataset(samples), solver=solver, scorer=same())


def count_right(log: EvalLog) -> int:
    return sum(
        sample.scores is not None and next(iter(sample.scores.values())).value == 1 for sample in log.samples or []
    )


def main() -> None:
    kind, url, count, concurrency, folder = sys.argv[1:]
    if kind == "read":
        (info,) = list_eval_logs(folder)
        print(count_right(read_eval_log(info)))
        return
    model = get_model("openai/mock", base_url=url, api_key="none", responses_api=False)
    limits = dict.fromkeys(("max_connections", "max_samples", "max_subprocesses"), int(concurrency))
    if kind == "code":
        limits["max_subprocesses"] = 2
        limits["max_sandboxes"] = int(concurrency)
    (log,) = eval(
        make_task(kind, int(count)), model=model, log_dir=folder, display="none", fail_on_error=False, **limits
    )
    print(count_right(log))


if __name__ == "__main__":
    main()
