"""report, profile, curate and compare as people use them: on runs that were really made."""

import json
import re
import shutil

import pytest

from support.books import edit_journal
from support.quiz import ANSWERS as A
from support.quiz import write_answers, write_quiz

B = {"q0": ["0", "0", "0", "0"], "q1": ["2", "2", "2", "5"], "q2": ["9", "9", "9", "9"]}


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_report_prints_every_number_beside_what_it_rests_on(made, rollbook, tmp_path):
    assert made("a").returncode == 0
    done = rollbook("report", "a", "--at", "1,2,4")
    assert done.returncode == 0, done.stderr
    for words in ("12/12", "pass@1", "pass@4", "pass^4", "maj@4", "no answer", "reward part", "short", "p95 s"):
        assert words in done.stdout
    kept = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert kept == json.loads(rollbook("report", "a", "--at", "1,2,4", "--json").stdout)
    numbers = kept["environments"]["Quiz"]
    assert numbers["pass@1"] == pytest.approx(5 / 12)
    assert numbers["pass@4"] == pytest.approx(1.0)
    assert numbers["pass^4"] == 0
    # q0: three said 0, which is right; q1: two said 5, which is wrong; q2: two said 9, which is wrong.
    assert numbers["maj@4"] == pytest.approx(1 / 3)
    assert numbers["parts"] == {"right": pytest.approx(5 / 12), "short": 1.0}
    assert numbers["part_coverage"] == {"right": 12, "short": 12}
    assert (numbers["no_answer"], numbers["turns"], kept["overall"]["scored"]) == (1, 12, 12)


def test_thirty_tasks_of_four_samples_give_the_numbers_worked_by_hand(made, rollbook):
    # Of thirty tasks, four kinds; R is right, w and v are wrong and different:
    #   12 x R R R R    pass@1 1     pass@4 1   maj@4 1    (four votes for R)
    #    8 x R R w v    pass@1 1/2   pass@4 1   maj@4 1    (two for R, one each for the others)
    #    6 x R w w v    pass@1 1/4   pass@4 1   maj@4 0    (two for w)
    #    4 x R R w w    pass@1 1/2   pass@4 1   maj@4 1/2  (a tie of two shares)
    kinds = ["RRRR"] * 12 + ["RRwv"] * 8 + ["Rwwv"] * 6 + ["RRww"] * 4
    said = {"R": None, "w": "1001", "v": "1003"}
    answers = {f"q{i}": [said[letter] or str(2 * i) for letter in kind] for i, kind in enumerate(kinds)}
    done = made("thirty", answers, "Quiz?tasks=30", "--json")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)["environments"]["Quiz"]
    assert numbers["scored"] == 120
    assert numbers["pass@1"] == pytest.approx((12 + 8 / 2 + 6 / 4 + 4 / 2) / 30)
    assert numbers["pass@4"] == 1.0
    assert numbers["maj@4"] == pytest.approx((12 + 8 + 0 + 4 / 2) / 30)
    assert numbers["pass^4"] == pytest.approx(12 / 30)


def test_a_markdown_table_can_be_pasted(made, rollbook):
    made("a")
    table = [line for line in rollbook("report", "a", "--markdown").stdout.splitlines() if line.startswith("|")]
    assert table[0].startswith("| environment | tasks | scored | mean |")
    assert len({line.count("|") for line in table[:3]}) == 1
    assert table[2].startswith("| Quiz | 3 | 12/12 | 0.417 |")


def test_several_runs_have_a_row_each_and_shards_of_one_run_are_read_together(made, rollbook, tmp_path):
    made("a")
    made("b", B)
    done = rollbook("report", "a", "b", "--json")
    assert [run["path"] for run in json.loads(done.stdout)["runs"]] == ["a", "b"]
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    journal = next((tmp_path / "a" / "journals").glob("*[!s].jsonl"))
    lines = journal.read_bytes().splitlines(keepends=True)
    shutil.rmtree(tmp_path / "a" / "done")
    (tmp_path / "a" / "done").mkdir()
    journal.write_bytes(b"".join(lines[:5]))
    assert rollbook("report", "a").returncode == 3
    merged = json.loads(rollbook("report", "a", "copy", "--json").stdout)
    assert (merged["scored"], merged["pending"], merged["dropped"]) == (12, 0, 5)
    assert (merged["merged"], merged["disagreeing"]) == (["copy"], 0)
    assert merged["environments"] == json.loads(rollbook("report", "copy", "--json").stdout)["environments"]


