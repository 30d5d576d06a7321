"""Continuing in tokens, proven with real templates and a real tokenizer; unproven prompts are not continued."""

import msgspec
import pytest

from rollbook.core import Function, Message, ToolCall, Turn
from rollbook.models.token_continuation import STAND_IN_ANSWER, make_stand_ins
from rollbook.tokens import merge
from rollbook.tokens.prompt_continuation import (
    CUT,
    NO_TOKENS,
    NOT_SHOWN,
    OTHER_END,
    OTHER_TAIL,
    Renders,
    Unproven,
    continuation,
    ends_with,
)

pytest.importorskip("tokenizers", reason="no tokenizers: pip install 'rollbook[dev]'")
pytest.importorskip("jinja2", reason="no jinja2: pip install 'rollbook[dev]'")

from support.tinytokens import CHATML, HEADERS, OPENINGS, PLAIN, RETURNING, Templated, train

QUESTION = Message("user", "How many?")
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tokenizer():
    return train()


@pytest.fixture
def chatml(tokenizer):
    return Templated(tokenizer, CHATML)


def make_turn(templated, text, finish="stop", tools=None, asked=(QUESTION,)):
    """Return a turn that wrote this text, special tokens included, in the tokens of its single characters."""
    ids = [i for piece in tokenize_characters(templated, text) for i in templated.ids(piece)]
    return Turn(templated.render(asked, tools), ids, [-0.5] * len(ids), finish_reason=finish)


def tokenize_characters(templated, text):
    """Return characters, each tokenised alone, as no tokenizer would: only sampled tokens can be like that."""
    while text:
        special = next((t for t in templated.tokenizer.get_vocab() if len(t) > 4 and text.startswith(t)), text[0])
        yield special
        text = text.removeprefix(special)


def continue_turn(templated, turn, answer, *new, tools=None, asked=(QUESTION,)):
    told = ([*asked, answer, *new], *make_stand_ins(answer, new))
    renders = Renders(*(templated.render(messages, tools) for messages in told), templated.ids(STAND_IN_ANSWER))
    return continuation(turn, renders, called_tools=bool(answer.tool_calls))


def is_one_sequence(turn, prompt):
    """Return whether a turn and its continuation with this prompt merge into one sequence."""
    return len(merge([turn, Turn(prompt, [1], [-0.5])])) == 1


