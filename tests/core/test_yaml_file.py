"""YAML files that people write: what is read, and that every mistake is named with its line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from rollbook.core import YamlFile
from rollbook.errors import UsageError


class Dish(msgspec.Struct):
    """What a test reads."""

    name: str = ""
    grams: int = 0
    salt: float | None = None


Opened = Callable[[str], YamlFile]


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    def write_and_open(text: str) -> YamlFile:
        (tmp_path / "menu.yaml").write_text(text)
        return YamlFile(tmp_path / "menu.yaml")

    return write_and_open


def read_dishes(file: YamlFile) -> list[dict[str, object]]:
    menu = file.read_mapping(file.root, "a menu")
    return [
        dict(file.read_fields(file.read_mapping(item, "a dish"), Dish, "a dish"))
        for item in file.read_items(menu["dishes"], "dishes")
    ]


def test_fields_are_read_with_their_types(opened: Opened) -> None:
    file = opened("dishes:\n- {name: soup, grams: 300, salt: 1e-3}\n- name: bread\n  salt: null\n")
    assert read_dishes(file) == [{"name": "soup", "grams": 300, "salt": 0.001}, {"name": "bread", "salt": None}]


def test_entries_know_their_lines(opened: Opened) -> None:
    file = opened("# a comment\ndishes:\n- name: soup\n- name: bread\n")
    menu = file.read_mapping(file.root, "a menu")
    assert (file.root.line, menu["dishes"].line) == (2, 2)
    assert [item.line for item in file.read_items(menu["dishes"], "dishes")] == [3, 4]


def test_what_is_merged_has_lower_priority(opened: Opened) -> None:
    file = opened("dishes:\n- &soup {name: soup, grams: 300}\n- <<: *soup\n  name: cold soup\n")
    assert read_dishes(file)[1] == {"name": "cold soup", "grams": 300}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "menu.yaml:1: there is nothing in the file"),
        ("dishes:\n- name: soup\n- {name: bread\n", "menu.yaml:4: not YAML: expected ',' or '}'"),
        ("dishes:\n- name: soup\n- *bread\n", "menu.yaml:3: not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "menu.yaml:2: not YAML: but found another document"),
        ("a: \x00", "menu.yaml: not YAML: unacceptable character"),
        ("dishes: []\ndishes: []\n", "menu.yaml:2: dishes is given twice"),
        ("dishes:\n- name: soup\n  name: bread\n", "menu.yaml:3: name is given twice"),
        ("{a: 1, b: {c: 1, c: 2}}", "menu.yaml:1: c is given twice"),
        ("? [a, b]\n: 1\n", "menu.yaml:1: a key has to be one word"),
        ("- name: soup\n", "menu.yaml:1: a menu is written as `key: value`, not as a list"),
        ("soup\n", "menu.yaml:1: a menu is written as `key: value`, not as 'soup'"),
        ("dishes:\n  name: soup\n", "menu.yaml:1: dishes is written as a list, each beginning with a dash"),
        ("dishes:\n- soup\n", "menu.yaml:2: a dish is written as `key: value`, not as 'soup'"),
        ("dishes:\n- <<: soup\n", "menu.yaml:2: expected a mapping or list of mappings for merging"),
        ("dishes:\n- name: soup\n  gram: 3\n", "menu.yaml:3: a dish has no 'gram'; there are name, grams, salt"),
        ("dishes:\n- name: soup\n  grams: much\n", "menu.yaml:3: grams: expected int, got str"),
        ("dishes:\n- salt: much\n", "menu.yaml:2: salt: expected float, got str"),
        ("dishes:\n- name: 2026-13-45\n", "menu.yaml:2: cannot be read: month must be in 1..12"),
        ("dishes:\n- name: 2026-11-18\n", "menu.yaml:2: 2026-11-18 cannot be written as JSON; put quotes around it"),
        ("dishes:\n- salt: .nan\n", "menu.yaml:2: nan cannot be written as JSON"),
        ("dishes:\n- name: {2026-11-18: 1}\n", "menu.yaml:2: 2026-11-18 cannot be written as JSON"),
        ("dishes:\n- name: [a, [.inf]]\n", "menu.yaml:2: inf cannot be written as JSON"),
        ("dishes:\n- salt: !!bool much\n", "menu.yaml:2: cannot be read: a value does not fit its tag"),
        ("dishes:\n- salt: !!int ''\n", "menu.yaml:2: cannot be read: a value does not fit its tag"),
        ("dishes:\n- salt: !!timestamp much\n", "menu.yaml:2: cannot be read: a value does not fit its tag"),
        ("dishes:\n- name: !soup x\n", "menu.yaml:2: could not determine a constructor for the tag '!soup'"),
    ],
)
def test_a_mistake_is_named_with_its_line(opened: Opened, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_dishes(opened(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: No such file or directory; check the path"):
        YamlFile(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"ab\xe9: 1\n")
    with pytest.raises(UsageError, match=r"latin\.yaml: not UTF-8 \(byte 3\)"):
        YamlFile(tmp_path / "latin.yaml")


def test_anchors_do_not_expand_without_end(opened: Opened) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 6)]
    file = opened("\n".join(lines))
    entries = file.read_mapping(file.root, "a file")
    assert str(file.read_value(entries["a4"])).count("1") == 100_000
    with pytest.raises(UsageError, match=r"menu\.yaml:6: more than 100000 values"):
        file.read_value(entries["a5"])


def test_a_list_that_holds_itself_is_a_mistake_on_its_line_where_it_is_read(opened: Opened) -> None:
    file = opened("sound: [1]\nendless: &a [1, *a]\n")
    entries = file.read_mapping(file.root, "a file")
    assert file.read_value(entries["sound"]) == [1]
    with pytest.raises(UsageError, match=r"menu\.yaml:2: "):
        file.read_value(entries["endless"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2E+2", -200.0),
        ("1.5e3", 1500.0),
        ("3 apples", "3 apples"),
        ("1e3x", "1e3x"),
        ("-x", "-x"),
        ("+", "+"),
        ("300", 300),
        ("2.5", 2.5),
        ("e3", "e3"),
        ("[1, {a: null}]", [1, {"a": None}]),
    ],
)
def test_only_numbers_are_read_as_numbers(opened: Opened, text: str, value: object) -> None:
    file = opened(f"x: {text}")
    found = file.read_value(file.read_mapping(file.root, "a file")["x"])
    assert (found, type(found)) == (value, type(value))
