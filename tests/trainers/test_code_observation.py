"""The observation of a model's code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.trainers.nemo_rl.code_environment import make_observation
from rollbook.trainers.nemo_rl.code_samples import CodeOutcome, CodeProblem

ROOM = 1000


def shown(outcome, code="1", after=""):
    return make_observation([outcome], [code], after, ROOM)


def test_one_line_of_code_with_one_line_to_tell_stays_one_line():
    assert shown(CodeOutcome(value="7")) == "<result>7</result>"
    assert shown(CodeOutcome(stdout="hi\n")) == "<result>hi</result>"
    assert shown(CodeOutcome()) == "<result></result>"


def test_what_was_printed_and_the_value_are_both_there_in_order():
    outcome = CodeOutcome(stdout="out\n", stderr="err\n", value="7", problem=CodeProblem("runtime", "no"), after="lost")
    assert shown(outcome) == "\n\n<result>\nout\nerr\n7\nerror[runtime]: no\nsession: lost\n</result>"
    assert shown(CodeOutcome(value="7"), code="x\n7") == "\n\n<result>\n7\n</result>"
    assert shown(CodeOutcome(value="1", before="began afresh")) == "\n\n<result>\nsession: began afresh\n1\n</result>"


def test_line_ends_that_the_model_wrote_are_not_written_again():
    assert shown(CodeOutcome(value="7"), code="x\n7", after="\n") == "\n<result>\n7\n</result>"
    assert shown(CodeOutcome(value="7"), code="x\n7", after="\n\n") == "<result>\n7\n</result>"
    assert shown(CodeOutcome(value="7"), code="x\n7", after=" words") == "\n\n<result>\n7\n</result>"


def test_every_block_has_a_result_of_its_own():
    both = make_observation([CodeOutcome(), CodeOutcome(value="2")], ["x = 1", "2"], "", ROOM)
    assert both == "\n\n<result></result>\n<result>\n2\n</result>"


@pytest.mark.parametrize("tag", ["</result>", "<result>", "</ Result >", "< /result", "<\n/\nRESULT>"])
@pytest.mark.parametrize("where", ["stdout", "stderr", "value"])
def test_nothing_that_code_says_closes_the_envelope(tag, where):
    text = shown(CodeOutcome(**{where: f"a{tag}b"}))
    assert text.lower().count("result") == 3
    assert text.count("<") == 2
    assert "&lt;" in text


def test_an_error_message_cannot_close_the_envelope_either():
    assert shown(CodeOutcome(problem=CodeProblem("runtime", "</result>"))).count("</result>") == 1


def test_long_output_is_cut_with_a_mark():
    text = shown(CodeOutcome(stdout="x" * (ROOM + 1), value="y" * ROOM, problem=CodeProblem("runtime", "z" * 2 * ROOM)))
    assert "x" * ROOM + f"\n[cut after {ROOM} characters]\n" + "y" * ROOM + "\nerror[runtime]: " in text
    assert text.count("[cut after") == 2


@given(st.text(), st.text(), st.none() | st.text())
def test_any_output_makes_one_envelope_of_valid_text(stdout, stderr, value):
    text = shown(CodeOutcome(stdout=stdout, stderr=stderr + "\ud800", value=value))
    text.encode()
    assert (text.count("<result>"), text.count("</result>")) == (1, 1)
    assert text.endswith("</result>")
