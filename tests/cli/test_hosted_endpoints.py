"""Runs against hosted endpoints, from the command line: what they take, refuse and ask for."""

import json
from pathlib import Path
from typing import Any

import pytest

from rollbook.models.probe import PROBE_TOKENS
from support.hosted import Anthropic, Azure, NewerOpenAI, OlderServer, SeedlessGemini
from support.judge import JudgeServer


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
        assert {body["max_completion_tokens"] for body in answered} == {77, PROBE_TOKENS}
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


def test_several_workers_that_are_refused_a_parameter_end_the_run_with_the_same_words(rollbook, sums):
    with SeedlessGemini() as server:
        options = ("-m", server.url, "--model-name", "gemini-9", "--workers", 2, "-o", "a")
        refused = rollbook("run", sums, *options)
    assert refused.returncode == 2, refused.stderr
    assert "pass --sampling seed=null to omit it" in last_line(refused)


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
        (("--sampling", "max_tokens=null", "--max-tokens-total", "9"), "cannot be enforced"),
        (("--sampling", "max_completion_tokens=9"), "give --max-tokens"),
        (("--sampling", "model=null"), "not an extra parameter"),
    ],
)
def test_what_cannot_be_omitted_is_refused_in_one_line(rollbook, sums, options, says):
    done = rollbook("run", sums, "-m", "http://127.0.0.1:9/v1", "-o", "a", *options)
    assert done.returncode == 2
    assert says in last_line(done)


def everything_written(run: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in run.rglob("*") if path.is_file())


def test_azure_with_query_and_header_and_its_values_are_not_on_disk(rollbook, sums, tmp_path, monkeypatch):
    monkeypatch.setenv("AZ", "azure-secret-1")
    with Azure() as server:
        target = ("-m", server.deployment_url, "--model-name", "my-deployment", "--header", "api-key=AZ")
        done = rollbook("run", sums, *target, "-o", "a")
        assert done.returncode == 0, done.stderr
        extended = rollbook("extend", "a", "-k", 2)
        assert extended.returncode == 0, extended.stderr
        assert {call.query["api-version"] for call in server.calls} == {"2024-10-21"}
        assert {call.headers["api-key"] for call in server.calls} == {"azure-secret-1"}
    assert read(tmp_path / "a/rounds/0001.json")["settings"]["headers"] == {"api-key": "AZ"}
    assert "azure-secret-1" not in everything_written(tmp_path / "a")


@pytest.mark.parametrize("version", ["", "2024-10-21"])
def test_azure_by_its_prefix_in_both_forms_of_url(rollbook, sums, tmp_path, monkeypatch, version):
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "azure-secret-1")
    monkeypatch.setenv("OPENAI_API_VERSION", version)
    with Azure() as server:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", server.origin)
        done = rollbook("run", sums, "-m", "azure/my-deployment", "-o", "a")
        assert done.returncode == 0, done.stderr
        by_deployment = "/openai/deployments/my-deployment/chat/completions"
        assert server.calls[-1].path == (by_deployment if version else "/openai/v1/chat/completions")
        assert not any("authorization" in request.headers for request in server.requests)
    assert read(tmp_path / "a/run.json")["model"]["name"] == "my-deployment"


def test_anthropic_by_its_prefix_records_that_no_seed_is_sent(rollbook, sums, tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "anthropic-secret-1")
    with Anthropic() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.origin)
        refused = rollbook("run", sums, "-m", "anthropic/claude-9", "-o", "a")
        assert refused.returncode == 2, refused.stderr
        assert "pass --sampling top_p=null to omit it" in last_line(refused)
        done = rollbook("run", sums, "-m", "anthropic/claude-9", "--sampling", "top_p=null", "-o", "b")
        assert done.returncode == 0, done.stderr
        assert "b: claude-9: 5/5 scored" in done.stdout
        assert done.stderr.count("no seed is sent") == 1
        manifest = read(tmp_path / "b/run.json")
        assert manifest["model"] == {"name": "claude-9", "kind": "anthropic", "digest": ""}
        assert manifest["sampling"]["extra"] == {"top_p": None, "seed": None}
        monkeypatch.delenv("ANTHROPIC_BASE_URL")
        for more in ((), ("-m", server.url)):  # as it was started, and by the URL of the same API
            extended = rollbook("extend", "b", "-k", 2 + len(more), *more)
            assert extended.returncode == 0, extended.stderr
        other = rollbook("resume", "b", "-m", "anthropic/claude-8")
        assert other.returncode == 2
        assert "was planned with claude-9" in last_line(other)
    assert "anthropic-secret-1" not in everything_written(tmp_path / "b")


def test_openai_by_its_prefix_starts_with_the_newer_name_and_moves_to_another_host(
    rollbook, sums, tmp_path, monkeypatch
):
    monkeypatch.setenv("OPENAI_API_KEY", "openai-secret-1")
    with NewerOpenAI(key="openai-secret-1") as server, OlderServer() as older:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        done = rollbook("run", sums, "-m", "openai/newer-1", "-o", "a")
        assert done.returncode == 0, done.stderr
        assert "instead" not in done.stderr
        assert not any("max_tokens" in call.body for call in server.calls)
        moved = rollbook("extend", "a", "-k", 2, "-m", "newer-1", "--base-url", server.url)
        assert moved.returncode == 0, moved.stderr
        wrong = rollbook("extend", "a", "-k", 3, "-m", "older", "--base-url", older.url)
        assert (wrong.returncode, older.requests) == (2, [])
    settings = read(tmp_path / "a/rounds/0001.json")["settings"]
    assert (settings["urls"], settings["base_urls"]) == ([server.url], [])


