"""One real vLLM for all tests here; where there is none, a skip that says so."""

import pytest

from support.tinyvllm import PYTHON, Server, installed, tiny_model


@pytest.fixture(scope="session")
def vllm(tmp_path_factory):
    if installed() is None:
        pytest.skip(f"NO VLLM in {PYTHON}: nothing was proven about exact tokens (make test-vllm installs one)")
    server = Server(tiny_model(), tmp_path_factory.mktemp("vllm") / "log")
    try:
        server.wait()
        yield server
    finally:
        server.stop()
