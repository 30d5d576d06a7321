import json
from concurrent.futures import ThreadPoolExecutor

from rollbook.engine import claim_run_folder, release_run_folder


def test_a_run_without_a_folder_gets_a_new_one_named_after_its_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "1116-192314")
    names = [claim_run_folder(f"reasoning_gym:chain_sum?max_terms={number}") for number in range(3)]
    stem = "runs/reasoning_gym-chain_sum-1116-192314"
    assert [str(each) for each in names] == [stem, f"{stem}-2", f"{stem}-3"]
    assert all(each.is_dir() for each in names)
    (names[0] / "run.json").write_text("{}")
    for each in names:
        release_run_folder(each)
    assert list(tmp_path.glob("runs/*")) == [tmp_path / stem]


def test_threads_that_claim_at_once_get_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(claim_run_folder, ["gsm8k"] * 32))
    assert len(set(found)) == 32


def test_a_claim_that_nobody_used_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    release_run_folder(claim_run_folder("gsm8k"))
    assert list(tmp_path.iterdir()) == []


def test_a_path_makes_a_name_without_slashes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert claim_run_folder("../my envs/sums.py:Sums").name.startswith("my-envs-sums.py-Sums-")


def test_a_refused_command_leaves_no_folder_of_runs(tmp_path, rollbook, sums):
    for words in (["no-such-environment"], [sums, "-m", "scripted:missing.jsonl"]):
        assert rollbook("run", *words).returncode == 2
        assert not (tmp_path / "runs").exists()


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
