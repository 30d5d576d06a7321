"""What the tiny model is asked: sums that need a tool, and conversations about noise."""

from rollbook import Environment, Task, tool

SAID = (
    "more noise",
    "<|im_end|>",
    "na\u00efve \u2603 \U0001f9ea",
    "<think> add 3 4 <tool_call>",
    "\n\n",
    "a  b\t c",
    "",
)
"""What is said to noise: literal special tokens, white space and nothing among it."""


class Sums(Environment):
    """The model has to call `add`."""

    def tasks(self):
        for a in range(8):
            yield Task(id=f"sum-{a}", prompt=f"add {a} {a + 1}", answer=str(2 * a + 1))

    @tool
    async def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async def verify(self, task, rollout):
        return task.answer in rollout.text


class Noise(Environment):
    """Every answer is answered, whatever it is."""

    def __init__(self, tasks: int = 8, turns: int = 4):
        self._tasks, self._turns = tasks, turns

    def tasks(self):
        for number in range(self._tasks):
            yield Task(id=f"noise-{number}", prompt="noise")

    async def reply(self, task, rollout, state):
        if len(rollout.turns) >= self._turns:
            return None
        return SAID[(len(rollout.turns) + rollout.seed) % len(SAID)]

    async def verify(self, task, rollout):
        return 1.0
