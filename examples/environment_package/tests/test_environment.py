"""The verifier accepts right answers and rejects others."""

from letter_count import LetterCount

import rollbook


def test_the_right_number_scores_1():
    assert rollbook.score(LetterCount(), "strawberry-r", "There are 3.").reward == 1


def test_a_wrong_number_scores_0():
    assert rollbook.score(LetterCount(), "strawberry-r", "2").reward == 0


def test_an_answer_without_a_number_scores_0_and_has_no_answer():
    score = rollbook.score(LetterCount(), "strawberry-r", "many")
    assert (score.reward, score.answer) == (0, None)
