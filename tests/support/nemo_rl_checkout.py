"""A real NeMo RL, imported from a checkout on a machine without GPUs, and what its rollout functions need there."""

from __future__ import annotations

import importlib.util
import os
import sys
import typing
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

LOGGERS = ("mlflow", "swanlab")
"""Packages that NeMo RL imports to log to and that these tests do not use."""


def find_checkout() -> Path:
    """Make NeMo RL importable; skip the module, loudly, where there is no checkout."""
    path = Path(os.environ.get("NEMO_RL_CHECKOUT") or "/nowhere")
    if not (path / "nemo_rl").is_dir():
        pytest.skip(
            "NO NEMO RL: set NEMO_RL_CHECKOUT to a checkout of github.com/NVIDIA-NeMo/RL and make test-nemo-rl",
            allow_module_level=True,
        )
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict  # pydantic needs this one below Python 3.12
    for name in LOGGERS:
        stub = ModuleType(name)
        stub.__spec__ = ModuleSpec(name, None)
        sys.modules.setdefault(name, stub)
    sys.path.insert(0, str(path))
    return path


def load_test_module(path: Path) -> Any:
    """Import one of NeMo RL's own test modules, without its conftest."""
    spec = importlib.util.spec_from_file_location(f"nemo_rl_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ByteTokenizer:
    """Bytes are ids. As much of a tokenizer as NeMo RL's rollout functions use."""

    pad_token_id = 0

    def __call__(self, text: str, return_tensors: str, add_special_tokens: bool) -> Any:
        import torch

        return SimpleNamespace(input_ids=torch.tensor([list(text.encode())]))

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return list(text.encode())

    def batch_decode(self, batch: Any, skip_special_tokens: bool = False) -> list[str]:
        return [bytes(int(i) for i in ids).decode() for ids in batch]


class WritingPolicy:
    """A generation of NeMo RL's that writes what a function says to the text so far."""

    cfg: typing.ClassVar[dict[str, Any]] = {"vllm_cfg": {"max_model_len": 4096}}

    def __init__(self, write: Callable[[str], str]) -> None:
        self._write = write

    def generate(self, data: Any, greedy: bool = False) -> Any:
        import torch
        from nemo_rl.distributed.batched_data_dict import BatchedDataDict

        prompts = [row[:n] for row, n in zip(data["input_ids"], data["input_lengths"].tolist(), strict=True)]
        texts = [self._write(bytes(row.tolist()).decode()).encode() for row in prompts]
        rows = [torch.cat([row, torch.tensor(list(text))]) for row, text in zip(prompts, texts, strict=True)]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return BatchedDataDict(
            {
                "output_ids": padded,
                "generation_lengths": torch.tensor([len(text) for text in texts]),
                "unpadded_sequence_lengths": torch.tensor([len(row) for row in rows]),
                "logprobs": torch.full(padded.shape, -0.5),
            }
        )
