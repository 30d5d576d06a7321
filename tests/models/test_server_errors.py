import json
import time
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import ContextFull, RolloutFailed
from rollbook.models.server_errors import (
    BILLING,
    RefusedParameter,
    check_logprobs,
    find_named_parameter,
    find_refused_parameter,
    is_context_error,
    make_http_error,
    parse_retry_after,
    read_context_limit,
    read_server_message,
    shorten_page,
)

CONTEXT = [
    b'{"error":{"message":"This model\'s maximum context length is 2048 tokens. However, you requested 3000",'
    b'"type":"BadRequestError","code":400}}',
    b'{"object":"error","message":"The decoder prompt (length 3000) is longer than the maximum model length of 2048."}',
    b'{"error":{"message":"Input too big","type":"invalid_request_error","code":"context_length_exceeded"}}',
    b'{"error":{"code":400,"message":"request (7600 tokens) exceeds the available context size (2048 tokens)",'
    b'"type":"exceed_context_size_error"}}',
    b'{"error":"prompt is too long: 210000 tokens > 200000 maximum"}',
    b'{"detail":"Requested token count exceeds the model\'s maximum context length of 8192 tokens."}',
]
NOT_CONTEXT = [
    b'{"error":{"message":"temperature must be non-negative","code":400}}',
    b'{"error":{"message":"unknown field return_token_ids"}}',
    b"<html>bad request</html>",
    b"",
    b"[]",
]


@pytest.mark.parametrize("raw", CONTEXT)
def test_a_prompt_that_does_not_fit_is_the_policys_doing(raw: bytes) -> None:
    assert isinstance(make_http_error(400, None, raw), ContextFull)


@pytest.mark.parametrize("raw", NOT_CONTEXT)
def test_other_refusals_of_a_prompt_are_rejections(raw: bytes) -> None:
    assert not is_context_error(raw)
    error = make_http_error(400, None, raw)
    assert isinstance(error, RolloutFailed)
    assert error.kind == "model_rejected"


@pytest.mark.parametrize("status", [302, 401, 404, 408, 429, 500, 502, 503, 529])
def test_a_server_that_is_not_itself_is_unavailable(status: int) -> None:
    error = make_http_error(status, None, CONTEXT[0])
    assert isinstance(error, RolloutFailed)
    assert (error.kind, error.retry_after_s) == ("model_unavailable", None)


def test_retry_after_is_taken_in_seconds_or_as_a_date_and_capped() -> None:
    assert parse_retry_after("7") == 7.0
    assert parse_retry_after("3600") == 60.0
    assert parse_retry_after("-3") == 0.0
    assert parse_retry_after("soon") is None
    assert parse_retry_after("nan") is None
    date = parse_retry_after(formatdate(time.time() + 20, usegmt=True))
    assert date is not None
    assert 15 < date <= 20
    assert parse_retry_after(formatdate(time.time() - 20, usegmt=True)) == 0.0


def test_the_servers_own_words_are_found_in_every_shape() -> None:
    assert read_server_message(b'{"error": "no"}') == "no"
    assert read_server_message(b'{"message": "no\\n  more"}') == "no more"
    assert read_server_message(b'{"detail": [{"msg": "bad"}]}') == "[{'msg': 'bad'}]"
    assert read_server_message(b"") == "no message"
    assert read_server_message(b"\xff\xfe") != ""


def test_the_context_length_is_read_from_the_message() -> None:
    assert read_context_limit(read_server_message(CONTEXT[0])) == 2048
    assert read_context_limit(read_server_message(CONTEXT[1])) == 2048
    assert read_context_limit("max_tokens=100000 cannot be greater than max_model_len=4096") == 4096
    assert read_context_limit("max_tokens=9 cannot be greater than max_model_len=max_total_tokens=2048.") == 2048
    assert read_context_limit("too long") is None


@given(st.binary(max_size=200), st.integers(300, 599), st.text(max_size=20))
def test_no_body_whatsoever_breaks_the_table(raw: bytes, status: int, header: str) -> None:
    assert isinstance(make_http_error(status, header, raw), RolloutFailed | ContextFull)


@pytest.mark.parametrize("body", [b'{"error": {"message": "content policy violation"}}', CONTEXT[0]])
def test_a_prompt_that_is_forbidden_is_rejected_and_not_tried_again(body: bytes) -> None:
    error = make_http_error(403, None, body)
    assert isinstance(error, RolloutFailed)
    assert error.kind == "model_rejected"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (308, b"", "model_unavailable", "HTTP 308: no message; the endpoint is elsewhere: give its new URL with -m"),
        (399, b"x", "model_unavailable", "HTTP 399: x"),
        (400, b"x", "model_rejected", "HTTP 400: x"),
        (401, b"x", "model_unavailable", "HTTP 401: x; set the key"),
        (402, b"x", "model_rejected", f"HTTP 402: x; {BILLING}"),
        (403, b"x", "model_rejected", "HTTP 403: x; set the key"),
        (404, b"no Model", "model_unavailable", "HTTP 404: no Model; check the model name (--model-name)"),
        (404, b"x", "model_unavailable", "HTTP 404: x; check the path of the URL: most endpoints end in /v1"),
        (405, b"model", "model_rejected", "HTTP 405: model; check the path of the URL: most endpoints end in /v1"),
        (425, b"x", "model_unavailable", "HTTP 425: x"),
        (429, b'"insufficient_quota"', "model_unavailable", f'HTTP 429: "insufficient_quota"; {BILLING}'),
        (499, b"x", "model_rejected", "HTTP 499: x"),
        (500, b"insufficient_quota", "model_unavailable", "HTTP 500: insufficient_quota"),
    ],
)
def test_every_status_has_its_kind_and_advice(status: int, body: bytes, kind: str, message: str) -> None:
    error = make_http_error(status, "7", body, "set the key")
    assert isinstance(error, RolloutFailed)
    assert (error.kind, error.message, error.status, error.where) == (kind, message, status, "model")
    assert error.retry_after_s == (7.0 if kind == "model_unavailable" else None)


