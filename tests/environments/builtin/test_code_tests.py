import pytest

from rollbook.environments.builtin.code_tests import PRELUDE, OutputRule, add_imports, parse_rule
from rollbook.errors import UsageError


def test_a_function_has_what_its_judges_import():
    assert add_imports("def f(): pass") == f"{PRELUDE}def f(): pass"
    assert add_imports("\nfrom __future__ import annotations\nx = 1") == (
        f"from __future__ import annotations\n{PRELUDE}x = 1"
    )


def test_what_is_imported_hides_no_builtin():
    import builtins

    space: dict[str, object] = {}
    exec(PRELUDE, space)
    assert {"List", "deque", "heappush", "inf", "cache"} <= space.keys()
    assert not {name for name in space if hasattr(builtins, name) and not name.startswith("__")}


def test_a_rule_without_tolerance_compares_exactly_what_is_printed_and_nearly_what_is_returned():
    rule = OutputRule()
    assert (rule.printed.tolerance, rule.returned) == (0.0, 1e-9)
    loose = parse_rule({"tolerance": 0.01, "spaces": "words", "case": False}, "here")
    assert (loose.printed.tolerance, loose.printed.spaces, loose.printed.case, loose.returned) == (
        0.01,
        "words",
        False,
        0.01,
    )


@pytest.mark.parametrize("given", [{"spaces": "some"}, {"tolerance": "x"}, {"tolerance": 2}, {"other": 1}, [1]])
def test_a_rule_that_is_none_is_named_by_its_place(given):
    with pytest.raises(UsageError, match=r"^here: "):
        parse_rule(given, "here")
