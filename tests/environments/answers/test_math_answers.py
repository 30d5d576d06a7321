import pytest

from rollbook.environments.answers.comparison import is_same_answer, parse_number, strip_delimiters
from rollbook.environments.answers.extraction import extract_math_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"<think>\boxed{9}</think> It is \boxed{7}", "7"),
        (r"so $x = 5$ and the answer is $\frac{\sqrt{3}}{2}$.", r"\frac{\sqrt{3}}{2}"),
        ("Answer: 34", "34"),
        ("**Answer:** 12", "12"),
        ("Answer: \\(34\\)", "34"),
        ("The final answer is:\n\n$$x=3$$", "x=3"),
        ("I think the answer is: x^2 + 1", "x^2 + 1"),
        ("the answer is Tuesday", "Tuesday"),
        ("The answer is therefore the number 12.", "12"),
        ("We get $a=1$ and hence $b = 2$.", "b = 2"),
        ("therefore x is 4.5", "4.5"),
        ("#### 72", "72"),
        ("The answer is 7!", "7"),
        ("Answer: n!", "n!"),
        (r"So \boxed{5!}", "5!"),
        ("The answer is 5 or six.", "5 or six"),
        ("The answer is 12, or equivalently a dozen.", "12"),
        ("", None),
        ("I cannot say.", None),
    ],
)
def test_what_a_text_means_as_its_final_answer(text, answer):
    assert extract_math_answer(text) == answer


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (r"\(\frac{333}{1997}\)", r"\frac{333}{1997}"),
        ("x=3", "3"),
        (r"\{1,2\}", r"\{2,1\}"),
        (r"\sqrt{8}", r"2\sqrt{2}"),
        (r"2\frac{1}{2}", "2.5"),
        (r"[0,1)", "[0, 1)"),
        (r"\text{Evelyn}", "evelyn"),
        (r"\text{(B)}", "B"),
        (r"90^\circ", "90"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"11,\! 111", "11111"),
        (r"\dfrac{1}{2}", r"$\frac{1}{2}$"),
        ("y+x", "x+y"),
        ("a/b", r"\frac{a}{b}"),
        ("e^{x}", "e^x"),
        ("x^{y}", "x^y"),
        ("-b+a", "a-b"),
        ("n^2+nm", "n(n+m)"),
        ("bi+a", "a+bi"),
        ("ba", "ab"),
        ("1 000 000", "1000000"),
    ],
)
def test_the_same_however_it_is_written(given, expected):
    assert is_same_answer(given, expected)
    assert is_same_answer(expected, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("3", "4"),
        (r"2\frac{1}{2}", "21/2"),
        ("even", "odd"),
        ("0.333", "1/3"),
        ("A", "B"),
        (r"(1,2)", "(2,1)"),
        ("", "1"),
        ("1 2", "12"),
        ("no", "on"),
        ("tea", "eat"),
        ("AB", "BA"),
        ("x+y", "x-y"),
        ("eat+it", "it+tea"),
    ],
)
def test_what_differs_is_not_the_same(given, expected):
    assert not is_same_answer(given, expected)


def test_a_mixed_number_is_a_sum():
    assert parse_number(r"2\frac{1}{2}") == parse_number("5/2")
    assert parse_number(r"-3 \frac{1}{4}") == parse_number("-13/4")


def test_delimiters_are_taken_off_once_and_only_around_the_whole():
    assert strip_delimiters(r"\[ x \]") == "x"
    assert strip_delimiters("$1$ and $2$") == "$1$ and $2$"
