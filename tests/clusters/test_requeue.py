from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollbook.clusters.blame import bad_nodes, blame
from rollbook.clusters.jobs import Job, add_job, cancelled, read_jobs, submitted
from rollbook.clusters.requeue import Attempt, Seat, refusal, seat_of
from rollbook.errors import BookError

DULL, GOOD = Attempt(0, "n1", False), Attempt(0, "n1", True)


@pytest.mark.parametrize(
    ("seat", "wrote", "before", "why"),
    [
        (Seat("7", "2"), True, [], ""),
        (Seat("7", "2", restart=3), True, [GOOD] * 3, ""),
        (Seat("7", "2", restart=4), True, [GOOD] * 4, "started again 4 times already (restarts: 4)"),
        (Seat("7", "2", restart=1), False, [GOOD], ""),
        (Seat("7", "2", restart=1), False, [DULL], "two attempts running wrote nothing"),
        (Seat("7", "2", restart=2), True, [DULL], ""),
        (Seat(), True, [], "not in a job of Slurm's"),
    ],
)
def test_a_task_goes_back_within_bounds_and_while_it_brings_something(
    seat: Seat, wrote: bool, before: list[Attempt], why: str
) -> None:
    assert refusal(seat, 4, wrote, before) == why


def test_a_task_is_named_so_that_no_other_is_meant() -> None:
    environ = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURM_RESTART_COUNT": "1"}
    assert (seat_of(environ).name, seat_of(environ).restart) == ("7_2", 1)
    assert seat_of({"SLURM_JOB_ID": "9"}).name == "9"
    assert seat_of({}).name == ""


def test_a_node_is_left_out_after_the_second_word(tmp_path) -> None:
    (tmp_path / "jobs").mkdir()
    assert bad_nodes(tmp_path) == []
    blame(tmp_path, "n1", "no GPU")
    blame(tmp_path, "n2", "no GPU")
    assert bad_nodes(tmp_path) == []
    blame(tmp_path, "n1", "no GPU")
    assert bad_nodes(tmp_path) == ["n1"]


def test_what_follows_a_torn_line_is_not_its_end(tmp_path) -> None:
    add_job(tmp_path, Job("workers", "7", 1, 4))
    with open(tmp_path / "jobs.jsonl", "ab") as file:
        file.write(b'{"kind":"wor')
    add_job(tmp_path, Job("report", "8", 1, 1))
    assert [job.job for job in read_jobs(tmp_path)] == ["7", "8"]


def test_jobs_are_read_back_and_a_torn_last_line_is_dropped(tmp_path) -> None:
    assert read_jobs(tmp_path) == []
    add_job(tmp_path, Job("workers", "7", 1, 4))
    add_job(tmp_path, Job("report", "8", 1))
    add_job(tmp_path, Job("cancelled", "7", 1))
    with open(tmp_path / "jobs.jsonl", "ab") as file:
        file.write(b'{"kind":"wor')
    jobs = read_jobs(tmp_path)
    assert [job.job for job in submitted(jobs)] == ["7", "8"]
    assert [job.job for job in submitted(jobs, "report")] == ["8"]
    assert cancelled(jobs) == {"7"}
    (tmp_path / "jobs.jsonl").write_text("{}\n")
    with pytest.raises(BookError, match=r"jobs.jsonl:1: "):
        read_jobs(tmp_path)


def test_jobs_that_are_noted_at_once_are_all_there(tmp_path: Path) -> None:
    """Every worker whose run has failed too often cancels the others: half a line of one is no torn line."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: add_job(tmp_path, Job("cancelled", str(number), 1)), range(100)))
    assert cancelled(read_jobs(tmp_path)) == {str(number) for number in range(100)}