def test_numbers_of_several_directories_replace_those_of_none(made, rollbook, tmp_path):
    made("a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for seal in (tmp_path / "b" / "done").iterdir():
        seal.unlink()
    journal = next((tmp_path / "b" / "journals").glob("*[!s].jsonl"))
    assert edit_journal(journal, '"reward":1.0', '"reward":0.5') == 5
    rollbook("report", "a")
    alone = {path.name: path.read_bytes() for path in (tmp_path / "a").glob("*.*")}
    one, two = rollbook("report", "a", "b", "--json"), rollbook("report", "b", "a", "--json")
    assert one.stderr == "numbers of several directories together: a/metrics.merged.json and a/report.merged.html\n"
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").glob("*.*")}.items() >= alone.items()
    found = [json.loads(done.stdout) for done in (one, two)]
    assert found[0]["overall"] == found[1]["overall"]
    assert [each["disagreeing"] for each in found] == [5, 5]
    words = "directories have different rewards or answers for 5 rollouts that several of them hold; of each"
    assert f"warning: {words}" in rollbook("report", "a", "b").stdout
    assert words in (tmp_path / "a" / "report.merged.html").read_text()


@pytest.mark.parametrize("command", ["report", "verify", "status"])
def test_what_cannot_be_read_is_one_line(made, rollbook, tmp_path, command):
    made("a")
    (tmp_path / "a" / "journals" / "x.1.jsonl").mkdir()
    done = rollbook(command, "a", *(["--exact"] if command == "status" else []))
    assert done.returncode
    assert done.stderr.endswith("journals/x.1.jsonl: Is a directory\n")
    assert done.stderr.count("\n") == 1


def test_graded_rewards_have_best_at_k_and_a_threshold_for_passing(made, rollbook):
    made("g", {"q0": ["1", "3"], "q1": ["10", "6"], "q2": ["0", "0"]}, "Graded")
    strict = json.loads(rollbook("report", "g", "--json").stdout)["overall"]
    assert (strict["pass@1"], strict["mean"]) == (pytest.approx(1 / 6), pytest.approx(2 / 6))
    assert strict["best@2"] == pytest.approx((0.3 + 1.0 + 0.0) / 3)
    lax = json.loads(rollbook("report", "g", "--threshold", "0.3", "--json").stdout)["overall"]
    assert (lax["pass@1"], lax["pass@2"], lax["threshold"]) == (pytest.approx(3 / 6), pytest.approx(2 / 3), 0.3)


def test_failures_are_no_scores_and_the_coverage_is_printed(made, rollbook):
    assert made("f", A | {"q0": ["0", "0", "0", "boom"]}).returncode == 3
    done = rollbook("report", "f", "--at", "1,4")
    assert done.returncode == 3
    assert "@4 is computed from 2 of 3 tasks" in done.stdout
    assert "verifier_error" in done.stdout
    assert "11/12" in done.stdout
    page = rollbook("report", "f", "--json")
    assert json.loads(page.stdout)["environments"]["Quiz"]["failed"] == {"verifier_error": 1}


def test_compare_pairs_two_runs_by_task(made, rollbook):
    made("a")
    made("b", B)
    done = rollbook("compare", "a", "b")
    assert done.returncode == 0, done.stderr
    assert "solved only by B: 1: q1" in done.stdout
    assert "solved only by A: 0" in done.stdout
    found = json.loads(rollbook("compare", "a", "b", "--json").stdout)
    mean = found["comparison"]["metrics"]["mean"]
    assert (mean["a"], mean["b"], mean["difference"]) == pytest.approx((5 / 12, 7 / 12, 2 / 12))
    assert (found["comparison"]["better"], found["comparison"]["worse"]) == (2, 1)
    assert found["b"]["scored"] == 12


def test_compare_sets_several_runs_against_the_first(made, rollbook):
    made("a")
    made("b", {**A, "q1": ["2", "2", "2", "2"]})
    made("c", {**A, "q0": ["1", "1", "1", "1"]})
    done = rollbook("compare", "a", "b", "c")
    assert done.returncode == 0, done.stderr
    header, *rows = done.stdout.splitlines()[:4]
    assert header.split()[0] == "run"
    assert header.split()[-1] == "p"
    assert [row.split()[:2] for row in rows] == [["A", "a"], ["B", "b"], ["C", "c"]]
    assert rollbook("compare", "a", "b").stdout in done.stdout
    for words in ("C: c: ", "C - A", "solved only by C: "):
        assert done.stdout.count(words) >= 1
    found = json.loads(rollbook("compare", "a", "b", "c", "--json").stdout)
    assert found == [json.loads(rollbook("compare", "a", other, "--json").stdout) for other in ("b", "c")]
    change = found[0]["comparison"]["metrics"]
    name = next(iter(change))
    assert f"({change[name]['difference']:+.3f})" in rows[1]


def test_compare_says_that_no_model_answered_and_has_every_number_at_k(made, rollbook):
    made("g", {"q0": ["1", "3"], "q1": ["10", "6"], "q2": ["0", "0"]}, "Graded")
    done = rollbook("compare", "g", "g")
    assert done.stdout.count("(scripted answers, no model)") == 2
    for name in ("pass^2", "maj@2", "best@2"):
        assert name in done.stdout


def test_a_file_beside_the_runs_is_left_out_by_name(made, rollbook, tmp_path):
    made("a")
    (tmp_path / "notes.txt").write_text("mine")
    done = rollbook("report", "a", "notes.txt")
    assert done.returncode == 0
    assert done.stderr == "notes.txt is a file and not a run: left out\n"
    assert rollbook("report", "notes.txt").returncode == 2
    assert rollbook("report", "a", "no-such-run").returncode == 2


def test_a_folder_beside_the_runs_is_left_out_by_name_unless_nothing_is_left(made, rollbook, tmp_path):
    made("a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "demo").mkdir()
    shutil.copytree(tmp_path / "a", tmp_path / "demo" / "sums")
    done = rollbook("report", "demo", "a", "empty")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "demo is a folder of runs and not a run: left out",
        "empty is a folder and not a run: left out",
    ]
    none = rollbook("report", "demo", "empty")
    assert (none.returncode, none.stderr.count("\n")) == (2, 1)
    assert "demo is not a run directory" in none.stderr


def test_reverify_lists_what_changed_for_programs_too(made, rollbook, tmp_path):
    made("f", A | {"q0": ["0", "0", "0", "boom"]})
    quiz = tmp_path / "quiz.py"
    quiz.write_text(quiz.read_text().replace("boom", "bang"))
    done = rollbook("reverify", "f", "--env", f"{quiz}:Quiz", "--only", "failed", "--json")
    found = json.loads(done.stdout)
    assert found["changes"] == [{"task": "q0", "sample": 3, "before": None, "after": 0.0}]
    assert found["kept_from"] == json.loads((tmp_path / "f" / "run.json").read_text())["run"]
    assert "two verifiers: scores of run" in rollbook("report", "f-reverified").stdout


def test_compare_refuses_other_tasks_unless_told_to_take_the_common_ones(made, rollbook):
    made("a")
    made("four", {"q0": ["0"], "q1": ["2"], "q2": ["4"], "q3": ["6"]}, "Quiz?tasks=4")
    refused = rollbook("compare", "a", "four")
    assert refused.returncode == 2
    assert "1 only in B (first: q3); 3 in common; compare those with --common" in refused.stderr
    agreed = rollbook("compare", "a", "four", "--common", "--json")
    assert json.loads(agreed.stdout)["comparison"]["tasks"] == 3
    assert "task sets differ" in json.loads(agreed.stdout)["notes"][0]
    made("other", A, "Other")
    assert "different environments" in rollbook("compare", "a", "other", "--common").stderr


def test_an_empty_run_has_nulls_and_says_what_is_missing(rollbook, tmp_path):
    quiz = write_quiz(tmp_path)
    script = write_answers(tmp_path, "s.jsonl", A)
    assert rollbook("plan", f"{quiz}:Quiz", "-m", script, "-k", 4, "-o", "e").returncode == 0
    done = rollbook("report", "e", "--json")
    assert done.returncode == 3
    numbers = json.loads(done.stdout)["environments"]["Quiz"]
    assert (numbers["scored"], numbers["pending"], numbers["mean"], numbers["std"]) == (0, 12, None, None)
    assert "nothing scored yet" in (tmp_path / "e" / "report.html").read_text()
    assert rollbook("profile", "e", "-o", "e.jsonl").returncode == 0
    assert read_lines(tmp_path / "e.jsonl")[0]["mean"] is None
    none = rollbook("curate", "e", "--keep", "mean > 0", "-o", "n.jsonl")
    assert (none.returncode, none.stdout) == (3, "")
    assert none.stderr == "rollbook: 0 of 3 tasks (0 kept): nothing to write, n.jsonl was left as it was\n"
    assert not (tmp_path / "n.jsonl").exists()
    assert rollbook("compare", "e", "e").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["report", "nowhere"], "nowhere is not a run directory"),
        (["report", "a", "--at", "0"], "--at 0: write whole numbers"),
        (["report", "a", "--at", "1,x"], "--at 1,x: write whole numbers"),
        (["report", "a", "--threshold", "nan"], "--threshold nan"),
        (["profile", "a", "-o", "p.xlsx"], "must be one of .jsonl, .csv, .parquet"),
        (["profile", "a", "-o", "no/such/p.jsonl"], "cannot be written"),
        (["curate", "a", "--keep", "meen > 0", "-o", "n.jsonl"], "did you mean mean? known:"),
        (["curate", "a", "--keep", "exit()", "-o", "n.jsonl"], "a call is not allowed"),
        (["curate", "a", "--keep", "pass@4 > 0", "-o", "n.jsonl"], "pass@4 is written pass_4"),
        (["curate", "a", "--per-bucket", "3", "-o", "n.jsonl"], "--per-bucket needs --bucket"),
        (["curate", "a", "-o", "n.csv"], "must be .jsonl"),
        (["curate", "p.csv", "-o", "n.jsonl"], "p.csv: cannot be read"),
        (["curate", "quiz.py", "-o", "n.jsonl"], "quiz.py:"),
        (["curate", "none.jsonl", "-o", "n.jsonl"], "none.jsonl: cannot be read"),
        (["compare", "a", "nowhere"], "nowhere is not a run directory"),
        (["curate", "a", "--bucket", "id:0,1", "-o", "n.jsonl"], "'q0' is not a number"),
        (["curate", "a", "--keep", f"{'9' * 4000}*{'9' * 4000}", "-o", "n.jsonl"], "too large"),
    ],
)
def test_a_mistake_is_one_line(made, rollbook, tmp_path, arguments, words):
    made("a")
    done = rollbook(*arguments)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_copy_that_may_only_be_read_has_numbers_too(made, rollbook, tmp_path):
    made("a")
    (tmp_path / "a" / "metrics.json").unlink(missing_ok=True)
    (tmp_path / "a").chmod(0o555)
    try:
        done = rollbook("report", "a")
    finally:
        (tmp_path / "a").chmod(0o755)
    assert done.returncode == 0
    assert "12/12 scored" in done.stdout


