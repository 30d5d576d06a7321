import gzip
import json

import pytest

from rollbook.environments.data_rows import rows
from rollbook.errors import UsageError


def write_rows(tmp_path, *lines):
    path = tmp_path / "mine.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines) + b"\n")
    return path


@pytest.mark.parametrize("key", ["prompt", "question", "problem"])
@pytest.mark.parametrize("answer", ["answer", "expected_answer"])
def test_a_row_is_a_task_under_the_usual_names(tmp_path, key, answer):
    path = write_rows(tmp_path, json.dumps({key: "1 + 1?", answer: "2", "level": 3, "env": "kept"}))
    task = next(rows(path)).task()
    assert (task.id, task.prompt, task.answer) == ("mine-1", "1 + 1?", "2")
    assert task.fields == {"level": 3, "env": "kept"}


def test_messages_are_taken_as_they_are(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    path = write_rows(tmp_path, json.dumps({"id": 7, "messages": messages}), json.dumps({"prompt": messages}))
    first, second = (row.task("Reason.") for row in rows(path))
    assert first.id == "7"
    assert [m.text for m in first.messages] == ["Be brief.", "Hi"]
    assert first.messages == second.messages


def test_an_instruction_follows_a_prompt_that_is_text(tmp_path):
    assert next(rows(write_rows(tmp_path, '{"prompt": "Why?"}'))).task("Be brief.").prompt == "Why?\n\nBe brief."


def test_blank_lines_are_skipped_and_lines_keep_their_numbers(tmp_path):
    path = write_rows(tmp_path, "\ufeff" + '{"prompt": "a"}', "", "   ", '{"prompt": "b"}')
    assert [row.id for row in rows(path)] == ["mine-1", "mine-4"]


def test_rows_are_read_as_a_stream(tmp_path):
    path = write_rows(tmp_path, '{"prompt": "a"}', "{broken")
    stream = rows(path)
    assert next(stream).values == {"prompt": "a"}
    with pytest.raises(UsageError, match=r"mine.jsonl:2: not JSON"):
        next(stream)


def test_compressed_rows_are_read_too(tmp_path):
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    assert next(rows(path)).id == "mine-1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", r"mine.jsonl:1: a JSON object is needed, this is list"),
        ("{", r"mine.jsonl:1: not JSON"),
        (b'{"prompt": "\xff"}', r"mine.jsonl:1: not UTF-8 \(byte 13\)"),
        ('{"text": "a"}', r"mine.jsonl:1: no messages / prompt / question / problem; it has: text"),
        ("{}", r"it has: nothing"),
        ('{"prompt": " "}', r"mine.jsonl:1: prompt must be text"),
        ('{"prompt": 3}', r"mine.jsonl:1: prompt must be text"),
        ('{"messages": []}', r"mine.jsonl:1: messages must be text or a list of messages, and not empty"),
        ('{"messages": [{"content": "x"}]}', r"mine.jsonl:1: messages: .*role"),
        (
            '{"messages": [{"role": "boss", "content": "x"}]}',
            r"mine.jsonl:1: messages: unknown role 'boss'; give one of",
        ),
        ('{"messages": [{"role": "user"}]}', r"mine.jsonl:1: messages: message 1 has no content"),
        ('{"prompt": [{"role": "user", "content": ""}]}', r"mine.jsonl:1: prompt: all messages are empty"),
        ('{"prompt": "\\ud800"}', r"mine.jsonl:1: not JSON: \\ud800 is half a character"),
        ('{"prompt": ' + "[" * 100_000, r"mine.jsonl:1: nested too deeply"),
    ],
)
def test_each_mistake_is_named_by_file_and_line(tmp_path, line, message):
    with pytest.raises(UsageError, match=message):
        next(rows(write_rows(tmp_path, line))).task()


def test_an_empty_file_a_missing_file_and_a_bad_archive_are_said_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="holds no rows"):
        list(rows(write_rows(tmp_path, "", " ")))
    with pytest.raises(UsageError, match=r"none.jsonl: cannot be read: No such file"):
        list(rows(tmp_path / "none.jsonl"))
    (tmp_path / "bad.gz").write_bytes(b"not gzip")
    with pytest.raises(UsageError, match=r"bad.gz: cannot be read"):
        list(rows(tmp_path / "bad.gz"))


def test_a_row_of_gym_shows_its_text_parts_as_text_and_its_instructions_first(tmp_path):
    item = {"role": "user", "type": "message", "content": [{"type": "input_text", "text": "What is 1 + 1?"}]}
    params = [{"input": [item]}, {"input": "Hello?", "instructions": "Be brief."}]
    path = tmp_path / "gym.jsonl"
    path.write_text(
        "".join(json.dumps({"responses_create_params": one, "expected_answer": "2"}) + "\n" for one in params)
    )
    first, second = (row.task() for row in rows(path))
    assert [(m.role, m.content) for m in first.messages] == [("user", "What is 1 + 1?")]
    assert [(m.role, m.content) for m in second.messages] == [("system", "Be brief."), ("user", "Hello?")]
