import numpy as np
import pytest

from rollbook.core import Score, decode
from rollbook.errors import UsageError
from rollbook.viewer.run_cache import CachedRun
from support.sample_runs import Pen, make, rollout


def test_a_failure_and_what_is_pending_are_not_zero(stopped):
    marks = [mark for row in range(12) for mark in stopped.strip(row, f"area-{row}")]
    report = stopped.numbers["report"]
    counts = (
        sum(isinstance(mark, float) for mark in marks),
        sum(isinstance(mark, str) for mark in marks),
        sum(mark is None for mark in marks),
    )
    assert counts == (report["scored"], sum(report["failed"].values()), report["pending"])
    assert sum(counts) == report["requested"]
    assert min(counts) > 0


def test_every_rollout_is_found_by_its_place(baseline):
    located = baseline.located
    for place in range(len(located.columns)):
        line = decode(located.line(place))
        row = baseline.row(line["task"])
        assert located.find(row, line["sample"]) == place
        assert (baseline.answer(place), baseline.parts(place)) == (line["answer"], line["parts"])
        assert located.columns.reward[place] == line["reward"]


def test_what_has_no_score_has_no_place(stopped):
    row = len(stopped.reading.requested) - 1
    assert stopped.located.find(row, 0) is None
    assert stopped.located.find(10**9, 0) is None
    np.testing.assert_array_equal(stopped.located.find_task(10**9), [])


def test_a_task_that_is_not_there_is_one_clear_line(baseline):
    with pytest.raises(UsageError, match="no task is called 'nothing'"):
        baseline.row("nothing")


def test_rewards_are_coloured_from_the_least_to_the_most(baseline, tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=2, samples=1))
    for row, reward in enumerate((-2.0, 5.0)):
        played = rollout(pen.book, row, 0)
        played.score = Score(reward)
        pen.score(played)
    assert baseline.scale == (0.0, 1.0)
    assert CachedRun(tmp_path / "run").take_snapshot().scale == (-2.0, 5.0)