@pytest.mark.parametrize("rewards", [["1e308", "1e308"], ["1e308", "-1e308"], ["1e308", "0"]])
def test_rewards_of_any_size_are_reported_without_a_warning(made, rollbook, tmp_path, rewards):
    made("huge", {"q0": rewards, "q1": ["1.7e308", "5"], "q2": ["0", "10"]}, "Huge")
    for command in (["report", "huge", "--json"], ["report", "huge"], ["profile", "huge"], ["compare", "huge", "huge"]):
        done = rollbook(*command)
        assert (done.returncode, done.stderr) == (0, "")
    numbers = json.loads((tmp_path / "huge" / "metrics.json").read_text())["overall"]
    assert numbers["scored"] == 6
    page = (tmp_path / "huge" / "report.html").read_text()
    assert "beyond 1e+300 drawn at the edge" in page
    assert not re.search(r"[:,\[](nan|inf)", page, re.IGNORECASE)


def test_a_garbage_line_among_the_tasks_is_named(made, rollbook, tmp_path):
    made("a")
    with open(tmp_path / "a" / "tasks.jsonl", "ab") as file:
        file.write(b"garbage\n")
    for command in ("report", "profile"):
        done = rollbook(command, "a")
        assert done.returncode not in (0, 1)
        assert "tasks.jsonl:4: not a task line" in done.stderr
        assert done.stderr.count("\n") == 1


