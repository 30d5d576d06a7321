import json

from rollbook.cli.run_commands import choose_run_folder


def test_a_run_without_a_folder_gets_a_new_one_named_after_its_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = choose_run_folder("reasoning_gym:chain_sum?max_terms=2")
    assert first.parent.name == "runs"
    assert first.name.startswith("reasoning_gym-chain_sum-")
    first.mkdir(parents=True)
    assert not choose_run_folder("reasoning_gym:chain_sum").exists()


def test_a_path_makes_a_name_without_slashes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose_run_folder("../my envs/sums.py:Sums").name.startswith("my-envs-sums.py-Sums-")


def test_every_limit_of_a_conversation_is_frozen_in_the_run(tmp_path, rollbook, sums):
    words = ["--max-turns", 5, "--max-tokens-total", 900, "--tool-timeout", 2.5, "--tool-chars", 80]
    words += ["--stop-repeats", 3, "--tool-format", "text"]
    done = rollbook("plan", sums, "-m", "http://localhost:1/v1", "--model-name", "m", "-o", "r", *words)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "r" / "run.json").read_text())
    limits = {"max_turns": 5, "max_tokens_total": 900, "tool_s": 2.5, "tool_chars": 80, "stop_repeats": 3}
    assert {name: manifest["limits"][name] for name in limits} == limits
    assert manifest["tool_format"] == "text"


def test_an_unknown_tool_format_is_one_line(rollbook, sums):
    done = rollbook("plan", sums, "--tool-format", "xml", "-o", "r")
    assert done.returncode == 2
    assert "--tool-format xml: known are auto, native, schema, text" in done.stderr
    done = rollbook("plan", sums, "--tool-format", "native", "-o", "r")
    assert "the embedded model parses no tool calls" in done.stderr
