from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbook.clusters.job_files import (
    ClusterJob,
    add_job,
    read_bad_nodes,
    read_jobs,
    read_reports,
    report_bad_node,
    select_cancelled_ids,
    select_submitted,
)
from rollbook.clusters.job_process import JobAttempt, find_refusal, record_attempt
from rollbook.clusters.scheduler import CurrentTask
from rollbook.clusters.slurm import Slurm
from rollbook.errors import BookError

DULL, GOOD = JobAttempt(0, "n1", False), JobAttempt(0, "n1", True)


@pytest.mark.parametrize(
    ("task", "wrote", "before", "why"),
    [
        (CurrentTask("7_2", "7"), True, [], ""),
        (CurrentTask("7_2", "7", restart=3), True, [GOOD] * 3, ""),
        (CurrentTask("7_2", "7", restart=4), True, [GOOD] * 4, "started again 4 times already (restarts: 4)"),
        (CurrentTask("7_2", "7", restart=1), False, [GOOD], ""),
        (CurrentTask("7_2", "7", restart=1), False, [DULL], "two attempts in a row wrote nothing"),
        (CurrentTask("7_2", "7", restart=2), True, [DULL], ""),
        (CurrentTask(), True, [], "not in a job of Slurm's"),
    ],
)
def test_a_task_goes_back_within_bounds_and_while_it_brings_something(
    task: CurrentTask, wrote: bool, before: list[JobAttempt], why: str
) -> None:
    assert find_refusal(Slurm(), task, 4, wrote, before) == why


def test_a_task_is_named_so_that_no_other_is_meant() -> None:
    environ = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_RESTART_COUNT": "1"}
    read_current_task = Slurm().read_current_task
    assert (read_current_task(environ).name, read_current_task(environ).restart) == ("7_2", 1)
    assert read_current_task({"SLURM_JOB_ID": "9"}).name == "9"
    assert read_current_task({}).name == ""


def test_a_node_is_left_out_after_the_second_word(tmp_path) -> None:
    (tmp_path / "jobs").mkdir()
    assert read_bad_nodes(tmp_path) == []
    report_bad_node(tmp_path, "n1", "no GPU")
    report_bad_node(tmp_path, "n2", "no GPU")
    assert read_bad_nodes(tmp_path) == []
    report_bad_node(tmp_path, "n1", "no GPU")
    assert read_bad_nodes(tmp_path) == ["n1"]


def test_what_follows_a_torn_line_is_not_its_end(tmp_path) -> None:
    add_job(tmp_path, ClusterJob("workers", "7", 1, 4))
    with open(tmp_path / "jobs.jsonl", "ab") as file:
        file.write(b'{"kind":"wor')
    add_job(tmp_path, ClusterJob("report", "8", 1, 1))
    assert [job.job for job in read_jobs(tmp_path)] == ["7", "8"]


def test_jobs_are_read_back_and_a_torn_last_line_is_dropped(tmp_path) -> None:
    assert read_jobs(tmp_path) == []
    add_job(tmp_path, ClusterJob("workers", "7", 1, 4))
    add_job(tmp_path, ClusterJob("report", "8", 1))
    add_job(tmp_path, ClusterJob("cancelled", "7", 1))
    with open(tmp_path / "jobs.jsonl", "ab") as file:
        file.write(b'{"kind":"wor')
    jobs = read_jobs(tmp_path)
    assert [job.job for job in select_submitted(jobs)] == ["7", "8"]
    assert [job.job for job in select_submitted(jobs, "report")] == ["8"]
    assert select_cancelled_ids(jobs) == {"7"}
    (tmp_path / "jobs.jsonl").write_text("{}\n")
    with pytest.raises(BookError, match=r"jobs.jsonl:1: "):
        read_jobs(tmp_path)


def test_jobs_that_are_noted_at_once_are_all_there(tmp_path: Path) -> None:
    """Every worker whose run has failed too often cancels the others: half a line of one is no torn line."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: add_job(tmp_path, ClusterJob("cancelled", str(number), 1)), range(100)))
    assert select_cancelled_ids(read_jobs(tmp_path)) == {str(number) for number in range(100)}


def test_a_torn_report_of_an_attempt_is_one_report_less(tmp_path: Path) -> None:
    """A job is killed while it writes, and its next start appends to the same file."""
    task = CurrentTask("7_2", "7")
    path = tmp_path / "jobs" / "attempts" / "7_2.jsonl"
    assert record_attempt(tmp_path, task, wrote=True) == []
    with path.open("ab") as file:
        file.write(b'{"restart":1,"no\xff')
    assert record_attempt(tmp_path, task, wrote=False) == [JobAttempt(0, "", True)]
    assert len(read_reports(path, JobAttempt)) == 2