def test_compare_notes_other_arguments_another_threshold_and_one_and_the_same_run(made, rollbook, tmp_path):
    made("a")
    made("b", A, "Quiz?tasks=3")
    notes = json.loads(rollbook("compare", "a", "b", "--threshold", "0.5", "--json").stdout)["notes"]
    assert notes == [
        "the arguments of Quiz are not the same in both (tasks: not given and 3)",
        "a rollout passes with a reward of at least 0.5",
    ]
    assert rollbook("reverify", "a", "--env", "quiz.py:Quiz?tasks=9", "-o", "r").returncode == 0
    said = "B is A scored again: the verifier of Quiz differs (the arguments of Quiz are not the same in both"
    assert said in rollbook("compare", "a", "r").stdout
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    assert "A and B are of the same run" in rollbook("compare", "a", "copy").stdout
    assert "permutation test p = 1.0000, sign" in rollbook("compare", "a", "b").stdout


def test_export_says_what_was_not_exported_and_why(made, rollbook, tmp_path):
    made("f", A | {"q0": ["0", "0", "0", "boom"]})
    done = rollbook("export", "f", "--format", "sft", "-o", "s.jsonl")
    assert done.stderr == "5 rollouts: s.jsonl (not exported: 1 without a score, 6 not kept by 'reward >= 1')\n"
    assert rollbook("export", "f", "-o", "all.jsonl").stderr == (
        "11 rollouts: all.jsonl (not exported: 1 without a score)\n"
    )


