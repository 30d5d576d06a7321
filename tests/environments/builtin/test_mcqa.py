import json
from pathlib import Path

import pytest

from rollbook.core import Task
from rollbook.environments import resolve
from rollbook.environments.builtin.mcqa import MCQA
from rollbook.errors import UsageError
from support.rollouts import make_rollout


def mcqa(tmp_path, *rows, **arguments):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return MCQA(str(path), **arguments)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (["red", "blue"], "B"),
        (["red", "blue"], "b"),
        (["red", "blue"], 1),
        (["red", "blue"], "Blue"),
        ({"A": "red", "B": "blue"}, "B"),
        ([{"A": "red"}, {"B": "blue"}], "B"),
        ({"label": ["A", "B"], "text": ["red", "blue"]}, "B"),
        ('["red", "blue"]', "B"),
        ([{"label": "A", "text": "red"}, {"label": "B", "text": "blue"}], "B"),
        (["red", "blue"], "(B)"),
        (["red", "blue"], "B."),
    ],
)
def test_options_and_answers_may_be_written_in_many_ways(tmp_path, options, answer):
    env = mcqa(tmp_path, {"question": "Which colour has the sky?", "choices": options, "answer": answer})
    task = next(env.tasks())
    assert (task.answer, task.letters) == ("B", {"A": "red", "B": "blue"})
    assert "A: red\nB: blue" in task.prompt
    assert env.verify(task, make_rollout(task, env.solution(task))).reward == 1.0


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "A"}, "no options"),
        ({"options": ["red"], "answer": "A"}, "no options; give a list of at least two"),
        ({"options": "red, blue", "answer": "A"}, "no options"),
        ({"options": ["red", "blue"], "answer": "C"}, "the answer 'C' is not one of the options A, B"),
        ({"options": ["red", "blue"]}, "the answer None is not one of the options"),
        ({"options": ["red", "blue"], "answer": True}, "the answer True is not one"),
        ({"options": {"a": "red", "A": "blue"}, "answer": "A"}, "two options have the same letter"),
        ({"options": [1, 2, 3], "answer": 2}, "the answer 2 may be an option's index or its text; write its letter"),
        ({"options": [None, None], "answer": "A"}, "an option is empty, or not text"),
        ({"options": ["red", " "], "answer": "A"}, "an option is empty, or not text"),
        ({"options": ["red", ["blue"]], "answer": "A"}, "an option is empty, or not text"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(tmp_path, row, words):
    with pytest.raises(UsageError, match=f"mine.jsonl:1: {words}"):
        list(mcqa(tmp_path, {"question": "Which?", **row}).tasks())


def test_a_number_is_a_label_where_labels_are_numbers(tmp_path):
    options = {"label": ["1", "2", "3"], "text": ["red", "blue", "green"]}
    assert next(mcqa(tmp_path, {"question": "Which?", "choices": options, "answer": 1}).tasks()).answer == "1"
    with pytest.raises(UsageError, match="the answer 0 is not one of the options 1, 2, 3"):
        list(mcqa(tmp_path, {"question": "Which?", "choices": options, "answer": 0}).tasks())


@pytest.mark.parametrize(
    ("fields", "letter"),
    [
        ({"answerKey": "B"}, "B"),
        ({"answer_index": 1}, "B"),
        ({"answer": "A", "answer_index": 0}, "A"),
    ],
)
def test_the_answer_may_have_the_name_that_others_give_it(tmp_path, fields, letter):
    task = next(mcqa(tmp_path, {"question": "Which?", "options": ["red", "blue"], **fields}).tasks())
    assert task.answer == letter
    assert "answerKey" not in task.fields


@pytest.mark.parametrize(("answer", "letter"), [("2", "B"), ("B", "B")])
def test_a_number_that_is_text_is_the_text_of_an_option(tmp_path, answer, letter):
    assert next(mcqa(tmp_path, {"question": "?", "options": [1, 2, 3], "answer": answer}).tasks()).answer == letter


def test_a_number_that_is_both_place_and_text_is_no_riddle(tmp_path):
    assert next(mcqa(tmp_path, {"question": "?", "options": [0, 1, 2], "answer": 1}).tasks()).answer == "B"


def test_in_a_cell_a_number_is_a_place(tmp_path):
    path = tmp_path / "quiz.csv"
    path.write_text('question,options,answer\nWhich?,"[""red"", ""blue""]",1\nHow many?,"[1, 2, 3]",2\n')
    tasks = MCQA(str(path)).tasks()
    assert next(tasks).answer == "B"
    with pytest.raises(UsageError, match="the answer 2 may be an option's index or its text"):
        next(tasks)


@pytest.mark.parametrize(("labels", "word"), [(["A", "B"], "letter"), (["1", "2"], "number")])
def test_the_model_is_asked_for_what_the_labels_are(tmp_path, labels, word):
    options = {"label": labels, "text": ["red", "blue"]}
    task = next(mcqa(tmp_path, {"question": "Which?", "choices": options, "answer": labels[0]}).tasks())
    assert f"give the {word} of the right option" in task.prompt


def test_an_unknown_grading_is_refused(tmp_path):
    with pytest.raises(UsageError, match="grading=loose; give strict or lenient"):
        mcqa(tmp_path, grading="loose")


def test_rows_of_nemo_gym_are_asked_as_they_are():
    path = Path(__file__).parents[4] / "shared/data/nemo_gym/mcqa.jsonl"
    if not path.exists():
        pytest.skip("the rows of NeMo Gym are not here")
    env = MCQA(str(path))
    tasks = list(env.tasks())
    assert len(tasks) == 5
    for task, line in zip(tasks, path.read_text().splitlines(), strict=True):
        row = json.loads(line)
        assert task.prompt == row["responses_create_params"]["input"][0]["content"]
        assert (task.answer, task.id) == (row["expected_answer"], row["uuid"])
        assert env.verify(task, make_rollout(task, env.solution(task))).reward == 1.0


def test_a_task_that_others_made_has_its_options_as_its_row_does(tmp_path):
    task = Task("t", "Which?", answer="B", options=[{"A": "red"}, {"B": "blue"}])
    assert mcqa(tmp_path).verify(task, make_rollout(task, "\\boxed{B}")).reward == 1.0
    with pytest.raises(UsageError, match=r"task u.*no options"):
        mcqa(tmp_path).verify(Task("u", "Which?", answer="B"), make_rollout(task, "\\boxed{B}"))


def test_a_number_is_a_place_where_the_rows_say_so(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "1 + 1?", "options": ["1", "2", "3"], "answer": 1}\n')
    with pytest.raises(UsageError, match="may be an option's index or its text"):
        list(resolve("mcqa", data=str(path)).instance.tasks())
    [task] = resolve("mcqa?index=true", data=str(path)).instance.tasks()
    assert task.answer == "B"


def test_a_template_shows_the_options_behind_their_letters(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "options": ["one", "two"], "answer": "B"}\n')
    (tmp_path / "ask.txt").write_text("{question}\n{lettered_options}")
    [task] = resolve("mcqa", str(tmp_path / "rows.jsonl"), str(tmp_path / "ask.txt")).instance.tasks()
    assert task.prompt == "1 + 1?\nA: one\nB: two"
    assert "lettered_options" not in task.fields
