"""Runs against hosted endpoints, from the command line: what they take, refuse and ask for."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.hosted import NewerOpenAI, SeedlessGemini


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def recorded_names(run: Path) -> dict[str, str]:
    """What a run records of the names it learned: with its last round, or with the worker that learned them."""
    settings = read(sorted((run / "rounds").glob("*.json"))[-1])["settings"]
    workers = [read(path).get("wire_names", {}) for path in (run / "workers").glob("*.json")]
    return settings.get("wire_names") or next(filter(None, workers), {})


def last_line(done: Any) -> str:
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "OPENROUTER", "TOGETHER", "AZURE_OPENAI"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)


def test_an_endpoint_that_takes_only_max_completion_tokens_is_learned_and_remembered(rollbook, sums, tmp_path):
    with NewerOpenAI() as server:
        done = rollbook("run", sums, "-m", server.url, "-o", "a", "--max-tokens", 77)
        assert done.returncode == 0, done.stderr
        assert "5/5 scored" in done.stdout
        assert done.stderr.count("max_completion_tokens is sent instead") == 1
        assert recorded_names(tmp_path / "a") == {"max_tokens": "max_completion_tokens"}
        answered = [call.body for call in server.calls if "max_tokens" not in call.body]
        assert len(answered) >= 5
        assert {body["max_completion_tokens"] for body in answered} == {77}
        before = len(server.calls)
        extended = rollbook("extend", "a", "-k", 2)
        assert extended.returncode == 0, extended.stderr
        assert "is sent instead" not in extended.stderr
        assert not any("max_tokens" in call.body for call in server.calls[before:])
    assert read(tmp_path / "a/rounds/0002.json")["settings"]["wire_names"] == {"max_tokens": "max_completion_tokens"}


def test_several_workers_of_such_an_endpoint_score_everything(rollbook, sums, tmp_path):
    with NewerOpenAI() as server:
        done = rollbook("run", sums, "-m", server.url, "-o", "a", "-k", 4, "--workers", 2)
        assert done.returncode == 0, done.stderr
    assert recorded_names(tmp_path / "a") == {"max_tokens": "max_completion_tokens"}


def test_an_endpoint_that_refuses_seed_is_a_usage_error_with_the_way_out(rollbook, sums, tmp_path):
    with SeedlessGemini() as server:
        refused = rollbook("run", sums, "-m", server.url, "--model-name", "gemini-9", "-o", "a")
        assert refused.returncode == 2, refused.stderr
        assert "refuses seed" in last_line(refused)
        assert "pass --sampling seed=null to omit it" in last_line(refused)
        way = ("--sampling", "seed=null", "-o", "b")
        done = rollbook("run", sums, "-m", server.url, "--model-name", "gemini-9", *way)
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("no seed is sent") == 1
        assert read(tmp_path / "b/run.json")["sampling"]["extra"] == {"seed": None}
        extended = rollbook("extend", "b", "-k", 2)
        assert extended.returncode == 0, extended.stderr


def test_a_value_that_the_model_does_not_take_says_how_to_omit_it(rollbook, sums):
    with NewerOpenAI() as server:
        refused = rollbook("run", sums, "-m", server.url, "--temperature", 0.5, "-o", "a")
        assert refused.returncode == 2
        assert "pass --sampling temperature=null" in last_line(refused)
        done = rollbook("run", sums, "-m", server.url, "--sampling", "temperature=null", "-o", "b")
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--temperature", "0.5", "--sampling", "temperature=null"), "omits it; give one of them"),
        (("--sampling", "max_tokens=null", "--max-tokens-total", "9"), "cannot be kept"),
        (("--sampling", "max_completion_tokens=9"), "give --max-tokens"),
        (("--sampling", "model=null"), "not extra sampling"),
    ],
)
def test_what_cannot_be_omitted_is_refused_in_one_line(rollbook, sums, options, says):
    done = rollbook("run", sums, "-m", "http://127.0.0.1:9/v1", "-o", "a", *options)
    assert done.returncode == 2
    assert says in last_line(done)
