"""Functions to be written, graded in the sandbox; with the names that the documentation imports from inside packages."""

from rollbook import Score, Task
from rollbook.core.manifest import Sampling
from rollbook.environments.fences import last_block
from rollbook.environments.rows import rows
from rollbook.environments.sandboxed import Sandboxed, marks
from rollbook.sandbox.grade import Grader

from lengths import Measured, sampled_tokens

SAMPLING = Sampling(temperature=0.7, max_tokens=256)


class Functions(Measured, Sandboxed):
    def __init__(self, data: str):
        self.data = data

    def tasks(self):
        for row in rows(self.data):
            yield row.task()

    async def verify(self, task, rollout):
        assert isinstance(self.grader, Grader)
        code = last_block(rollout.text)
        if code is None:
            return Score(0.0, info={"reason": "no code"})
        calls = [(arguments, value) for arguments, value in task.calls]
        verdict = await self.grader.calls(code, task.entry, calls)
        kept = {**marks(verdict), "tokens": sampled_tokens(rollout.turns), "most": SAMPLING.max_tokens}
        return Score(float(verdict.passed), info=kept)
