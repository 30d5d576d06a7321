import pytest

from rollbook.errors import UsageError
from rollbook.stats import Expression
from rollbook.stats.row_selection import rename_columns


def test_rows_are_kept_as_curate_keeps_them(baseline):
    table = baseline.table
    wish = Expression("0 < mean < 1 and n >= 4")
    rows = [{name: values[row] for name, values in table.columns.items()} for row in range(len(table))]
    assert table.filter_rows("0 < mean < 1 and n >= 4") == [
        row for row, each in enumerate(rows) if wish.matches(rename_columns(each))
    ]
    assert table.filter_rows("") == list(range(12))


def test_tasks_are_kept_by_fields_of_their_own(baseline):
    assert baseline.table.filter_rows('level == 2 and id != "area-2"') == [6, 10]


def test_a_name_that_is_unknown_is_refused_with_a_hint(baseline):
    with pytest.raises(UsageError, match="did you mean mean"):
        baseline.table.filter_rows("meen > 0")


def test_an_expression_without_names_is_true_of_all_or_none(baseline):
    assert (len(baseline.table.filter_rows("1 > 0")), len(baseline.table.filter_rows("1 < 0"))) == (12, 0)


def test_what_is_unknown_comes_last_either_way(stopped):
    table = stopped.table
    for descending in (False, True):
        means = [table.columns["mean"][row] for row in table.sort_rows(table.filter_rows(""), "mean", descending)]
        known = [mean for mean in means if mean is not None]
        assert means[: len(known)] == sorted(known, reverse=descending)
        assert known
        assert None in means


def test_texts_and_fields_have_an_order(baseline):
    rows = baseline.table.sort_rows(baseline.table.filter_rows(""), "id", True)
    assert rows[:2] == [9, 8]
    assert list(baseline.table.sort_rows([0, 1, 2, 3], "level", True)) == [3, 2, 1, 0]


def test_a_column_that_is_unknown_is_refused(baseline):
    with pytest.raises(UsageError, match="no column is called 'x'"):
        baseline.table.sort_rows([0], "x", False)


def test_numbers_at_k_are_worked_out_when_asked_for(baseline):
    table = baseline.table
    assert "pass@4" not in table.columns
    kept = table.filter_rows("pass_4 == 1 and pass_1 < 1")
    assert kept
    assert all(0 < table.columns["mean"][row] < 1 for row in kept)
    assert table.sort_rows(kept, "pass_1", False)[0] in kept
