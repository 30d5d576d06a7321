"""The commands that work, end to end: their words, their files and their exit codes."""

import json

import pytest


@pytest.fixture
def run(rollbook, endpoint, sums):
    """`rollbook run` of the five sums, twice each, into `a`."""
    return lambda env=sums, *more: rollbook("run", env, "-m", endpoint, "-k", 2, "-o", "a", *more)


def test_a_run_prints_its_numbers_on_standard_output_and_its_progress_beside_it(run):
    done = run()
    assert done.returncode == 0, done.stderr
    assert "a: mock: 10/10 scored, 0 failed, 0 pending" in done.stdout
    assert "pass@2" in done.stdout
    assert "10 rollouts to do" in done.stderr
    assert "rollbook extend a -k 4" in done.stderr


def test_the_numbers_are_json_for_programs(run, rollbook):
    made = json.loads(run("sums.py:Sums", "--json").stdout)
    assert (made["requested"], made["scored"], made["pending"]) == (10, 10, 0)
    assert made["environments"]["Sums"]["pass@1"] == 1.0
    assert json.loads(rollbook("report", "a", "--json").stdout) == made


def test_status_says_how_far_a_run_is(run, rollbook):
    run()
    assert "finished" in rollbook("status", "a").stdout
    status = json.loads(rollbook("status", "a", "--json").stdout)
    assert (status["requested"], status["scored"], status["pending"], status["workers"]) == (10, 10, 0, [])


def test_a_shortfall_exits_3_with_a_table_of_what_is_missing_and_why(run, rollbook):
    done = run("sums.py:Picky")
    assert done.returncode == 3
    assert "8/10 scored, 2 failed, 0 pending" in done.stdout
    assert "verifier_error" in done.stdout
    assert "sum-0" in done.stdout
    assert "cannot say" in done.stdout
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rollbook: 8 of 10 rollouts were scored")
    assert "rollbook reverify a --env sums.py:Picky --only failed" in done.stderr
    assert rollbook("report", "a").returncode == 3


def test_resume_and_extend_go_on_with_the_same_folder(run, rollbook):
    run()
    assert "10/10 scored" in rollbook("resume", "a").stdout
    extended = rollbook("extend", "a", "-k", 3)
    assert extended.returncode == 0, extended.stderr
    assert "15/15 scored" in extended.stdout


def test_plan_writes_a_run_that_work_fills(rollbook, endpoint, sums):
    planned = rollbook("plan", sums, "-m", endpoint, "--model-name", "mock", "-n", 3, "-o", "b")
    assert (planned.returncode, planned.stdout) == (0, "b\n")
    assert json.loads(rollbook("status", "b", "--json").stdout)["pending"] == 3
    assert "3/3 scored" in rollbook("work", "b").stdout


def test_one_rollout_can_be_run_again(rollbook, endpoint, sums):
    done = rollbook("run", sums, "-m", endpoint, "--task", "sum-3", "--sample", 1, "-o", "c", "--json")
    assert json.loads(done.stdout)["requested"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "gsm9k"], "did you mean gsm8k"),
        (["run", "sums.py:Sumz"], "did you mean Sums"),
        (["run", "sums.py:Sums", "-m", "not a url"], "not a url"),
        (["run", "sums.py:Sums", "--task", "sum-9"], "sum-9"),
        (["run", "sums.py:Sums", "--sample", "1"], "--task"),
        (["run", "sums.py:Sums", "--temperature", "inf"], "--temperature inf"),
        (["run", "sums.py:Sums", "--sampling", "top_k"], "--sampling top_k"),
        (["resume", "nowhere"], "nowhere"),
        (["extend", "nowhere", "-k", "3"], "nowhere"),
        (["report", "nowhere"], "nowhere"),
    ],
)
def test_a_mistake_of_meaning_is_one_line_and_exit_2(rollbook, endpoint, sums, arguments, words):
    model = [] if "-m" in arguments or arguments[0] != "run" else ["-m", endpoint]
    done = rollbook(*arguments, *model)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rollbook: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_a_folder_that_is_taken_is_refused(run):
    assert run().returncode == 0
    again = run()
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "a is not empty: continue it with `rollbook resume a`" in again.stderr


def test_envs_lists_what_is_installed(rollbook):
    done = rollbook("envs")
    assert done.returncode == 0, done.stderr
    assert "gsm8k" in done.stdout
    assert "reasoning_gym" in done.stdout
    assert {env["name"] for env in json.loads(rollbook("envs", "--json").stdout)} >= {"gsm8k", "reasoning_gym"}


