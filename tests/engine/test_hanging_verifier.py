"""A verifier that hangs on one row in a hundred costs its deadlines, and nobody else anything."""

import json
import time

import pytest

from rollbook import Shortfall, run
from rollbook.core import Limits

SOURCE = """
import time
from rollbook import Environment, Task

class Hanging(Environment):
    def tasks(self):
        for i in range(300):
            yield Task(f"t{i:03d}", f"Say {i}.", answer=str(i))

    def verify(self, task, rollout):
        if int(task.answer) % 100 == 50:
            time.sleep(60)
        return rollout.text == "yes"
"""
DEADLINE_S, ATTEMPTS, HUNG = 0.5, 2, 3


def test_a_hang_on_one_in_a_hundred_costs_no_more_than_its_deadlines(tmp_path):
    (tmp_path / "hanging.py").write_text(SOURCE)
    (tmp_path / "yes.jsonl").write_text(json.dumps({"answer": "yes"}) + "\n")
    began = time.monotonic()
    with pytest.raises(Shortfall) as caught:
        run(
            f"{tmp_path}/hanging.py",
            f"scripted:{tmp_path}/yes.jsonl",
            out=tmp_path / "a",
            limits=Limits(verify_s=DEADLINE_S),
            hosts=2,
        )
    seconds = time.monotonic() - began
    assert (caught.value.scored, caught.value.failed) == (297, {"verifier_timeout": 3})
    # Each hang is tried twice; a fresh process takes a moment to start, on a machine that others use too.
    assert seconds < HUNG * ATTEMPTS * (DEADLINE_S + 2.0)
