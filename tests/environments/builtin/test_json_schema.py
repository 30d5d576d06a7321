import json
import sys

import pytest

from rollbook.core import Message, Rollout
from rollbook.environments.builtin.json_schema import JSONSchema, read_json
from rollbook.errors import UsageError

pytest.importorskip("jsonschema")

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


def env_of(tmp_path, *rows, **arguments):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return JSONSchema(str(path), **arguments)


def score(env, task, text):
    return env.verify(task, Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)]))


@pytest.fixture
def env(tmp_path):
    return env_of(
        tmp_path,
        {"prompt": "Ada.", "schema": PERSON},
        {"prompt": "Ada!", "schema": json.dumps(PERSON), "answer": '{"name": "Ada"}'},
    )


@pytest.mark.parametrize(
    ("text", "reward", "parts"),
    [
        ('{"name": "Ada"}', 1.0, {"json": 1.0, "fits": 1.0}),
        ('Here:\n```json\n{"name": "Ada", "age": 36}\n```', 1.0, {"json": 1.0, "fits": 1.0}),
        ('<think>{}</think>{"name": "Ada"}', 1.0, {"json": 1.0, "fits": 1.0}),
        ('{"name": 7}', 0.0, {"json": 1.0, "fits": 0.0}),
        ("{}", 0.0, {"json": 1.0, "fits": 0.0}),
        ('Here you are: {"name": "Ada"}', 0.0, {"json": 0.0, "fits": 0.0}),
        ('{"name": "Ada", "age": NaN}', 0.0, {"json": 0.0, "fits": 0.0}),
        ("[" * 100_000, 0.0, {"json": 0.0, "fits": 0.0}),
        ('{"name": "\\ud800"}', 0.0, {"json": 0.0, "fits": 0.0}),
        ('{"name": "Ada", "weight": 1e999}', 0.0, {"json": 0.0, "fits": 0.0}),
        ('```JSON\n{"name": "Ada"}\n```', 1.0, {"json": 1.0, "fits": 1.0}),
        ("", 0.0, {"json": 0.0, "fits": 0.0}),
    ],
)
def test_an_answer_must_be_json_that_fits(env, text, reward, parts):
    found = score(env, next(env.tasks()), text)
    assert (found.reward, found.parts) == (reward, parts)
    assert ("error" in found.info) == (reward == 0.0)


def test_an_integer_that_cannot_be_divided_is_a_score_of_zero(tmp_path):
    env = env_of(tmp_path, {"prompt": "p", "schema": {"multipleOf": 0.5}})
    found = score(env, next(env.tasks()), "9" * 400)
    assert (found.reward, found.parts) == (0.0, {"json": 0.0, "fits": 0.0})
    assert "too large a number" in found.info["error"]


@pytest.mark.parametrize(
    "wrapped",
    [
        {"json_schema": {"name": "x", "schema": {"type": "integer"}}},
        {"json_schema": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "integer"}}}},
        {
            "schema": {
                "type": "json_schema",
                "json_schema": {"name": "x", "strict": True, "schema": {"type": "integer"}},
            }
        },
        {"schema": {"type": "json_schema", "name": "x", "schema": {"type": "integer"}}},
    ],
)
def test_a_schema_is_taken_out_of_its_wrapper(tmp_path, wrapped):
    env = env_of(tmp_path, {"prompt": "p", **wrapped})
    task = next(env.tasks())
    assert task.schema == {"type": "integer"}
    assert [score(env, task, text).reward for text in ("5", '"five"')] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("schema", "rewards", "solution"),
    [({"type": ["null", "integer"]}, [1.0, 0.0], "null"), ({"type": "integer"}, [0.0, 1.0], None)],
)
def test_null_is_an_answer_where_it_fits(tmp_path, schema, rewards, solution):
    env = env_of(tmp_path, {"prompt": "p", "schema": schema, "answer": None})
    task = next(env.tasks())
    assert [score(env, task, text).reward for text in ("null", "5")] == rewards
    assert env.solution(task) == solution