def test_a_negative_interval_is_not_written_with_a_dash(made, rollbook):
    made("g", {"q0": ["-10", "-10"], "q1": ["10", "6"], "q2": ["0", "0"]}, "Graded")
    assert re.search(r"-\d\.\d{3} to \d\.\d{3}", rollbook("report", "g").stdout)


def test_compare_takes_a_run_scored_again_and_a_moved_environment_with_a_note(made, rollbook, tmp_path):
    made("a")
    (tmp_path / "strict.py").write_text((tmp_path / "quiz.py").read_text().replace("float(right)", "0.0"))
    assert rollbook("reverify", "a", "--env", "strict.py:Quiz", "--out", "r").returncode == 0
    for sides, words in ((("a", "r"), "B is A scored again"), (("r", "a"), "A is B scored again")):
        done = rollbook("compare", *sides)
        assert done.returncode == 0, done.stderr
        assert f"{words}: the verifier of Quiz differs (the source of Quiz is not the same in both" in done.stdout
    script = write_answers(tmp_path, "s.jsonl", A)
    assert rollbook("run", "strict.py:Quiz", "-m", script, "-k", 4, "-o", "m").returncode == 0
    done = rollbook("compare", "a", "m")
    assert done.returncode == 0, done.stderr
    assert "the source of Quiz is not the same in both (quiz:Quiz and strict:Quiz)" in done.stdout
