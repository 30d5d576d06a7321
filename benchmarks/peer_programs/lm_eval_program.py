"""The sums of `benchmarks/peers.py` in lm-eval: python lm_eval_program.py KIND URL COUNT CONCURRENCY FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

TASK = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: [], max_gen_toks: 64}}
filter_list:
  - name: last
    filter:
      - {{function: regex, regex_pattern: "#### (\\\\d+)"}}
      - {{function: take_first}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


def read_rewards(folder: Path) -> list[float]:
    """Return the reward of every sample from the lines that were saved; lm-eval has no function for that."""
    (path,) = folder.rglob("samples_sums_*.jsonl")
    with path.open() as lines:
        return [json.loads(line)["exact_match"] for line in lines]


def run(url: str, count: str, concurrency: str, folder: Path) -> list[float]:
    """Run the sums, save every sample, and return their rewards."""
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    folder.mkdir(parents=True)
    rows = folder / "rows.jsonl"
    with rows.open("w") as lines:
        for n in range(int(count)):
            lines.write(json.dumps({"question": f"What is {n} + {n + 1}?", "answer": str(2 * n + 1)}) + "\n")
    (folder / "sums.yaml").write_text(TASK.format(rows=rows))
    results = lm_eval.simple_evaluate(
        model="local-chat-completions",
        model_args=f"model=mock,base_url={url}/chat/completions,num_concurrent={concurrency},tokenized_requests=False",
        tasks=["sums"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=True,
        log_samples=True,
        bootstrap_iters=0,
    )
    samples = results.pop("samples")
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    tracker.save_results_aggregated(results=results, samples=samples)
    tracker.save_results_samples(task_name="sums", samples=samples["sums"])
    return [sample["exact_match"] for sample in samples["sums"]]


def main() -> None:
    kind, url, count, concurrency, name = sys.argv[1:]
    rewards = read_rewards(Path(name)) if kind == "read" else run(url, count, concurrency, Path(name))
    print(sum(reward == 1 for reward in rewards))


if __name__ == "__main__":
    main()