def test_without_an_answer_whatever_fits_will_do(tmp_path):
    env = env_of(tmp_path, {"prompt": "p", "schema": {"type": ["null", "integer"]}})
    assert score(env, next(env.tasks()), "5").reward == 1.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": "x ``` y"}\n```', {"a": "x ``` y"}),
        ('```json {"a": 1}```', {"a": 1}),
        ('It is ```{"a": 1}```.', {"a": 1}),
        ('```json\n{"a": 1}\n```\nas in\n```python\nx\n```', {"a": 1}),
        ('- one:\n  ```json\n  {"a": 1}\n  ```', {"a": 1}),
        ('"a ``` b"', "a ``` b"),
    ],
)
def test_a_fence_ends_where_no_string_can_be(text, value):
    assert read_json(text) == value


@pytest.mark.parametrize("depth", [101, 300, 900])
def test_nesting_that_a_validator_cannot_follow_is_a_score_of_zero(tmp_path, depth):
    env = env_of(tmp_path, {"prompt": "p", "schema": {"type": "array", "items": {"$ref": "#"}}})
    task = next(env.tasks())
    assert score(env, task, "[" * 100 + "]" * 100).reward == 1.0
    found = score(env, task, "[" * depth + "]" * depth)
    assert (found.reward, found.info) == (
        0.0,
        {"error": "it is nested more than 100 deep, or too deeply for its schema"},
    )


def test_a_schema_of_many_steps_a_level_gives_zero_as_well(tmp_path):
    inner = {"$ref": "#"}
    for _ in range(12):
        inner = {"allOf": [inner]}
    env = env_of(tmp_path, {"prompt": "p", "schema": {"items": inner}})
    task = next(env.tasks())
    found = score(env, task, "[" * 99 + "]" * 99)
    assert (found.reward, found.parts) == (0.0, {"json": 1.0, "fits": 0.0})
    assert "too deeply for its schema" in found.info["error"]


@pytest.mark.parametrize(
    ("schema", "answer", "meant"),
    [({"type": "string"}, "12", "12"), ({"type": "integer"}, "12", 12), ({"type": "boolean"}, False, False)],
)
def test_an_answer_is_the_text_itself_where_that_fits(tmp_path, schema, answer, meant):
    env = env_of(tmp_path, {"prompt": "p", "schema": schema, "answer": answer})
    task = next(env.tasks())
    assert task.answer == meant
    assert score(env, task, env.solution(task)).reward == 1.0


def test_an_expected_value_must_be_met_as_well(env):
    first, second = env.tasks()
    assert env.solution(first) is None
    assert score(env, second, env.solution(second)).reward == 1.0
    other = score(env, second, '{"name": "Eva"}')
    assert (other.reward, other.parts) == (0.0, {"json": 1.0, "fits": 1.0, "equal": 0.0})


def test_true_is_not_one_but_one_is_one(tmp_path):
    env = env_of(tmp_path, {"prompt": "p", "schema": {"type": "array"}, "answer": [1, {"a": True}]})
    task = next(env.tasks())
    assert [score(env, task, text).reward for text in ('[1.0, {"a": true}]', '[1, {"a": 1}]')] == [1.0, 0.0]


def test_the_model_is_shown_the_schema(env):
    task = next(env.tasks())
    assert json.loads(task.prompt.partition("\n\n")[2].partition("\n")[2]) == PERSON


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "no schema / json_schema that is an object"),
        ({"schema": "text"}, "no schema / json_schema that is an object"),
        ({"schema": {"type": "thing"}}, "not a JSON schema: 'thing' is not valid"),
        ({"schema": {"type": "object"}, "answer": [1]}, "its own answer does not fit its schema"),
        ({"schema": {"$ref": "#"}}, "the schema refers to itself without end"),
        ({"schema": {}, "answer": json.loads("[" * 101 + "]" * 101)}, "its own answer cannot be used: it is nested"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(tmp_path, row, words):
    with pytest.raises(UsageError, match=f"mine.jsonl:1: {words}"):
        list(env_of(tmp_path, {"prompt": "p", **row}).tasks())


def test_a_missing_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(UsageError, match=r"pip install 'rollbook\[schema\]'"):
        JSONSchema("rows.jsonl")
