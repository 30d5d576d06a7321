import pytest

from rollbook.environments.answers.choices import read_letter

COLOURS = {"A": "red", "B": "blue", "C": "dark blue"}


@pytest.mark.parametrize(
    ("text", "strict", "lenient"),
    [
        (r"So \boxed{B}.", "B", "B"),
        (r"\boxed{\text{b}}", "B", "B"),
        (r"\boxed{(B)}", "B", "B"),
        (r"\boxed{B: blue}", None, "B"),
        (r"\boxed{blue}", None, "B"),
        ("The answer is B.", None, "B"),
        ("I first thought that the answer is A. The correct option is: (b)", None, "B"),
        ("Thinking.\nB) blue", None, "B"),
        ("**B**", None, "B"),
        ("Dark blue.", None, "C"),
        ("A good question, is it not?", None, None),
        (r"\boxed{D}", None, None),
        ("The answer is a blue colour.", None, None),
        ("The answer is a mystery; my pick: C", None, None),
        ("The answer is a because grass is.", None, "A"),
        ("The correct option is A or B or C", None, None),
        ("The answer is A, B, or C.", None, None),
        ("The answer is (a) or possibly (b)", None, None),
        ("The answer is A. No: the answer is B or C", None, None),
        ("The answer is B, I think.", None, "B"),
        ("The answer is **B**, not C.", None, "B"),
        ("The answer is B, C is too dark.", None, "B"),
        ("The answer is B and a good one.", None, "B"),
        ("A) or B)", None, None),
        (r"\boxed{A. B. C.}", None, None),
        (r"\boxed{A or B}", None, None),
        (r"<think>\boxed{A}</think>", None, None),
        (r"\boxed{$B$}", "B", "B"),
        (r"\boxed{{B}}", "B", "B"),
        (r"\boxed{[B]}", "B", "B"),
        ('\\boxed{"B"}', "B", "B"),
        (r"\boxed{B:}", "B", "B"),
        (r"\boxed{\textit{B}}", "B", "B"),
        (r"\boxed{\text{\textbf{B}}}", "B", "B"),
        (r"\boxed{B) blue or C) green}", None, None),
        (r"\boxed{B: blue; C: green}", None, None),
        ("The wrong answer is B.", None, None),
        ("The incorrect option is: B", None, None),
        ("The answer is B. The wrong answer is C.", None, "B"),
        ("Option: B is not right", None, None),
        ("The answer is not B.", None, None),
        ("Which answer is B?", None, None),
        ("The answer is B; C is possible too", None, None),
        ("The answer is B but could be C", None, None),
        ("The answer is B alternatively C", None, None),
        ("B but could be C", None, None),
        ("B alternatively C", None, None),
        ("The answer is one of: B C D", None, None),
        ("one of: B C D", None, None),
        ("The answer is option B.", None, "B"),
        ("B is correct.", None, "B"),
        ("B is not correct.", None, None),
        ("Is B correct?", None, None),
        ("Option B is the right answer.", None, "B"),
        ("Answer: blue", None, "B"),
        ("The answer is blue.", None, "B"),
        ("The answer is dark blue.", None, "C"),
        ("The answer is green.", None, None),
        ("So <answer>B</answer>", None, "B"),
        ("I choose B.", None, "B"),
        ("I'll pick option (b).", None, "B"),
        ("Answer B", None, "B"),
        ("B - blue", None, "B"),
        ("B - red", None, None),
        ("The answer is B rather than C.", None, "B"),
        ("The answer is B because A is red.", None, "B"),
        ("The answer is (B) since C and A are wrong.", None, "B"),
        ("The answer is B, C describes the night.", None, "B"),
        ("The answer is B, C is not right.", None, "B"),
        ("The answer is B or C depending on the hour.", None, None),
        ("Therefore, the best answer is **B) blue**.", None, "B"),
        ("**Answer:** B", None, "B"),
        ("Answer: **B**", None, "B"),
        ("Final answer: B. blue", None, "B"),
        ("The correct answer is B, not A", None, "B"),
        ("The answer is A.\nThe answer is B.", None, "B"),
        ("It is not clear to me, but the answer is B.", None, "B"),
        ("Both A and B", None, None),
        ("<answer>B or C</answer>", None, None),
        ("", None, None),
    ],
)
def test_strict_takes_a_letter_in_a_box_and_lenient_what_is_meant(text, strict, lenient):
    assert read_letter(text, COLOURS, lenient=False) == strict
    assert read_letter(text, COLOURS, lenient=True) == lenient


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("The answer is 2.", "2"),
        ("2) blue", "2"),
        ("2 - blue", "2"),
        (r"\boxed{2}", "2"),
        ("The answer is 2.5", None),
        ("The answer is 2 or 3.", None),
        ("The answer is 2 apples.", None),
    ],
)
def test_labels_may_be_numbers(text, label):
    assert read_letter(text, {"1": "red", "2": "blue", "3": "green"}, lenient=True) == label


@pytest.mark.parametrize("text", ["B) vitamin C", "The answer is B: vitamin C.", r"\boxed{B. Vitamin C}", "Vitamin C"])
def test_a_letter_in_the_words_of_an_option_is_no_second_choice(text):
    assert read_letter(text, {"A": "iron", "B": "vitamin C", "C": "zinc"}, lenient=True) == "B"
