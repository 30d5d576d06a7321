"""An environment that any model can learn: say the letter a."""

from collections.abc import Iterator

from rollbook import Environment, Rollout, Task


class Letters(Environment):
    """The reward is the share of the letter in the answer."""

    def tasks(self) -> Iterator[Task]:
        """The same wish in a few words."""
        for number in range(4):
            yield Task(id=f"letters-{number}", prompt="say a " + "please " * number, answer="a")

    async def verify(self, task: Task, rollout: Rollout) -> float:
        """Nothing said is nothing right."""
        said = rollout.text.replace(" ", "")
        return said.count(task.answer) / len(said) if said else 0.0
