import subprocess
import sys

import msgspec
import pytest

from rollbook.core import Task, TaskLine, encode
from rollbook.engine import iterate_valid_tasks
from rollbook.environments.builtin.reasoning_gym import INSTRUCTION, ReasoningGym, read_answer
from rollbook.environments.registry import resolve
from rollbook.errors import UsageError
from support.rollouts import make_rollout

pytest.importorskip("reasoning_gym")

GENERATORS = [
    "arc_agi",
    "base_conversion",
    "basic_arithmetic",
    "bitwise_arithmetic",
    "chain_sum",
    "codeio",
    "countdown",
    "family_relationships",
    "game_of_life",
    "gsm_symbolic",
    "knights_knaves",
    "letter_counting",
    "maze",
    "mini_sudoku",
    "n_queens",
    "palindrome_partitioning",
    "polynomial_equations",
    "prime_factorization",
    "rearc",
    "shortest_path",
    "simple_equations",
    "syllogism",
    "time_intervals",
    "tower_of_hanoi",
    "word_ladder",
    "word_sorting",
    "zebra_puzzles",
]


def store_and_load(task):
    return Task.from_line(msgspec.json.decode(encode(task.line()), type=TaskLine))


@pytest.mark.parametrize("name", GENERATORS)
def test_its_own_answer_scores_what_its_own_scorer_says_even_after_json(name):
    env = ReasoningGym(name, size=2, seed=3)
    for index, task in enumerate(map(store_and_load, env.tasks())):
        entry = env._dataset[index]
        own = env._dataset.score_answer(answer=entry["answer"], entry=entry)
        assert env.verify(task, make_rollout(task, env.solution(task))).reward == float(own)


@pytest.mark.parametrize("name", ["prime_factorization", "game_of_life", "boxnet", "chain_sum", "mini_sudoku"])
@pytest.mark.parametrize("text", ["", "hello", "[1]", '{"a": 1}', "1e999"])
def test_text_that_a_scorer_cannot_read_is_a_score_and_not_a_failure(name, text):
    env = ReasoningGym(name, size=1)
    task = next(env.tasks())
    assert env.verify(task, make_rollout(task, f"<answer>{text}</answer>")).reward < 1.0


def test_a_scorer_that_fails_on_the_right_answer_too_is_a_failure(monkeypatch):
    env = ReasoningGym("chain_sum", size=1)
    task = next(env.tasks())

    def broken(answer, entry):
        raise RuntimeError("out of order")

    monkeypatch.setattr(env._dataset, "score_answer", broken)
    with pytest.raises(RuntimeError, match="out of order"):
        env.verify(task, make_rollout(task, "7"))


def test_small_sums_are_asked_plainly_and_answered_freely():
    loaded = resolve("reasoning_gym:chain_sum?min_terms=2&max_terms=2&min_digits=1&max_digits=1")
    tasks = list(loaded.instance.tasks())
    assert len(tasks) == 100
    assert loaded.spec.target == "builtin:reasoning_gym"
    task = tasks[0]
    assert task.id == "chain_sum-00000"
    assert task.prompt.endswith("=")
    for text in (
        task.answer,
        f"The final answer is {task.answer}.",
        f"3 + 4 = **{task.answer}**",
        f"\\boxed{{{task.answer}}}",
    ):
        assert loaded.instance.verify(task, make_rollout(task, text)).reward == 1.0
    assert loaded.instance.verify(task, make_rollout(task, str(int(task.answer) + 1))).reward < 1.0


def test_answers_that_are_not_numbers_are_asked_for_in_tags():
    task = next(ReasoningGym("word_sorting", size=1).tasks())
    assert task.prompt.endswith(INSTRUCTION)


def test_the_same_arguments_make_the_same_tasks():
    first, again, other = (list(ReasoningGym("maze", size=3, seed=s).tasks()) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_an_unknown_part_of_a_composite_is_told_without_a_place_in_a_library(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = resolve('reasoning_gym:composite?datasets=[{"name":"nope","weight":1,"config":{}}]')
    with pytest.raises(UsageError, match="Dataset 'nope' not registered") as caught:
        list(iterate_valid_tasks(loaded))
    assert "site-packages" not in str(caught.value)


def test_a_composite_of_generators_is_a_generator_too():
    parts = [{"name": n, "weight": 1, "config": {}} for n in ("chain_sum", "arc_agi")]
    env = ReasoningGym("composite", size=4, datasets=parts)
    for task in map(store_and_load, env.tasks()):
        assert env.verify(task, make_rollout(task, env.solution(task))).reward == 1.0


@pytest.mark.parametrize(
    ("text", "expected", "answer"),
    [
        ("<answer>a b</answer>", "x", "a b"),
        ("<answer>1</answer> no <answer> 2 </answer>", "2", "2"),
        ("<answer>$1,000</answer>", "1000", "1000"),
        ("<answer>0010</answer>", "0010", "0010"),
        (r"so \boxed{x}", "y", "x"),
        ("3 + 4 = 7 apples", "7", "7"),
        ("<think>5</think> I say so", "Z", "I say so"),
        ("I say so\n", None, "I say so"),
        ("nothing here", "7", "nothing here"),
    ],
)
def test_what_is_handed_to_the_scorer(text, expected, answer):
    assert read_answer(text, expected) == answer


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("reasoning_gym:chain_sums", r"unknown reasoning_gym generator 'chain_sums'; did you mean chain_sum"),
        ("reasoning_gym:chain_sum?max_term=2", r"chain_sum has no setting 'max_term'; did you mean max_terms"),
        ("reasoning_gym:chain_sum?max_terms=0", r"reasoning_gym:chain_sum: max_terms must be >= min_terms"),
        ("reasoning_gym:chain_sum?max_terms=two", r"reasoning_gym:chain_sum: Expected `int`, got `str`"),
        ("reasoning_gym:chain_sum?size=0", r"size must be positive"),
        ("reasoning_gym:composite", r"Must specify at least one dataset"),
        ("reasoning_gym", r"reasoning_gym: a name is missing: reasoning_gym:NAME"),
    ],
)
def test_each_mistake_is_one_line(spec, message):
    with pytest.raises(UsageError, match=message) as caught:
        resolve(spec)
    assert "\n" not in str(caught.value)


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", None)
    with pytest.raises(UsageError, match=r"pip install 'rollbook\[gym\]'"):
        ReasoningGym("chain_sum")


def test_the_package_is_imported_only_when_it_is_used():
    code = (
        "import sys, rollbook.environments.registry as registry; registry.list_environments();"
        "print('reasoning_gym' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["False", "False"]