@pytest.mark.parametrize(("status", "full"), [(400, True), (413, True), (422, True), (409, False), (404, False)])
def test_a_full_context_is_known_by_its_status_too(status: int, full: bool) -> None:
    assert isinstance(make_http_error(status, None, CONTEXT[2]), ContextFull) is full


def test_a_message_is_quoted_up_to_a_length() -> None:
    assert read_server_message(b"a " * 600) == ("a " * 600)[:500]
    assert read_server_message(b'[{"error": {"message": "of Gemini"}}]') == "of Gemini"
    assert read_server_message(b'{"error": {"code": 7}}') == '{"error": {"code": 7}}'


@pytest.mark.parametrize(
    ("page", "short"),
    [
        ("<!DOCTYPE html><title>  Not here </title>", 'an HTML page, "Not here"'),
        (f"  <HTML><title id=x>{'y' * 90}</title>", f'an HTML page, "{"y" * 80}"'),
        ("<html><body>", "an HTML page"),
        ("see <html>", "see <html>"),
        (f"{' ' * 40}<html>", "an HTML page"),
    ],
)
def test_a_page_is_shown_as_its_title(page: str, short: str) -> None:
    assert shorten_page(page) == short


@pytest.mark.parametrize(
    ("body", "sent", "refused"),
    [
        ({"error": {"param": "body.top_p", "code": "unsupported_value"}}, ["top_p"], ("top_p", False)),
        ({"error": {"param": "top_p", "message": "must be at most 1"}}, ["top_p"], None),
        ({"error": {"param": "top_p", "message": "not supported: must be 1"}}, ["top_p"], ("top_p", True)),
        ({"error": {"param": "other", "code": "unknown_parameter"}}, ["top_p"], None),
        ({"message": "`seed` is unknown. `top_k` is fine."}, ["top_k", "seed"], ("seed", False)),
        ({"message": "`temperature` and `top_p` cannot both be specified"}, ["top_p", "temperature"], ("top_p", False)),
        (
            {"message": "'max_tokens' is not supported. Use 'max_completion_tokens'"},
            ["max_tokens"],
            ("max_tokens", False),
        ),
        ({"message": "expected max_completion_tokens"}, ["max_tokens"], ("max_tokens", False)),
        ({"message": "the seed is unknown to science"}, ["seed"], None),
        ({"message": "unknown", "detail": "unknown field: seed"}, ["seed"], ("seed", False)),
        ({"error": {"message": "x", "metadata": {"raw": "`top_k` is deprecated"}}}, ["top_k"], ("top_k", False)),
        ({"message": "top_k: unsupported; maximum context length is 7"}, ["top_k"], None),
    ],
)
def test_a_refused_parameter_is_found_by_its_words(
    body: object, sent: list[str], refused: tuple[str, bool] | None
) -> None:
    found = find_refused_parameter(json.dumps(body).encode(), sent)
    assert found == (RefusedParameter(*refused) if refused else None)


def test_the_parameter_that_is_named_first_is_named() -> None:
    raw = b'{"message": "parameter seed, field top_p"}'
    assert find_named_parameter(raw, ["top_p", "seed"]) == "seed"
    assert find_named_parameter(b'{"message": "temperature 1 only"}', ["temperature"]) == "temperature"
    assert find_named_parameter(b'{"message": "a seed of doubt"}', ["seed"]) is None
    assert find_named_parameter(b"top_kk", ["top_k"]) is None


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (([1], [2, 3], [-0.5]), "token_mismatch", "2 ids came with 1 logprobs"),
        (([1], [2], [-0.5], 2, 1), "token_mismatch", "1 prompt ids came, but usage counts 2 prompt tokens"),
        (([1], [2], [-0.5], 1, 0), "token_mismatch", "1 ids came, but usage counts 0 completion tokens"),
        (([1], [2, 3], [-0.5, None]), "nonfinite_logprobs", "the logprob of token 1 is None"),
        (([1], [2, 3], [float("-inf"), 0.0]), "nonfinite_logprobs", "the logprob of token 0 is -inf"),
        (([1], [2, 3, 4], [0.0, 0.0, -9999.0]), "nonfinite_logprobs", "the logprob of token 2 is -9999.0"),
    ],
)
def test_tokens_that_do_not_add_up_are_failures(given: tuple[Any, ...], kind: str, message: str) -> None:
    counts = dict(zip(("prompt_tokens", "completion_tokens"), given[3:], strict=False))
    with pytest.raises(RolloutFailed) as caught:
        check_logprobs(*given[:3], **counts)
    assert (caught.value.kind, caught.value.message) == (kind, message)


def test_tokens_that_add_up_are_returned() -> None:
    assert check_logprobs([1], [2, 3], [-9998.0, 0.0], prompt_tokens=1, completion_tokens=2) == [-9998.0, 0.0]
    assert check_logprobs([], [], [], prompt_tokens=0, completion_tokens=0) == []
