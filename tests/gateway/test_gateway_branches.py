"""Which call continues which."""

from __future__ import annotations

from rollbook.core import Function, Message, ToolCall, Turn
from rollbook.gateway.recorder import Branches, hash_prefixes
from rollbook.tokens import merge

SYSTEM, ONE, TWO = Message("system", "s"), Message("user", "one"), Message("user", "two")


def assistant(text: str) -> Message:
    return Message("assistant", text)


def turn(number: int) -> Turn:
    return Turn(finish_reason=str(number))


class Told(Branches):
    """Branches, with the digests done."""

    def call(self, answer: Message | str, *messages: Message, number: int = 0) -> None:
        message = assistant(answer) if isinstance(answer, str) else answer
        self.add(messages, hash_prefixes(messages), message, turn(number))

    def texts(self) -> list[list[str]]:
        return [[message.text for message in branch.messages] for branch in self.in_call_order()]


def test_a_conversation_that_goes_on_is_one_branch() -> None:
    branches = Told()
    branches.call("a", SYSTEM, ONE)
    branches.call("b", SYSTEM, ONE, assistant("a"), TWO)
    assert branches.texts() == [["s", "one", "a", "two", "b"]]
    assert len(branches.turns()) == 2


def test_the_same_question_again_and_a_sub_agent_are_branches_of_their_own() -> None:
    branches = Told()
    branches.call("a", ONE, number=1)
    branches.call("a2", ONE, number=2)
    branches.call("sub", SYSTEM, TWO, number=3)
    branches.call("b", ONE, assistant("a"), TWO, number=4)
    assert branches.texts() == [["one", "a2"], ["s", "two", "sub"], ["one", "a", "two", "b"]]
    assert [turn.finish_reason for turn in branches.turns()] == ["2", "3", "1", "4"]


def test_two_that_continue_the_same_answer_part_there() -> None:
    branches = Told()
    branches.call("a", ONE)
    branches.call("b", ONE, assistant("a"), TWO)
    branches.call("c", ONE, assistant("a"), TWO)
    assert branches.texts() == [["one", "a", "two", "b"], ["one", "a", "two", "c"]]


def test_an_edited_history_is_another_branch() -> None:
    branches = Told()
    branches.call("a", ONE)
    branches.call("b", ONE, assistant("A"), TWO)
    assert branches.texts() == [["one", "a"], ["one", "A", "two", "b"]]


def test_what_agents_do_not_send_back_as_it_was_parts_nobody() -> None:
    branches = Told()
    wrote = Message("assistant", "I add. \n", "hm", [ToolCall("c1", Function("add", '{"b": 2,  "a": 1}'))])
    branches.call(wrote, ONE)
    back = Message("assistant", "I add.", None, [ToolCall("x9", Function("add", '{"a":1,"b":2}'))])
    result = Message("tool", "3", tool_call_id="x9")
    branches.call("3", ONE, back, result)
    (branch,) = branches.in_call_order()
    assert branch.messages == [ONE, wrote, result, assistant("3")]


def test_calls_go_back_as_the_model_wrote_them_under_the_ids_of_the_agent() -> None:
    branches = Told()
    branches.call(Message("assistant", None, None, [ToolCall("c1", Function("add", '{"b": 2,  "a": 1}'))]), ONE)
    back = Message("assistant", None, None, [ToolCall("x9", Function("add", '{"a":1,"b":2}'))])
    stranger = Message("assistant", None, None, [ToolCall("x9", Function("add", '{"a":1,"b":3}'))])
    for sent, wanted in ((back, '{"b": 2,  "a": 1}'), (stranger, '{"a":1,"b":3}')):
        messages = [ONE, sent, TWO]
        _, message, _ = branches.restore_answers(messages, hash_prefixes(messages))
        assert message.tool_calls == [ToolCall("x9", Function("add", wanted))]


def test_an_answer_goes_back_word_for_word_without_thoughts_that_the_agent_left_out() -> None:
    branches = Told()
    branches.call(Message("assistant", " yes\n", "hm"), ONE)
    for content in ("yes", [{"type": "text", "text": "yes"}]):
        messages = [ONE, Message("assistant", content), TWO]
        assert branches.restore_answers(messages, hash_prefixes(messages)) == [ONE, assistant(" yes\n"), TWO]


def test_the_messages_begin_as_the_task_does_and_do_not_repeat_it() -> None:
    branches = Told()
    branches.call("a", ONE)
    assert branches.messages([ONE]) == [ONE, assistant("a")]
    assert branches.messages([TWO]) == [TWO, ONE, assistant("a")]


def test_turns_in_the_order_of_branches_make_the_fewest_sequences() -> None:
    branches = Branches()
    one, two = [ONE], [TWO]
    calls = [(one, "a", [1], [2]), (two, "b", [7], [8]), ([*one, assistant("a"), TWO], "c", [1, 2, 3], [4])]
    for messages, answer, prompt, ids in calls:
        branches.add(messages, hash_prefixes(messages), assistant(answer), Turn(prompt, ids, [-0.5]))
    merged = merge(branches.turns())
    assert [(s.prompt_ids, s.response_ids, s.mask) for s in merged] == [([7], [8], [1]), ([1], [2, 3, 4], [1, 0, 1])]
