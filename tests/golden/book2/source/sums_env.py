from rollbook import Environment, Score, Task


class Sums(Environment):
    def tasks(self):
        for i in range(4):
            yield Task(id=f"sum-{i}", prompt=f"What is {i} + {i}?", answer=str(2 * i), level=i)

    def verify(self, task, rollout):
        if task.level == 3:
            raise ValueError("this task is broken on purpose")
        right = rollout.text.strip().endswith(task.answer)
        return Score(float(right), {"right": float(right)}, rollout.text.split()[-1], {"level": task.level})