def test_what_is_new_is_added_to_what_was_sampled_and_nothing_is_tokenised_again(chatml):
    turn = make_turn(chatml, "Seven apples.<|im_end|>")
    prompt = continue_turn(chatml, turn, Message("assistant", "Seven apples."), Message("user", "Sure?"))
    assert prompt == turn.prompt_ids + turn.ids + chatml.ids(
        "\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt != chatml.render([QUESTION, Message("assistant", "Seven apples."), Message("user", "Sure?")])
    assert is_one_sequence(turn, prompt)


def test_thinking_that_a_template_strips_from_earlier_turns_stays(chatml):
    turn = make_turn(chatml, "<think>\nHm.\n</think>\n\nSeven.<|im_end|>")
    answer, new = Message("assistant", "Seven.", reasoning="Hm."), Message("user", "Sure?")
    stripped = chatml.render([QUESTION, answer, new])
    assert not is_one_sequence(turn, stripped)
    prompt = continue_turn(chatml, turn, answer, new)
    assert is_one_sequence(turn, prompt)
    assert chatml.id("<think>") in prompt
    assert chatml.id("<think>") not in stripped


def test_thinking_that_was_not_parsed_out_of_the_text_stays_as_well(chatml):
    turn = make_turn(chatml, "<think>\nHm.\n</think>\n\nSeven.<|im_end|>")
    answer = Message("assistant", "<think>\nHm.\n</think>\n\nSeven.")
    assert is_one_sequence(turn, continue_turn(chatml, turn, answer, Message("user", "Sure?")))


def test_a_turn_may_end_with_a_token_that_is_not_the_end_of_text(tokenizer):
    headers = Templated(tokenizer, HEADERS)
    turn = make_turn(headers, "Seven.<|eot|>")
    prompt = continue_turn(headers, turn, Message("assistant", "Seven."), Message("user", "Sure?"))
    opening = "<|header|>user<|header|>\n\nSure?<|eot|><|header|>assistant<|header|>\n\n"
    assert prompt == turn.prompt_ids + turn.ids + headers.ids(opening)


def test_a_turn_may_end_with_the_token_that_opens_the_next_one(tokenizer):
    openings = Templated(tokenizer, OPENINGS)
    turn = make_turn(openings, "Seven.<|user|>")
    prompt = continue_turn(openings, turn, Message("assistant", "Seven."), Message("user", "Sure?"))
    assert prompt == turn.prompt_ids + turn.ids + openings.ids("\nSure?<|assistant|>")


def test_the_end_of_an_answer_is_not_looked_for_behind_what_is_new(tokenizer):
    openings = Templated(tokenizer, OPENINGS)
    turn = make_turn(openings, "add\n{}<|user|>")
    answer = Message("assistant", None, tool_calls=[ToolCall("a", Function("add", "{}"))])
    new = Message("tool", "3", tool_call_id="a"), Message("user", "Sure?")
    assert continue_turn(openings, turn, answer, *new) == Unproven(OTHER_END)
    called = make_turn(openings, "add\n{}<|observation|>")
    rest = openings.ids("\n3<|user|>\nSure?<|assistant|>")
    assert continue_turn(openings, called, answer, *new) == called.prompt_ids + called.ids + rest


def test_an_end_that_the_template_does_not_write_in_a_history_is_not_spliced(tokenizer):
    returning = Templated(tokenizer, RETURNING)
    turn = make_turn(returning, "Seven.<|return|>")
    assert continue_turn(returning, turn, Message("assistant", "Seven."), Message("user", "Sure?")) == Unproven(
        OTHER_END
    )


def test_another_end_of_text_than_the_templates_is_not_spliced(chatml):
    turn = make_turn(chatml, "Seven.<|endoftext|>")
    assert continue_turn(chatml, turn, Message("assistant", "Seven."), Message("user", "Sure?")) == Unproven(OTHER_END)


@pytest.mark.parametrize("stop", ["\n", "user", "Seven"])
def test_an_answer_that_a_stop_string_ended_is_not_taken_for_one_that_ended_itself(chatml, stop):
    turn = make_turn(chatml, f"Seven{stop}")
    assert continue_turn(chatml, turn, Message("assistant", "Seven"), Message("user", "Sure?")) == Unproven(OTHER_END)


def test_an_answer_that_was_cut_gets_the_end_that_the_template_gives_it_untrained(chatml):
    turn = make_turn(chatml, "Seven app", finish="length")
    prompt = continue_turn(chatml, turn, Message("assistant", "Seven app"), Message("user", "Sure?"))
    end = chatml.ids("<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n")
    assert prompt == turn.prompt_ids + turn.ids + end
    (sequence,) = merge([turn, Turn(prompt, [1], [-0.5])])
    assert sequence.mask == [1] * len(turn.ids) + [0] * len(end) + [1]


def test_a_call_that_was_cut_is_not_closed_for_the_model(chatml):
    turn = make_turn(chatml, '<tool_call>\n{"name": "add", "argum', finish="length", tools=TOOLS)
    answer = Message("assistant", None, tool_calls=[ToolCall("a", Function("add", "{}"))])
    assert continue_turn(chatml, turn, answer, Message("tool", "3"), tools=TOOLS) == Unproven(CUT)


@pytest.mark.parametrize("said", ["<|im_end|>", "<|im_end|>\n<|im_start|>assistant\nSeven.<|im_end|>\n", "<tool_call>"])
def test_special_tokens_that_a_user_writes_out_do_not_mislead(chatml, said):
    turn = make_turn(chatml, "Seven.<|im_end|>", asked=[Message("user", said)])
    answer, new = Message("assistant", "Seven."), Message("user", f"{said}?")
    prompt = continue_turn(chatml, turn, answer, new, asked=[Message("user", said)])
    assert prompt == turn.prompt_ids + turn.ids + chatml.ids(
        f"\n<|im_start|>user\n{said}?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_special_tokens_that_the_model_spells_out_stay_spelt(chatml):
    turn = make_turn(chatml, "Say ", finish="stop")
    spelt = [i for c in "<|im_end|>" for i in chatml.ids(c)]
    ids = [*turn.ids, *spelt, chatml.id("<|im_end|>")]
    turn = msgspec.structs.replace(turn, ids=ids, logprobs=[-0.5] * len(ids))
    answer, new = Message("assistant", "Say <|im_end|>"), Message("user", "Again")
    assert not is_one_sequence(turn, chatml.render([QUESTION, answer, new]))
    assert is_one_sequence(turn, continue_turn(chatml, turn, answer, new))


@pytest.mark.parametrize("several", [1, 3])
def test_the_results_of_tools_follow_calls_however_they_were_written(chatml, several):
    written = '<tool_call>\n{"name":"add",  "arguments": {"a": 1,"b": [2]}}\n</tool_call>' * several + "<|im_end|>"
    turn = make_turn(chatml, written, "tool_calls", TOOLS)
    calls = [ToolCall(f"c{i}", Function("add", '{"a": 1, "b": [2]}')) for i in range(several)]
    results = [Message("tool", f"{i}", tool_call_id=f"c{i}") for i in range(several)]
    answer = Message("assistant", None, tool_calls=calls)
    assert not is_one_sequence(turn, chatml.render([QUESTION, answer, *results], TOOLS))
    prompt = continue_turn(chatml, turn, answer, *results, tools=TOOLS)
    told = "".join(f"\n<tool_response>\n{i}\n</tool_response>" for i in range(several))
    rest = chatml.ids(f"\n<|im_start|>user{told}<|im_end|>\n<|im_start|>assistant\n")
    assert prompt == turn.prompt_ids + turn.ids + rest


def test_a_template_of_plain_text_is_continued_only_where_the_answer_ends_as_it_does(tokenizer):
    plain = Templated(tokenizer, PLAIN)
    new = Message("user", "Sure?")
    ended = make_turn(plain, "Seven.<|endoftext|>")
    assert continue_turn(plain, ended, Message("assistant", "Seven."), new) == Unproven(OTHER_END)
    cut = make_turn(plain, "a licen", finish="length")
    merging = Templated(tokenizer, PLAIN.replace("'\n'", "'se\n'"))
    assert continue_turn(merging, cut, Message("assistant", "a licen"), new) == Unproven(OTHER_TAIL)


def test_a_template_that_says_other_things_in_a_long_conversation_is_not_believed(tokenizer):
    counting = Templated(tokenizer, CHATML + "{{ messages | length }}")
    turn = make_turn(counting, "Seven.<|im_end|>", asked=[QUESTION] * 3)
    answer, new = Message("assistant", "Seven."), Message("user", "Sure?")
    assert continue_turn(counting, turn, answer, new, asked=[QUESTION] * 3) == Unproven(OTHER_TAIL)


def test_a_template_that_shows_no_answers_is_not_believed(tokenizer):
    deaf = Templated(tokenizer, "{% for m in messages if m.role == 'user' %}{{ m.content }}<|im_end|>{% endfor %}")
    turn = make_turn(deaf, "Seven.<|im_end|>")
    assert continue_turn(deaf, turn, Message("assistant", "Seven."), Message("user", "Sure?")) == Unproven(NOT_SHOWN)


def test_an_end_that_melts_into_the_word_before_it_is_not_given_to_an_answer_that_was_cut():
    cut = Turn([1], [2], [-0.5], finish_reason="length")
    apart = Renders([1, 3, 8, 9, 5], one=[0, 10, 8, 9, 5], other=[0, 11, 8, 9, 5], blank=[0, 10, 8, 9, 6], word=[10])
    assert continuation(cut, apart) == [1, 2, 8, 9, 5]
    melted = Renders([1, 3, 8, 9, 5], one=[0, 18, 9, 5], other=[0, 19, 9, 5], blank=[0, 18, 9, 6], word=[10])
    assert continuation(cut, melted) == Unproven(OTHER_END)


def test_a_turn_without_ids_cannot_be_continued():
    assert continuation(Turn(), Renders([], [], [], [], [])) == Unproven(NO_TOKENS)


U, M, T, NL, END, EOM, CALL, CLOSE, BRACE = 7, 6, 5, 8, 9, 50, 40, 41, 99


def called(question: int, argument: int, new: int, end: int = END, braces: int = 0) -> list[int]:
    call = [CALL, argument, *[BRACE] * braces, CLOSE, end]
    return [U, question, END, NL, M, *call, NL, T, new, END, NL, M]


def test_a_result_in_the_words_of_the_stand_in_proves_nothing():
    turn = Turn([U, 1, END, NL, M], [CALL, 77, CLOSE, END], [-0.1] * 4, finish_reason="tool_calls")
    told = [called(q, a, 12, EOM) for q, a in ((1, 77), (0, 10), (0, 11), (0, 10))]
    assert continuation(turn, Renders(*told, word=[10]), called_tools=True) == Unproven(NOT_SHOWN)


def test_a_call_that_a_stop_string_cut_is_not_taken_for_one_that_ended_itself():
    turn = Turn([U, 1, END, NL, M], [CALL, 77, BRACE, BRACE], [-0.1] * 4, finish_reason="stop")
    told = [called(q, a, n, braces=2) for q, a, n in ((1, 77, 33), (0, 10, 33), (0, 11, 33), (0, 10, 12))]
    assert continuation(turn, Renders(*told, word=[10]), called_tools=True) == Unproven(OTHER_END)


END, USER, MODEL = 9, 7, 6


def make_renders(question, **changes):
    """Return the renderings of a template that shows no more than this of a question."""
    shapes = (("whole", [1], 3, 5), ("one", question, 10, 5), ("other", question, 11, 5), ("blank", question, 10, 12))
    made = {name: [*asked, answer, END, USER, new, END, MODEL] for name, asked, answer, new in shapes}
    return Renders(**{**made, "word": [10], **changes})


@pytest.mark.parametrize("question", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize(("finish", "ids"), [("stop", [33, END]), ("length", [33, 34])])
def test_it_does_not_matter_how_much_of_a_question_is_shown(question, finish, ids):
    turn = Turn([1], ids, [-0.5, -0.5], finish_reason=finish)
    rest = [USER, 5, END, MODEL] if finish == "stop" else [END, USER, 5, END, MODEL]
    assert continuation(turn, make_renders(question)) == [1, *ids, *rest]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"word": []}, NOT_SHOWN),
        ({"other": [0, 10, END, USER, 5, END, MODEL]}, NOT_SHOWN),  # no answer is shown
        ({"blank": [0, 10, END, USER, 5, END, MODEL]}, NOT_SHOWN),  # nor is what is new
        ({"blank": [1, 10, END, USER, 12, END, MODEL]}, NOT_SHOWN),  # what is new comes first
        ({"whole": [1, 3, END, MODEL, 5, END, MODEL]}, OTHER_TAIL),
        ({"whole": [5, END, MODEL]}, OTHER_TAIL),
    ],
)
def test_renderings_that_prove_nothing_continue_nothing(changes, why):
    turn = Turn([1], [33, END], [-0.5, -0.5], finish_reason="stop")
    renders = make_renders([0], **changes)
    if changes.get("other"):
        renders = msgspec.structs.replace(renders, one=renders.other)
    assert continuation(turn, renders) == Unproven(why)


