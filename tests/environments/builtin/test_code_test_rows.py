"""Tests of problems in all known forms; an error names the row."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib

import pytest

from rollbook.environments.builtin.code_tests import CodeTests, read_tests
from rollbook.environments.data_rows import DataRow, rows
from rollbook.errors import UsageError

STDIN = CodeTests([("1 2\n", "3\n"), ("2 2\n", "4\n")])
PAIRS = [{"input": "1 2\n", "output": "3\n"}, {"input": "2 2\n", "output": "4\n"}]
COLUMNS = {"inputs": ["1 2\n", "2 2\n"], "outputs": ["3\n", "4\n"]}


def read(**values: object) -> CodeTests:
    return read_tests(DataRow("rows.jsonl", 7, values))


def pack(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


@pytest.mark.parametrize(
    "values",
    [
        {"tests": PAIRS},
        {"unit_tests": COLUMNS},
        {"input_output": json.dumps(COLUMNS)},
        {"verifier_metadata": {"unit_tests": COLUMNS}},
        {"public_test_cases": json.dumps([{**test, "testtype": "stdin"} for test in PAIRS])},
        {"public_test_cases": json.dumps(PAIRS[:1]), "private_test_cases": json.dumps(PAIRS[1:])},
        {"public_test_cases": json.dumps(PAIRS[:1]), "private_test_cases": pack(json.dumps(PAIRS[1:]))},
        {"unit_tests": {"inputs": [["1 2", ""], "2 2\n"], "outputs": [["3", ""], "4\n"]}},
    ],
)
def test_programs_in_every_form(values):
    assert read(**values) == STDIN


def test_hidden_tests_as_large_as_livecodebench_has_them_are_read(tmp_path):
    large = {"input": os.urandom(9 << 20).hex(), "output": "4\n"}
    raw = zlib.compress(pickle.dumps(json.dumps([large])), 0)
    row = {"public_test_cases": PAIRS[:1], "private_test_cases": base64.b64encode(raw).decode()}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (found,) = rows(tmp_path / "rows.jsonl")
    assert len(found.values["private_test_cases"]) > 16 << 20
    assert read_tests(found).pairs == [("1 2\n", "3\n"), (large["input"], "4\n")]


@pytest.mark.parametrize(
    "values",
    [
        {"tests": [{"input": [[1, 2], "x"], "output": {"a": 1}}], "entry": "add"},
        {"unit_tests": {"inputs": ['[1, 2]\n"x"'], "outputs": ['{"a": 1}'], "fn_name": "add"}},
        {
            "public_test_cases": [{"input": '[1, 2]\n"x"\n', "output": '{"a": 1}', "testtype": "functional"}],
            "metadata": '{"func_name": "add"}',
        },
    ],
)
def test_functions_in_every_form(values):
    assert read(**values) == CodeTests([([[1, 2], "x"], {"a": 1})], "add")


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "no tests"),
        ({"tests": []}, "no tests"),
        ({"tests": [{"input": "x"}]}, "an input and an output"),
        ({"unit_tests": {"inputs": ["a"], "outputs": []}}, "same length"),
        ({"unit_tests": {"inputs": [1], "outputs": ["1"]}}, "are texts"),
        ({"unit_tests": "not json"}, "cannot be read"),
        ({"unit_tests": [1]}, "inputs and outputs is expected"),
        ({"unit_tests": {"inputs": ["[1"], "outputs": ["1"], "fn_name": "f"}}, "JSONDecodeError"),
        ({"unit_tests": {"inputs": [1], "outputs": ["1"], "fn_name": "f"}}, "list of its arguments"),
        ({"tests": PAIRS, "entry": "import os"}, "not the name of a function"),
        ({"public_test_cases": [{**PAIRS[0], "testtype": "telepathy"}]}, "telepathy is not known"),
        ({"public_test_cases": [{**PAIRS[0], "testtype": "functional"}]}, "does not name it"),
        ({"private_test_cases": "????"}, "neither JSON nor packed"),
        ({"private_test_cases": pack(Evil())}, "asks for posix.system"),
        ({"private_test_cases": pack("[]")[:20]}, "cut off"),
    ],
)
def test_what_is_wrong_is_said_with_the_row(values, words):
    with pytest.raises(UsageError, match=words) as refused:
        read(**values)
    assert str(refused.value).startswith("rows.jsonl:7: ")
    assert "\n" not in str(refused.value)