def test_a_name_beside_a_base_url_is_taken_verbatim(rollbook, sums, tmp_path):
    with NewerOpenAI(name="openai/gpt-oss") as server:
        done = rollbook("run", sums, "-m", "openai/gpt-oss", "--base-url", server.url, "-o", "a")
        assert done.returncode == 0, done.stderr
    assert read(tmp_path / "a/run.json")["model"]["name"] == "openai/gpt-oss"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("-m", "openai/gpt-5"), "OPENAI_API_KEY is not set"),
        (("-m", "gpt-5"), "did you mean openai/gpt-5?"),
        (("-m", "mistral/large"), "openai/ anthropic/ gemini/"),
        (("-m", "localhost:8000"), "give one like http://host:8000/v1"),
        (("-m", "http://127.0.0.1:9/v1?api_key=hunter2"), "looks like a secret"),
        (("-m", "http://127.0.0.1:9/v1", "--header", "api-key=sk-hunter2"), "not the value"),
        (("-m", "http://127.0.0.1:9/v1", "--header", "api-key=NOT_SET_HERE"), "NOT_SET_HERE is not set"),
        (("-m", "http://127.0.0.1:9/v1", "--header", "hunter2"), "write NAME=ENV_VAR"),
        (("-m", "m", "--base-url", "http://127.0.0.1:9/v1", "--model-name", "n"), "names another model"),
    ],
)
def test_a_mistake_about_the_model_is_one_line_before_any_request(rollbook, sums, tmp_path, options, says):
    done = rollbook("run", sums, "-o", "a", *options)
    assert done.returncode == 2
    assert says in last_line(done)
    assert "hunter2" not in done.stderr
    assert not (tmp_path / "a").exists()


def test_plan_needs_no_key(rollbook, sums, tmp_path):
    planned = rollbook("plan", sums, "-m", "openrouter/org/model-1", "-o", "a")
    assert planned.returncode == 0, planned.stderr
    settings = read(tmp_path / "a/rounds/0001.json")["settings"]
    assert (settings["urls"], settings["api_key_env"]) == (["https://openrouter.ai/api/v1"], "OPENROUTER_API_KEY")


def test_a_judge_takes_the_same_forms(rollbook, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "openai-secret-1")
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "script.jsonl").write_text('{"answer": "\\\\boxed{two}"}\n')
    run = ("run", "math", "--data", "rows.jsonl", "-m", "scripted:script.jsonl")
    with JudgeServer(same={frozenset(("2", "two"))}) as judge:
        monkeypatch.setenv("OPENAI_BASE_URL", judge.url)
        done = rollbook(*run, "--judge", "openai/judge-1", "-o", "a")
        assert done.returncode == 0, done.stderr
        assert set(judge.keys) == {"Bearer openai-secret-1"}
    manifest, settings = read(tmp_path / "a/run.json"), read(tmp_path / "a/rounds/0001.json")["settings"]
    assert manifest["judge"]["name"] == "judge-1"
    assert (settings["judge_urls"], settings["judge_key_env"]) == ([judge.url], "OPENAI_API_KEY")
    refused = rollbook(*run, "--judge", "judge-1", "-o", "b")
    assert refused.returncode == 2
    assert last_line(refused).startswith("rollbook: --judge judge-1: write PROVIDER/NAME")


def test_a_judge_that_refuses_a_parameter_is_refused_before_the_run_and_says_how_to_omit_it(rollbook, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "script.jsonl").write_text('{"answer": "\\\\boxed{two}"}\n')
    run = ("run", "math", "--data", "rows.jsonl", "-m", "scripted:script.jsonl")
    with NewerOpenAI("seed") as judge:
        failed = rollbook(*run, "--judge", judge.url, "--judge-sampling", "temperature=null", "-o", "a")
        assert failed.returncode == 2, failed.stderr
        assert "pass --judge-sampling seed=null to omit it" in last_line(failed)
        assert not (tmp_path / "a").exists()
        omit = ("--judge-sampling", "temperature=null", "--judge-sampling", "seed=null")
        rollbook(*run, "--judge", judge.url, *omit, "-o", "b")
        assert {"temperature", "seed"}.isdisjoint(judge.calls[-1].body)


def test_a_preset_that_the_endpoint_does_not_take_is_learned_away_for_good(rollbook, sums, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k-123456")
    with OlderServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        done = rollbook("run", sums, "-m", "openai/older", "-o", "a")
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("max_tokens is sent instead") == 1
        before = len(server.calls)
        assert rollbook("extend", "a", "-k", 2).returncode == 0
        assert all("max_tokens" in call.body for call in server.calls[before:])
    assert read(tmp_path / "a/rounds/0002.json")["settings"]["wire_names"] == {"max_tokens": "max_tokens"}
