"""Resuming and extending: whoever is asked, here, a batch system, Ray or a worker on its node, the rule is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakeslurm import Fakes

import rollbook
from rollbook.book import Book
from rollbook.clusters import extend_submitted_run, resubmit
from rollbook.clusters.job_files import SubmissionOrder, write_order
from rollbook.clusters.job_process import JobLog
from rollbook.clusters.node import NodeWorker
from rollbook.clusters.profile import ClusterProfile
from rollbook.clusters.ray import RayResume, resume_detached, resume_here, runs
from rollbook.core import JSON
from rollbook.engine import extend, resume
from rollbook.engine.progress import SilentDisplay
from rollbook.errors import UsageError
from support.commands import Commands

ORDER = SubmissionOrder(profile=ClusterProfile(), workers=1)


def ignore(_: str) -> None:
    """Notes are not looked at here."""


def work_on_node(run: Path, changes: dict[str, JSON]) -> object:
    return asyncio.run(NodeWorker(run, ORDER, JobLog())._work_once(changes["urls"]))


RESUMES: dict[str, Callable[[Path, dict[str, JSON]], object]] = {
    "here": lambda run, changes: resume(run, changes, None, SilentDisplay()),
    "batch": lambda run, changes: resubmit(run, changes, None, None, ignore),
    "ray": lambda run, changes: resume_here(run, RayResume(given=changes), SilentDisplay()),
    "ray, detached": lambda run, changes: resume_detached(run, RayResume(given=changes), ignore),
    "node": work_on_node,
}
EXTENSIONS: dict[str, Callable[[Path, int, dict[str, JSON]], object]] = {
    "here": lambda run, samples, changes: extend(run, samples, changes, SilentDisplay()),
    "batch": lambda run, samples, changes: extend_submitted_run(run, samples, changes, ignore),
    "ray": lambda run, samples, changes: resume_here(run, RayResume(samples=samples, given=changes), SilentDisplay()),
}


@pytest.fixture
def run(fakes: Fakes, commands: Commands, sums: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run of two samples that was submitted, next to a Slurm and a Ray cluster that only pretend."""
    monkeypatch.setenv("PATH", commands.environ["PATH"])

    @contextmanager
    def join(_: str) -> Iterator[object]:
        yield SimpleNamespace(address="here:1", check_room=lambda _: None)

    monkeypatch.setattr(runs, "join_cluster", join)
    path = tmp_path / "run"
    rollbook.run(sums[0], sums[2], samples=2, out=path)
    write_order(path, ORDER)
    return path


@pytest.mark.parametrize("place", RESUMES)
def test_another_model_is_refused_in_the_same_words_everywhere(place: str, run: Path) -> None:
    with pytest.raises(UsageError) as caught:
        RESUMES[place](run, {"urls": ["http://localhost:1/v1"]})
    planned = Book(run).manifest.model
    why = f"was planned with the model {planned.kind} {planned.name}, not with chat {planned.name}"
    assert str(caught.value) == f"{run} {why}: start a new run for another model"
    assert len(Book(run).rounds()) == 1


@pytest.mark.parametrize("place", EXTENSIONS)
@pytest.mark.parametrize("samples", [1, 2])
def test_samples_that_are_there_already_are_refused_in_the_same_words_everywhere(
    place: str, samples: int, run: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        EXTENSIONS[place](run, samples, {})
    assert str(caught.value) == f"{run} has 2 samples of every task already: give more than that with -k"


@pytest.mark.parametrize("place", EXTENSIONS)
def test_no_sample_is_added_for_another_model(place: str, run: Path) -> None:
    with pytest.raises(UsageError, match="start a new run for another model"):
        EXTENSIONS[place](run, 3, {"urls": ["http://localhost:1/v1"]})
    assert Book(run).plan.parts[-1].samples == (0, 2)


@pytest.mark.parametrize("place", ["batch", "ray", "ray, detached"])
def test_where_nothing_is_left_there_is_no_new_round(place: str, run: Path) -> None:
    assert RESUMES[place](run, {}) is None
    assert len(Book(run).rounds()) == 1


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_that_is_no_run_is_refused_and_stays_as_it_is(exists: bool, tmp_path: Path) -> None:
    folder = tmp_path / "typo"
    if exists:
        folder.mkdir()
    with pytest.raises(UsageError, match="typo is not a run directory"):
        resubmit(folder, {}, None, ClusterProfile(), ignore)
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])
