"""Rollouts for verifiers."""

from __future__ import annotations

from rollbook.core import Message, Rollout, Task


def make_rollout(task: Task, text: str) -> Rollout:
    """Return a rollout in which the model answers a task with this text."""
    return Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])
