"""`rollbook check` and `rollbook score` as people run them: their words and their exit codes."""

import json
import subprocess
import sys


def test_score_says_what_an_answer_is_worth(rollbook, sums, tmp_path):
    (tmp_path / "answer.txt").write_text("It is #### 6")
    done = rollbook("score", sums, "sum-3", "--file", "answer.txt")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[:4] == ["score", "sum-3", "reward", "1"]
    wrong = json.loads(rollbook("score", sums, "sum-4", "--file", "answer.txt", "--json").stdout)
    assert (wrong["status"], wrong["reward"], wrong["task"]) == ("scored", 0.0, "sum-4")


def test_score_reads_standard_input(tmp_path):
    command = [sys.executable, "-c", "from rollbook.cli.main import main; main()", "score", "gsm8k", "gsm8k-0000"]
    done = subprocess.run([*command, "--file", "-", "--json"], input=b"\\boxed{18}", capture_output=True, timeout=60)
    assert json.loads(done.stdout)["reward"] == 1.0


def test_an_answer_that_cannot_be_scored_exits_3_with_its_kind(rollbook, sums, tmp_path):
    (tmp_path / "answer.txt").write_text("1")
    done = rollbook("score", "sums.py:Picky", "sum-0", "--file", "answer.txt", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["failure"]["kind"] == "verifier_error"
    (line,) = done.stderr.splitlines()
    assert line.startswith("rollbook: verifier_error in verify: RuntimeError: cannot say")


def test_a_mistake_exits_2_in_one_line(rollbook, sums, tmp_path):
    (tmp_path / "answer.txt").write_text("1")
    (tmp_path / "latin.txt").write_bytes(b"\xe9")
    for arguments, words in (
        (["sum-33", "--file", "answer.txt"], "has no task 'sum-33'; did you mean sum-3"),
        (["sum-3", "--file", "none.txt"], "--file none.txt: No such file"),
        (["sum-3", "--file", "latin.txt"], "--file latin.txt: not UTF-8 (byte 1)"),
        (["sum-3", "--file", "answer.txt", "--data", "x.jsonl"], "Sums takes no data"),
        (["sum-3", "--file", "answer.txt", "--judge", "http://localhost:1/v1"], "Sums uses no judge"),
    ):
        done = rollbook("score", sums, *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_check_shows_a_table_and_exits_0_when_sound(rollbook, sums):
    done = rollbook("check", sums)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Sums, 5 tasks" in done.stdout
    assert "Sums has no solution(task), so no solution is known" in done.stdout


def test_check_exits_3_and_names_the_faults(rollbook, sums):
    done = rollbook("check", "sums.py:Picky", "-n", 2, "--json")
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert (found["sound"], found["tasks"]) == (False, 2)
    faults = [f for f in found["findings"] if f["verdict"] == "unsound"]
    assert {fault["example"] for fault in faults} == {"sum-0"}
    assert done.stderr.startswith("rollbook: Picky is unsound: an empty answer is not right;")


def test_a_judge_is_named_by_its_own_options(rollbook, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"problem": "1 + 1?", "answer": "2"}\n')
    run = ["run", "math", "--data", "rows.jsonl", "-m", "http://localhost:1/v1", "--model-name", "m", "-o", "a"]
    for judge, words in (
        (["--judge", "nowhere"], "--judge nowhere: write PROVIDER/NAME"),
        (["--judge-name", "x"], "--judge-name x: give --judge URL as well"),
        (
            ["--judge", "http://127.0.0.1:1/v1", "--judge-name", "x", "--outage", "0.2", "--no-probe"],
            "the judge is not reachable",
        ),
    ):
        done = rollbook(*run, *judge)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert not (tmp_path / "a").exists()
