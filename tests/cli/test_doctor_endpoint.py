"""`rollbook doctor -m`: what an endpoint can do for exact tokens."""

import asyncio
import json

import pytest

from rollbook.cli.doctor_checks import check_endpoint
from rollbook.errors import EndpointDown
from support.endpoint import Endpoint


def found(**endpoint):
    async def go():
        async with Endpoint(**endpoint) as served:
            return await asyncio.to_thread(check_endpoint, served.url, "", api_key_env="ROLLBOOK_TEST_KEY")

    return {finding.what.strip(): (finding.works, finding.detail) for finding in asyncio.run(go())}


def test_a_vllm_is_tried_out():
    told = found(vllm=True, odd=True)
    assert told["endpoint"] == (True, "mock")
    assert told["token ids"][0]
    assert told["--continue-tokens"][0]
    works, detail = told["logprobs"]
    assert not works
    assert "--logprobs-mode processed_logprobs" in detail


def test_an_endpoint_that_takes_no_ids_fails_with_the_reason():
    works, detail = found(vllm=True, odd=True, mode="ignores_ids")["--continue-tokens"]
    assert not works
    assert "another prompt than the ids" in detail


@pytest.mark.parametrize(("endpoint", "why"), [({}, "only vLLM"), ({"vllm": True, "mode": "no_ids"}, "0.11 and newer")])
def test_an_endpoint_that_reports_no_tokens_fails_with_the_reason(endpoint, why):
    works, detail = found(**endpoint)["token ids"]
    assert not works
    assert why in detail


def test_a_failing_endpoint_is_reported_with_its_message():
    works, detail = found(vllm=True, mode="500", models="ok")["endpoint"]
    assert not works
    assert "internal server error" in detail


def test_an_unreachable_endpoint_is_reported_in_one_line():
    line = r"no model answered \(http://127.0.0.1:9/v1: connection refused\); check the server"
    with pytest.raises(EndpointDown, match=line):
        check_endpoint("http://127.0.0.1:9/v1", "", api_key_env="ROLLBOOK_TEST_KEY")


def test_it_prints_what_it_found(rollbook):
    async def go():
        async with Endpoint(vllm=True) as served:
            return await asyncio.to_thread(rollbook, "doctor", "-m", served.url, "--json")

    done = asyncio.run(go())
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["what"] == "endpoint"
