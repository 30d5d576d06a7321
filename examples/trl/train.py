"""GRPO on the processor: a tiny random model learns to say the letter a, in a minute or two.

    .venv-trl/bin/python examples/trl/train.py [steps]

Exits with 1 unless the mean reward of the last five steps is above that of the first five.
"""

import logging
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

from datasets import Dataset
from endpoint import Served
from tiny import model, tokenizer
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from rollbook.trainers.trl import Rollouts

SEED = 7


def train(steps: int, folder: str) -> list[float]:
    """The mean reward of each step."""
    tokens = tokenizer()
    weights = model(tokens, SEED)
    args = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=32,
        num_generations=8,
        max_completion_length=8,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        seed=SEED,
    )
    with Served(weights, tokens) as url:
        rollouts = Rollouts(str(Path(__file__).with_name("letters.py")) + ":Letters", url, seed=SEED)
        trainer = GRPOTrainer(
            model=weights,
            args=args,
            processing_class=tokens,
            rollout_func=rollouts,
            reward_funcs=rollouts.reward,
            train_dataset=Dataset.from_list(rollouts.rows()),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        rollouts.close()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def main() -> int:
    """Train, and say how it went."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        rewards = train(int(sys.argv[1]) if len(sys.argv) > 1 else 30, folder)
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    sys.stdout.write(f"{len(rewards)} steps: mean reward {first:.3f} in the first five, {last:.3f} in the last five\n")
    return 0 if last > first else 1


if __name__ == "__main__":
    sys.exit(main())
