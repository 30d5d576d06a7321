import time
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.errors import ContextFull, RolloutFailed
from rollbook.models.server_errors import (
    is_context_error,
    make_http_error,
    parse_retry_after,
    read_context_limit,
    read_server_message,
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
