from __future__ import annotations

from pathlib import Path

import pytest

from rollbook.clusters.job_files import ClusterJob, add_job
from rollbook.clusters.job_status import find_logs
from rollbook.errors import UsageError


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with logs of two arrays, of which one worker has not begun, of a report, a server and of workers here."""
    for job in (ClusterJob("workers", "7", 1, 2, 0), ClusterJob("workers", "9", 2, 2, 2), ClusterJob("report", "8", 1)):
        add_job(tmp_path, job)
    (tmp_path / "logs").mkdir()
    said = {"slurm-7_0": "a\nb\n\n", "slurm-7_1": "c\n", "slurm-9_1": "", "slurm-8": "d", "server-n1-5-80": "e"}
    for name, text in {**said, "worker-1-0": "f\n", "environment-5": "g\n"}.items():
        (tmp_path / "logs" / f"{name}.log").write_text(text)
    return tmp_path


def test_all_logs_are_listed_with_their_last_words(run: Path) -> None:
    assert [(log.who, log.path.stem, log.last_line) for log in find_logs(run)] == [
        ("worker 0", "slurm-7_0", "b"),
        ("worker 1", "slurm-7_1", "c"),
        ("worker 3", "slurm-9_1", ""),
        ("report 8", "slurm-8", "d"),
        ("worker 0 (round 1)", "worker-1-0", "f"),
        ("model server", "server-n1-5-80", "e"),
    ]


def test_a_worker_has_its_logs_wherever_it_ran(run: Path) -> None:
    assert [log.path.stem for log in find_logs(run, 0)] == ["slurm-7_0", "worker-1-0"]
    assert [log.path.stem for log in find_logs(run, 3)] == ["slurm-9_1"]
    with pytest.raises(UsageError, match="--worker 2: no log of that worker; there are workers 0 to 3"):
        find_logs(run, 2)
