"""What metadata may request, and what is refused."""

import math
from fractions import Fraction

import numpy
import pytest

from rollbook.errors import UsageError
from rollbook.trainers.nemo_rl.code_samples import (
    GIB,
    MAX_BLOCKS,
    MIB,
    CodeConfig,
    SampleRefused,
    read_code_request,
    read_config,
    read_last_message,
)

CONFIG = CodeConfig(default_timeout_seconds=2, default_memory_limit_bytes=64 * MIB)
BAD = [
    math.nan,
    math.inf,
    -math.inf,
    -1,
    0,
    -0.0,
    "5",
    "",
    b"5",
    True,
    False,
    [1],
    {},
    object(),
    10**400,
    1e300,
    1 + 2j,
]
BAD += [numpy.bool_(True), numpy.float64("nan"), numpy.array([1.0, 2.0])]


def test_without_metadata_the_configuration_holds():
    for metadata in (None, {}, {"timeout_seconds": None, "memory_limit_bytes": None, "working_dir": ""}):
        request = read_code_request(("1",), metadata, CONFIG)
        assert (request.seconds, request.memory_mb, request.working_dir, request.turn) == (2, 64, None, None)


def test_a_samples_own_limits_come_first():
    request = read_code_request(("1",), {"timeout_seconds": 0.25, "memory_limit_bytes": 100 * MIB}, CONFIG)
    assert (request.seconds, request.memory_mb) == (0.25, 100)
    one = read_code_request(("1",), {"timeout_seconds": 300}, CONFIG)
    assert (one.seconds, one.memory_mb) == (300, 64)


@pytest.mark.parametrize("value", [3, 3.0, numpy.float32(3), numpy.int64(3), Fraction(3)])
def test_any_real_number_is_a_limit(value):
    assert read_code_request(("1",), {"timeout_seconds": value}, CONFIG).seconds == 3


def test_memory_is_rounded_up_to_whole_megabytes():
    sizes = {1: 1, MIB: 1, MIB + 1: 2, 1.5 * MIB: 2, 16 * GIB: 16384}
    assert {size: read_code_request(("1",), {"memory_limit_bytes": size}, CONFIG).memory_mb for size in sizes} == sizes


@pytest.mark.parametrize("name", ["timeout_seconds", "memory_limit_bytes"])
@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:20] if not isinstance(value, int) else None)
def test_a_limit_that_is_none_is_refused_by_name(name, value):
    with pytest.raises(SampleRefused, match=f"metadata {name}=.*: give a number"):
        read_code_request(("1",), {name: value}, CONFIG)


def test_a_limit_above_the_ceiling_is_refused():
    with pytest.raises(SampleRefused, match=r"timeout_seconds=300\.1: give a number above 0 and at most 300"):
        read_code_request(("1",), {"timeout_seconds": 300.1}, CONFIG)
    with pytest.raises(SampleRefused, match="at most 17179869184"):
        read_code_request(("1",), {"memory_limit_bytes": 16 * GIB + 1}, CONFIG)


@pytest.mark.parametrize(
    "metadata",
    [
        "text",
        3,
        ["list"],
        {"session_id": ""},
        {"session_id": True},
        {"session_id": 1.5},
        {"session_id": "x" * 257},
        {"session_turn": -1},
        {"session_turn": "1"},
        {"session_turn": True},
        {"working_dir": 3},
        {"context": {"x": 1}},
    ],
    ids=repr,
)
def test_metadata_of_the_wrong_form_are_refused(metadata):
    with pytest.raises(SampleRefused, match="metadata"):
        read_code_request(("1",), metadata, CONFIG)


def test_an_id_is_the_samples_or_a_new_one():
    assert read_code_request(("1",), {"session_id": "a", "session_turn": 2}, CONFIG).turn == 2
    assert read_code_request(("1",), {"session_id": 7}, CONFIG).session_id == "7"
    assert read_code_request(("1",), {}, CONFIG).session_id != read_code_request(("1",), {}, CONFIG).session_id


@pytest.mark.parametrize("log", [[], None, "text", [{}], [{"content": None}], ["text"], [{"role": "user"}]], ids=repr)
def test_a_log_without_a_last_message_is_refused(log):
    with pytest.raises(SampleRefused, match="message log"):
        read_last_message(log)


def test_too_much_code_is_refused():
    with pytest.raises(SampleRefused, match="characters"):
        read_last_message([{"content": "x" * (1 << 21)}])
    with pytest.raises(SampleRefused, match=f"{MAX_BLOCKS + 1} code blocks"):
        read_last_message([{"content": "<code>1</code>" * (MAX_BLOCKS + 1)}])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"default_timeout_second": 1}, "did you mean default_timeout_seconds"),
        ({"frobnicate": 1}, "no setting is called frobnicate; there are default_timeout_seconds"),
        ({"default_timeout_seconds": -1}, "positive, finite"),
        ({"default_timeout_seconds": math.nan}, "positive, finite"),
        ({"default_memory_limit_bytes": 0}, "positive, finite"),
        ({"default_timeout_seconds": "5"}, "default_timeout_seconds"),
        ({"default_timeout_seconds": 500}, "above max_timeout_seconds"),
        ({"num_workers": True}, "num_workers"),
        ({"turns_at_once": 0}, "positive, finite"),
    ],
)
def test_a_wrong_setting_is_named(settings, message):
    with pytest.raises(UsageError, match=message):
        read_config(settings)


def test_nemo_rls_own_settings_are_understood():
    config = read_config({"num_workers": 2, "terminate_on_evaluation": True, "default_timeout_seconds": None})
    assert (config.num_workers, config.terminate_on_evaluation, config.default_timeout_seconds) == (2, True, 5.0)
    assert read_config(None) == read_config({}) == CodeConfig()
