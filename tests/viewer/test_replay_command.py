import shlex

import msgspec
import pytest
import typer

from rollbook.cli import build_app
from rollbook.cli.run_commands import make_request
from rollbook.core import AgentSpec, Limits, ModelSpec, RoleSettings, RoleSpec, Sampling, Settings
from rollbook.viewer.rollout_pages import make_replay_command
from support.sample_runs import make


@pytest.fixture
def book(tmp_path):
    return make(tmp_path / "run", tasks=2, samples=2)


def words(book, **changed):
    book.manifest = msgspec.structs.replace(book.manifest, **changed)
    return shlex.split(make_replay_command(book, book.tasks.read(1), 1))


def test_the_rollout_its_seed_and_its_sampling(book):
    said = words(book)
    assert said[:7] == ["rollbook", "run", "calculus.py:Calculus", "--task", "area-1", "--sample", "1"]
    assert said[7:] == shlex.split(
        "--seed 7 --temperature 0.7 --top-p 1 --max-tokens 1024 -m http://localhost:8000/v1 --model-name qwen-7b"
    )


def test_limits_and_sampling_that_are_not_the_usual_ones(book):
    sampling = Sampling(extra={"stop": ["END"], "top_k": 5})
    said = words(book, limits=Limits(max_turns=4, rollout_s=0.5), sampling=sampling, tool_format="text")
    text = shlex.join(said)
    assert "--max-turns 4" in text
    assert "--timeout 0.5" in text
    assert "--tool-format text" in text
    assert "--verify-timeout" not in text
    assert 'stop=["END"]' in said
    assert "top_k=5" in said


def test_a_conversation_that_went_on_in_its_tokens(book):
    assert "--continue-tokens" not in words(book)
    assert "--continue-tokens" in words(book, continue_tokens=True)


def test_rows_of_ones_own(book):
    spec = msgspec.structs.replace(book.manifest.environments["Calculus"], args={"data": "my rows.jsonl"})
    assert words(book, environments={"Calculus": spec})[3:5] == ["--data", "my rows.jsonl"]


@pytest.mark.parametrize(("kind", "shown"), [("embedded", []), ("scripted", ["-m", "http://localhost:8000/v1"])])
def test_models_of_other_kinds(book, kind, shown):
    said = words(book, model=ModelSpec("m", kind))
    assert said[said.index("1024") + 1 :] == shown


def test_a_blend_is_a_file_that_only_its_author_has(book):
    spec = book.manifest.environments["Calculus"]
    assert words(book, environments={"Calculus": spec, "Other": spec})[2] == "BLEND.yaml"


def asked(said):
    """What the command line makes of a command."""
    run = typer.main.get_command(build_app("run")).commands["run"]
    params = run.make_context("run", said[2:]).params
    return make_request(params)


EXACT = {
    "sampling": Sampling(0.123456789, 0.9999999, 1_000_000, {"top_k": 5, "stop": ["END"], "min_p": 1e-7}),
    "limits": Limits(1000.125, 1e-3, 1e7, 2048, 1_000_000, 12_345_678, 1_000_001, 5),
    "seed": 12_345_678_901,
    "tool_format": "text",
    "continue_tokens": True,
    "judge": ModelSpec("judge-70b"),
    "agent": AgentSpec(["python", "my agent.py"]),
}


def test_the_command_line_reads_what_the_manifest_says(book):
    settings = Settings(
        urls=["http://a/v1", "http://b/v1"],
        api_key_env="MY_KEY",
        judge_urls=["http://judge/v1"],
        judge_key_env="ITS_KEY",
        judge_s=0.12345678,
    )
    book.open_round(settings)
    request = asked(words(book, **EXACT))
    same = ("sampling", "limits", "seed", "tool_format", "continue_tokens")
    assert {name: getattr(request, name) for name in same} == {name: EXACT[name] for name in same}
    assert (request.judge, request.judge_name) == (["http://judge/v1"], "judge-70b")
    assert (request.model, request.model_name) == (settings.urls, "qwen-7b")
    assert request.agent == "program:python 'my agent.py'"
    assert request.settings == settings
    assert (request.tasks, request.sample) == (["area-1"], 1)


def test_a_judge_whose_address_is_not_known_is_still_asked_for(book):
    assert asked(words(book, judge=ModelSpec("judge-70b"))).judge == ["URL"]
    assert asked(words(book, judge=None)).judge == []


def test_the_roles_are_given_as_they_were(book):
    book.open_round(Settings(urls=["http://a/v1"], roles={"user": RoleSettings(urls=["http://u/v1"], key_env="KEY")}))
    roles = {
        "user": RoleSpec(ModelSpec("actor"), {"temperature": 0.5, "stop": "END"}),
        "rival": RoleSpec(ModelSpec("r")),
    }
    assert asked(words(book, roles=roles)).settings.roles == {
        "user": RoleSettings(["http://u/v1"], "actor", {"temperature": 0.5, "stop": "END"}, "KEY"),
        "rival": RoleSettings(["URL"], "r"),
    }
