"""What is served: words, each to be spelled backwards."""

from rollbook import Environment, Score, Task


class Words(Environment):
    def tasks(self):
        for word in ("lease", "chunk", "round"):
            yield Task(id=word, prompt=f"Spell {word} backwards.", answer=word[::-1])

    def verify(self, task, rollout):
        said = rollout.text.strip()
        return Score(said == task.answer, answer=said)
