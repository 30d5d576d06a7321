"""Rows of NeMo Gym (or of tasks.jsonl) as verl's dataset. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import Dataset

from rollbook.core import JSON
from rollbook.errors import UsageError
from rollbook.trainers.rows import IndexedLines, read_environment_name, read_prompt, read_row

ANSWERS = ("expected_answer", "answer")


class GymDataset(Dataset):  # type: ignore[misc]
    """For `data.custom_cls`. Every item has the same keys, as verl collates by key; `gym_row` is the whole line."""

    def __init__(
        self,
        data_files: str | Sequence[str],
        tokenizer: object = None,
        processor: object = None,
        config: object = None,
        max_samples: int = -1,
    ) -> None:
        paths = [data_files] if isinstance(data_files, str) else [str(path) for path in data_files]
        for path in paths:
            if Path(path).suffix not in (".jsonl", ".json"):
                raise UsageError(f"{path}: rows are read from .jsonl files")
        self._lines = IndexedLines(paths)
        self._count = len(self._lines) if max_samples < 0 else min(max_samples, len(self._lines))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, JSON]:
        text = self._lines[number].decode()
        row = read_row(text, self._lines.describe(number))
        answer = next((row[name] for name in ANSWERS if row.get(name) is not None), None)
        return {
            "raw_prompt": read_prompt(row),
            "gym_row": text,
            "agent_ref": read_environment_name(row) or "",
            "data_source": read_environment_name(row) or "rollbook",
            "reward_model": {"style": "rollbook", "ground_truth": answer},
            "extra_info": {"index": number},
            "index": number,
            "dummy_tensor": torch.zeros(1, dtype=torch.uint8),
        }
