import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollbook.core import JSON, Message, ModelSpec, Sampling, Settings, encode_line
from rollbook.errors import RolloutFailed, UsageError
from rollbook.models.model import Completion, resolve_model
from rollbook.models.scripted import ScriptedModel


def write(path: Path, *lines: JSON) -> Path:
    path.write_bytes(b"".join(map(encode_line, lines)))
    return path


def answers(path: Path, *calls: tuple[Sequence[Message], int, str], **settings: JSON) -> list[Completion]:
    async def main() -> list[Completion]:
        spec, resolved = resolve_model([f"scripted:{path}"])
        model = ScriptedModel(spec, Settings(urls=resolved.urls, **settings))
        await model.open()
        model.version = "v1"
        return [await model.complete(m, Sampling(), seed=seed, rollout=name) for m, seed, name in calls]

    return asyncio.run(main())


def user(text: str) -> list[Message]:
    return [Message("user", text)]


def test_the_closest_line_answers(tmp_path: Path) -> None:
    script = write(
        tmp_path / "s.jsonl",
        {"answer": "anyone"},
        {"prompt": "hi", "answer": "prompt"},
        {"task": "a#1", "answer": "task"},
        {"task": "a#1", "sample": 2, "answer": "rollout"},
    )
    calls = [(user("hi"), 0, "a#1#2"), (user("hi"), 0, "a#1#3"), (user("hi"), 0, "b#0"), (user("ho"), 0, "b#0")]
    assert [c.message.text for c in answers(script, *calls)] == ["rollout", "task", "prompt", "anyone"]


def test_equal_lines_are_taken_by_the_seed_and_by_the_turn(tmp_path: Path) -> None:
    script = write(tmp_path / "s.jsonl", *({"answer": str(i)} for i in range(3)))
    later = [*user("hi"), Message("assistant", "x"), *user("hi")]
    calls = [(user("hi"), 4, "a#0"), (user("hi"), 5, "a#1"), (later, 4, "a#0"), (user("hi"), 4, "a#0")]
    assert [c.message.text for c in answers(script, *calls)] == ["1", "2", "2", "1"]


def test_tokens_finish_reason_and_tool_calls_are_replayed(tmp_path: Path) -> None:
    line = {"answer": "x", "finish_reason": "length", "prompt_ids": [1, 2], "ids": [3], "logprobs": [-1.5]}
    turn = answers(write(tmp_path / "s.jsonl", line), (user("hi"), 0, "a#0"))[0].turn
    assert (turn.prompt_ids, turn.ids, turn.logprobs) == ([1, 2], [3], [-1.5])
    assert (turn.prompt_tokens, turn.completion_tokens, turn.finish_reason, turn.model_version) == (
        2,
        1,
        "length",
        "v1",
    )
    call = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
    message = answers(write(tmp_path / "t.jsonl", call), (user("hi"), 0, "a#0"))[0].message
    assert message.tool_calls is not None
    assert message.tool_calls[0].function.name == "f"


def test_a_delay_is_kept_and_one_beyond_the_deadline_is_a_timeout(tmp_path: Path) -> None:
    script = write(tmp_path / "s.jsonl", {"answer": "x", "delay_s": 0.05})
    assert answers(script, (user("hi"), 0, "a#0"))[0].turn.seconds >= 0.05
    with pytest.raises(RolloutFailed) as caught:
        answers(script, (user("hi"), 0, "a#0"), call_s=0.01)
    assert caught.value.kind == "model_timeout"


def test_a_conversation_without_an_answer_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RolloutFailed, match=r"no answer for a#0") as caught:
        answers(write(tmp_path / "s.jsonl", {"prompt": "ho", "answer": "x"}), (user("hi"), 0, "a#0"))
    assert caught.value.kind == "model_rejected"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "truncated"),
        ('{"answer": 3}', "answer"),
        ('{"anwser": "x"}', "anwser"),
        ("{}", "neither"),
        ('{"answer": "x", "sample": 1}', "without"),
        ('{"answer": "x", "ids": [1]}', "together"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_line(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(f'{{"answer": "x"}}\n\n{line}\n')
    with pytest.raises(UsageError, match=rf"s\.jsonl:3: .*{says}"):
        resolve_model([f"scripted:{path}"])


def test_a_missing_or_empty_script_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        resolve_model([f"scripted:{tmp_path / 'none.jsonl'}"])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(UsageError, match="no answers"):
        resolve_model([f"scripted:{tmp_path / 'empty.jsonl'}"])


def test_a_script_that_changed_is_noticed(tmp_path: Path) -> None:
    script = write(tmp_path / "s.jsonl", {"answer": "x"})
    spec, resolved = resolve_model([f"scripted:{script}"])
    assert (spec.kind, spec.name, len(spec.digest)) == ("scripted", "s.jsonl", 64)
    write(script, {"answer": "y"})
    with pytest.raises(UsageError, match="changed"):
        asyncio.run(ScriptedModel(ModelSpec(spec.name, spec.kind, spec.digest), Settings(urls=resolved.urls)).open())


def test_an_answer_takes_as_long_as_its_line_says(tmp_path: Path) -> None:
    for delay_s in (0.0, 0.05):
        script = write(tmp_path / "s.jsonl", {"answer": "x", "delay_s": delay_s})
        (done,) = answers(script, (user("hi"), 0, "a#0"))
        assert delay_s <= done.turn.seconds < 30


def test_a_rollout_is_answered_turn_by_turn_whatever_its_seed(tmp_path: Path) -> None:
    script = write(tmp_path / "s.jsonl", *({"task": "a", "sample": 0, "answer": str(i)} for i in range(2)))
    later = [*user("hi"), Message("assistant", "x"), *user("hi")]
    assert [c.message.text for c in answers(script, (user("hi"), 5, "a#0"), (later, 4, "a#0"))] == ["0", "1"]