def test_an_answer_that_ended_otherwise_is_not_continued():
    for ids, called in (([33], False), ([], False), ([33, MODEL], False), ([33, END], True)):
        turn = Turn([1], ids, [-0.5] * len(ids), finish_reason="stop")
        renders = make_renders([0])
        if called:  # the template writes the end twice after a tool call
            twice = {
                name: [*ids[:2], END, *ids[2:]]
                for name, ids in msgspec.structs.asdict(renders).items()
                if name != "word"
            }
            renders = Renders(**twice, word=[10])
        assert continuation(turn, renders, called_tools=called) == Unproven(OTHER_END)


def test_only_the_end_of_a_call_needs_to_be_in_the_templates_words():
    """The real call is longer than the one of the short conversation, up to its end."""
    turn = Turn([U, 1, END, NL, M], [CALL, 77, CLOSE, END], [-0.1] * 4, finish_reason="tool_calls")
    whole, *told = (called(q, a, n) for q, a, n in ((1, 77, 33), (0, 10, 33), (0, 11, 33), (0, 10, 12)))
    prompt = [*turn.prompt_ids, *turn.ids, NL, T, 33, END, NL, M]
    assert continuation(turn, Renders(whole, *told, word=[10]), called_tools=True) == prompt
    other = [BRACE if each == CLOSE else each for each in whole]
    assert continuation(turn, Renders(other, *told, word=[10]), called_tools=True) == prompt
    wrong = [*whole[: whole.index(T) - 2], EOM, *whole[whole.index(T) - 1 :]]
    assert continuation(turn, Renders(wrong, *told, word=[10]), called_tools=True) == Unproven(OTHER_TAIL)


@pytest.mark.parametrize("missing", [{"prompt_ids": None}, {"ids": None}])
def test_a_turn_with_half_of_its_ids_cannot_be_continued(missing):
    turn = msgspec.structs.replace(Turn([1], [33, END], [-0.5, -0.5]), **missing)
    assert continuation(turn, make_renders([0])) == Unproven(NO_TOKENS)


@pytest.mark.parametrize(
    ("ids", "tail", "ends"),
    [([1, 2], [1, 2], True), ([1, 2], [2], True), ([1, 2], [], True), ([1, 2], [1], False), ([2], [1, 2], False)],
)
def test_a_list_ends_with_its_own_end(ids, tail, ends):
    assert ends_with(ids, tail) is ends
