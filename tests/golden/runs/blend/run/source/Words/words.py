"""Words, each to be spelled backwards."""

from rollbook import Environment, Task


class Words(Environment):
    def tasks(self):
        for word in ("lease", "chunk"):
            yield Task(id=word, prompt=f"Spell {word} backwards.", answer=word[::-1])

    def verify(self, task, rollout):
        return rollout.text.strip() == task.answer
