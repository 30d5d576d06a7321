import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import UsageError
from rollbook.stats import row_selection
from rollbook.stats.row_selection import Expression, rename_columns

ROW = {"id": "t1", "mean": 0.5, "n": 8, "pass@4": 0.75, "std": None, "level": 3, "majority": "42"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("0 < mean < 1 and n >= 8", True),
        ("0 < mean < 0.5", False),
        ("pass_4 > 0.7 or mean == 0", True),
        ("not mean > 0.4", False),
        ("(mean + 1) / 3 * 2 - 1 == 0", True),
        ("-mean < 0", True),
        ("level in (1, 3)", True),
        ("level not in [1, 3]", False),
        ('majority == "42"', True),
        ('"4" in majority', True),
        ("mean != 0.5", False),
        ("std > 0", False),
        ("not std > 0", False),
        ("std > 0 or n == 8", True),
        ("std > 0 and n == 8", False),
        ("n / 0 > 1", False),
        ("True", True),
        (" n == 8 ", True),
    ],
)
def test_rows_are_kept_by_what_is_said(text, kept):
    assert Expression(text).matches(rename_columns(ROW)) is kept


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "mean.__class__",
        "mean ** 9999",
        "mean % 2",
        "[x for x in n]",
        "lambda: 1",
        "mean if n else 0",
        "n[0]",
        "f'{n}'",
        "n := 3",
        "mean is None",
        "mean == None",
        "~n",
        "1 <",
        "",
        "(" * 300 + "n" + ")" * 300,
        "not " * 200 + "True",
        "n" * 20_000,
        "mean > 0; n",
        "\0",
    ],
)
def test_everything_else_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="expression") as caught:
        Expression(text)
    assert "\n" not in str(caught.value)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown name meen; did you mean mean\? known: mean, n"):
        Expression("meen > 0").check_names(["n", "mean"])
    Expression("mean > 0 and n > 1").check_names(["n", "mean"])


def test_a_number_is_neither_true_nor_false():
    with pytest.raises(UsageError, match="compare it with something"):
        Expression("mean + 1").matches(rename_columns(ROW))


@pytest.mark.parametrize("text", ["majority > 3", "majority + 1 > 2", "mean in n"])
def test_what_cannot_be_compared_is_said_with_its_row(text):
    with pytest.raises(UsageError, match="t1"):
        Expression(text).matches(rename_columns(ROW))


numbers = st.one_of(st.none(), st.integers(-3, 3))
OPERATORS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt}


@given(numbers, numbers, numbers, st.sampled_from(sorted(OPERATORS)), st.sampled_from(sorted(OPERATORS)))
def test_comparisons_agree_with_python_where_everything_is_known(a, b, c, first, second):
    found = Expression(f"a {first} b {second} c")({"a": a, "b": b, "c": c})
    if None not in (a, b, c):
        assert found is (OPERATORS[first](a, b) and OPERATORS[second](b, c))
    else:
        assert found is None or found is False


@pytest.mark.parametrize(
    ("text", "hint"),
    [("pass@4 > 0", "pass@4 is written pass_4"), ("maj@16 > 0", "maj_16"), ("mean > pass^8", "pass_hat_8")],
)
def test_who_writes_a_column_as_it_is_shown_is_told_its_name(text, hint):
    with pytest.raises(UsageError, match=hint):
        Expression(text).check_names(["mean"])


@pytest.mark.parametrize("text", ["majority * 2 == 1", "2 * majority == 1", "(1, 2) + 3 == 1", "3 - majority == 1"])
def test_arithmetic_is_for_numbers_on_both_sides(text):
    with pytest.raises(UsageError, match="arithmetic is for numbers, for t1"):
        Expression(text)(rename_columns(ROW))


def test_whole_numbers_have_a_bound_and_beyond_it_they_are_unknown():
    largest = 2**row_selection.MAX_INT_BITS - 1
    half = 2 ** (row_selection.MAX_INT_BITS - 1)
    assert Expression("a + 0")({"a": largest}) == largest
    assert Expression("a + 1")({"a": largest}) is None
    assert Expression("a * 2")({"a": half}) is None
    assert Expression(str(largest))({}) == largest
    with pytest.raises(UsageError, match="a number in it is too large"):
        Expression(str(largest + 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 <", 'expression "1 <": invalid syntax'),
        ("x" * 81 + " <", f'expression "{"x" * 77}...": invalid syntax'),
        ("mean ** 2", 'expression "mean ** 2": ** is not allowed; arithmetic is + - * /'),
        ("mean is n", 'expression "mean is n": `is` is not allowed; use == or !='),
        ("~n", 'expression "~n": Invert is not allowed'),
        ("n == None", 'expression "n == None": None is neither a number nor text'),
    ],
)
def test_what_is_wrong_is_said_in_its_words(text, message):
    with pytest.raises(UsageError) as caught:
        Expression(text)
    assert str(caught.value) == message


def test_an_expression_is_as_long_and_as_deep_as_allowed():
    longest = "n" * row_selection.MAX_CHARS
    assert Expression(longest).names == {longest}
    with pytest.raises(UsageError, match=f"longer than {row_selection.MAX_CHARS} characters"):
        Expression(longest + "n")
    deepest = "-" * (row_selection.MAX_DEPTH - 1) + "n"
    assert Expression(deepest)({"n": 1}) in (1, -1)
    with pytest.raises(UsageError, match="nested too deeply"):
        Expression("-" + deepest)


def test_only_the_nearest_known_name_is_suggested():
    with pytest.raises(UsageError, match=r"unknown name zzz; known: mean, n$"):
        Expression("zzz > 0").check_names(["n", "mean", "n"])


@pytest.mark.parametrize(("length", "shown"), [(80, "x" * 80), (81, "x" * 77 + "...")])
def test_a_long_expression_is_cut_in_its_error(length, shown):
    with pytest.raises(UsageError) as caught:
        Expression("x" * length).check_names(["n"])
    assert shown in str(caught.value).split(": ")[0]