def test_envs_lists_environments_by_kind(rollbook):
    benchmarks, _, rest = rollbook("envs").stdout.partition("for your rows (--data)")
    rows, _, generated = rest.partition("generated tasks")
    first_words = [{line.split(" ")[0] for line in part.splitlines()} for part in (benchmarks, rows, generated)]
    assert {"bbh", "gsm8k", "humaneval", "math500", "mbpp"} <= first_words[0]
    assert {"code", "math", "mcqa"} <= first_words[1]
    assert {"reasoning_gym", "workplace"} <= first_words[2]


def test_envs_shows_the_prompt_template_of_a_benchmark(rollbook, tmp_path):
    page = rollbook("envs", "math500").stdout
    assert "prompt template" in page
    assert "    {problem}\n\n    Reason step by step" in page
    template = tmp_path / "ask.txt"
    template.write_text("Level {level}: {problem}")
    assert "Level 2: Convert the point" in rollbook("envs", "math500", "--prompt-template", template).stdout


def test_envs_lists_the_sets_of_the_catalogue(rollbook):
    done = rollbook("envs", "--catalogue")
    assert done.returncode == 0, done.stderr
    assert "hf://cais/mmlu?config=all&split=test&revision=main" in done.stdout
    assert "CC BY-SA 4.0" in done.stdout
    entries = json.loads(rollbook("envs", "--catalogue", "--json").stdout)
    assert set(entries["mmlu"]) == {"about", "data", "environment", "template", "columns", "licence"}
    page = rollbook("envs", "mmlu").stdout
    assert "rows: hf://cais/mmlu?config=all&split=test&revision=main\nlicence: MIT" in page
    assert "its rows are on the hub" in page
    assert "lenient" in page.partition("option ")[2].partition("options go")[0]


def test_a_set_of_the_catalogue_is_run_by_its_name(rollbook, tmp_path):
    row = {"question": "What is 1 + 1?", "subject": "arithmetic", "choices": ["1", "2", "3", "4"], "answer": 1}
    (tmp_path / "mmlu.jsonl").write_text(json.dumps({"id": "sum", **row}))
    (tmp_path / "said.jsonl").write_text(json.dumps({"answer": "It is \\boxed{B}."}))
    done = rollbook("run", "mmlu", "--data", "mmlu.jsonl", "-m", "scripted:said.jsonl", "-o", "a")
    assert done.returncode == 0, done.stderr
    stored = json.loads((tmp_path / "a" / "run.json").read_text())["environments"]["mmlu"]
    assert stored["target"] == "builtin:mcqa"
    assert stored["args"] == {
        "grading": "lenient",
        "index": True,
        "data": "mmlu.jsonl",
        "template": "catalogue:mmlu",
    }
    line = json.loads(next((tmp_path / "a" / "journals").glob("*.1.jsonl")).read_text().splitlines()[0])
    assert (line["task"], line["reward"], line["answer"]) == ("sum", 1, "B")
    assert rollbook("extend", "a", "-k", "2").returncode == 0


def test_envs_lists_servers_apart_from_environments(rollbook):
    names, _, servers = rollbook("envs").stdout.partition("URL of a server")
    assert "gym+agent://" in servers
    assert "http" not in {line.split(" ")[0] for line in names.splitlines()}
    assert "gsm8k" not in {line.split(" ")[0] for line in servers.splitlines()}


def test_envs_describes_one_environment(rollbook, sums, tmp_path):
    page = rollbook("envs", "mcqa").stdout
    assert "multiple choice from your own rows" in page
    assert "Strict grading reads only a letter" in page
    assert "scoring: Score 1 for the right letter, else 0." in page
    assert "answerKey" in page
    assert "mcqa?grading=..." in page
    assert "A: Venus\nB: Mercury\n" in page
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "Is water wet?", "choices": ["yes", "no"], "answer": "A"}\n')
    assert "Is water wet?\n\nA: yes\nB: no\n" in rollbook("envs", "mcqa", "--data", rows).stdout
    assert "What is 0 + 0?" in rollbook("envs", sums).stdout
    assert "a name is missing: reasoning_gym:NAME" in rollbook("envs", "reasoning_gym").stdout
    assert "tools: search_customers" in rollbook("envs", "workplace").stdout


def test_the_description_of_an_environment_is_json_for_programs(rollbook):
    found = json.loads(rollbook("envs", "math", "--json").stdout)
    assert found["judge"] == "optional"
    assert {option["name"]: option["required"] for option in found["options"]}["--data FILE"] is True
    assert found["example"]["row"].keys() <= found["row_fields"].keys()
    assert found["example"]["messages"][0]["content"].startswith(found["example"]["row"]["problem"])
