"""profile and curate as people use them: on runs that were really made."""

import csv
import json

import pytest

from support.quiz import ANSWERS as A


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_profile_has_a_row_for_each_task_and_can_be_asked_again(made, rollbook, tmp_path):
    made("f", A | {"q0": ["0", "0", "0", "boom"]})
    done = rollbook("profile", "f")
    assert (done.returncode, done.stdout) == (0, "f/profile.jsonl: 3 tasks, 11/12 rollouts scored\n")
    rows = read_lines(tmp_path / "f" / "profile.jsonl")
    assert [row["id"] for row in rows] == ["q0", "q1", "q2"]
    assert (rows[0]["n"], rows[0]["failed"], rows[0]["mean"], rows[0]["std"]) == (3, 1, 1.0, 0.0)
    assert (rows[1]["majority"], rows[1]["majority_share"]) == ("5", pytest.approx(2 / 3))
    assert rows[0]["pass@4"] is None
    assert rows[1]["messages"] == [{"role": "user", "content": "What is 1 + 1?"}]
    assert (rows[1]["answer"], rows[1]["level"]) == ("2", 1)
    again = made("again", A, "Quiz", "--data", "f/profile.jsonl")
    assert "12/12 scored" in again.stdout, again.stderr
    assert rollbook("profile", "again", "-o", "again.jsonl").returncode == 0
    assert read_lines(tmp_path / "again.jsonl")[0]["n"] == 4
    assert rollbook("compare", "f", "again").returncode == 0


def test_a_profile_may_be_csv_or_parquet(made, rollbook, tmp_path):
    made("a")
    assert rollbook("profile", "a", "-o", "p.csv").returncode == 0
    with open(tmp_path / "p.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["mean"]) for row in rows] == [0.75, 0.25, 0.25]
    assert json.loads(rows[0]["messages"])[0]["role"] == "user"
    parquet = pytest.importorskip("pyarrow.parquet")
    assert rollbook("profile", "a", "-o", "p.parquet").returncode == 0
    table = parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert [(row["id"], row["n"], row["mean"]) for row in table] == [("q0", 4, 0.75), ("q1", 4, 0.25), ("q2", 4, 0.25)]


def test_a_cell_of_csv_is_no_formula_and_a_number_stays_one(made, rollbook, tmp_path):
    given = {"q0": ["=1+1", "=1+1"], "q1": ["-5", "-5"], "q2": ["+cmd|x", "+cmd|x"]}
    made("a", given)
    assert rollbook("profile", "a", "-o", "p.csv").returncode == 0
    with open(tmp_path / "p.csv", newline="") as file:
        assert [row["majority"] for row in csv.DictReader(file)] == ["'=1+1", "-5", "'+cmd|x"]
    rollbook("profile", "a", "-o", "p.jsonl")
    assert [row["majority"] for row in read_lines(tmp_path / "p.jsonl")] == ["=1+1", "-5", "+cmd|x"]


def test_a_field_of_the_tasks_is_never_overwritten(made, rollbook, tmp_path):
    rows = [{"id": f"q{i}", "prompt": f"What is {i} + {i}?", "answer": str(2 * i), "mean": 3} for i in range(3)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made("own", A, "Quiz", "--data", "own.jsonl")
    refused = rollbook("profile", "own")
    assert refused.returncode == 2
    assert "'mean'" in refused.stderr
    assert "--prefix" in refused.stderr
    assert rollbook("profile", "own", "--prefix", "run_", "-o", "p.jsonl").returncode == 0
    row = read_lines(tmp_path / "p.jsonl")[0]
    assert (row["mean"], row["run_mean"]) == (3, 0.75)


def test_curate_chooses_from_a_profile_or_a_run_what_the_next_run_asks(made, rollbook, tmp_path):
    made("a")
    rollbook("profile", "a")
    for source in ("a", "a/profile.jsonl"):
        done = rollbook("curate", source, "--keep", "0 < mean < 0.5 and n >= 4", "-o", "next.jsonl")
        assert (done.returncode, done.stdout) == (0, "next.jsonl: 2 of 3 tasks (2 kept)\n")
        assert [row["id"] for row in read_lines(tmp_path / "next.jsonl")] == ["q1", "q2"]
    assert "8/8 scored" in made("next", A, "Quiz", "--data", "next.jsonl").stdout
    sorted_by = rollbook("curate", "a", "--sort", "pass_1", "--desc", "-n", "1", "-o", "best.jsonl")
    assert sorted_by.returncode == 0
    assert read_lines(tmp_path / "best.jsonl")[0]["id"] == "q0"
    done = rollbook("curate", "a", "--bucket", "mean:0,0.5,1", "--per-bucket", "1", "--seed", "1", "-o", "b.jsonl")
    assert "[0, 0.5)      2      1" in done.stdout
    assert [row["bucket"] for row in read_lines(tmp_path / "b.jsonl")] == ["[0.5, 1]", "[0, 0.5)"]


def asked(**more):
    return [{"id": f"q{i}", "prompt": f"What is {i} + {i}?", "answer": str(2 * i), **more} for i in range(3)]


def write_rows(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize("prefix", ["", "run_"])
def test_the_columns_of_an_earlier_profile_go_before_new_ones_come(made, rollbook, tmp_path, prefix):
    made("a")
    assert rollbook("profile", "a", "--at", "1,2,4", "--prefix", prefix, "-o", "p.jsonl").returncode == 0
    rows = read_lines(tmp_path / "p.jsonl")
    assert f"{prefix}pass@4" in rows[0]
    write_rows(tmp_path / "p.jsonl", [row | {"mine": 1} for row in rows])
    made("again", {task: given[:2] for task, given in A.items()}, "Quiz", "--data", "p.jsonl")
    assert rollbook("profile", "again", "-o", "q.jsonl").returncode == 0
    row = read_lines(tmp_path / "q.jsonl")[0]
    assert (row["n"], row["mine"], row["level"], "pass@2" in row, "pass@4" in row) == (2, 1, 0, True, False)
    assert not [name for name in row if name.startswith("run_")]
    write_rows(tmp_path / "p.jsonl", [row | {f"{prefix}maj@3": 1} for row in rows])
    made("own", A, "Quiz", "--data", "p.jsonl")
    refused = rollbook("profile", "own", "--at", "3", "--prefix", prefix, "-o", "r.jsonl")
    assert f"already has a field '{prefix}maj@3'" in refused.stderr


def test_rows_with_a_null_answer_or_a_field_named_profile_can_be_profiled(made, rollbook, tmp_path):
    write_rows(tmp_path / "own.jsonl", [row | {"answer": None, "profile": {"run": "mine"}} for row in asked()])
    made("own", A, "Quiz", "--data", "own.jsonl")
    refused = rollbook("curate", "own", "-o", "n.jsonl")
    assert "'profile'" in refused.stderr
    assert "--prefix run_" in refused.stderr
    assert rollbook("curate", "own", "--prefix", "run_", "--keep", "run_n == 4", "-o", "n.jsonl").returncode == 0
    rows = read_lines(tmp_path / "n.jsonl")
    assert [(row["answer"], row["profile"]) for row in rows] == [(None, {"run": "mine"})] * 3
    assert rows[0]["run_profile"]["columns"][0] == "run_n"


def test_a_profile_says_from_what_reward_a_rollout_passed(made, rollbook, tmp_path):
    made("g", {"q0": ["1", "3"], "q1": ["10", "6"], "q2": ["0", "0"]}, "Graded")
    rollbook("profile", "g", "--threshold", "0.3", "-o", "p.jsonl")
    assert read_lines(tmp_path / "p.jsonl")[0]["profile"]["threshold"] == 0.3
    made("again", {"q0": ["1", "3"], "q1": ["10", "6"], "q2": ["0", "0"]}, "Graded", "--data", "p.jsonl")
    rollbook("profile", "again", "-o", "q.jsonl")
    row = read_lines(tmp_path / "q.jsonl")[0]
    assert ("threshold" in row["profile"], row["n"]) == (False, 2)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_curate_reads_every_kind_of_profile(made, rollbook, tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    given = A | {"q0": ["0", "0", "=1+1", "=1+1"], "q2": ["007", "007", "007", "5"]}
    made("a", given)
    rollbook("profile", "a", "-o", "p.jsonl", "--at", "1,4,8")
    rollbook("profile", "a", "-o", f"p.{ending}", "--at", "1,4,8")
    for source in ("p.jsonl", f"p.{ending}"):
        done = rollbook(
            "curate", source, "--keep", "n >= 4 and not pass_8 > 0 or level >= 0", "-o", f"{source}.next.jsonl"
        )
        assert done.returncode == 0, done.stderr
    first, second = (read_lines(tmp_path / f"{source}.next.jsonl") for source in ("p.jsonl", f"p.{ending}"))
    assert second == first
    assert [row["majority"] for row in first] == ["0", "5", "007"]


def test_a_parquet_profile_keeps_the_kinds_of_the_tasks_own_fields(made, rollbook, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    more = [(1, 0.5, True, "x", 1), (2, 1, False, "7", "y"), (3, 1.5, None, "z", [2])]
    rows = [
        row | {"size": size, "share": share, "odd": odd, "word": word, "mixed": mixed}
        for row, (size, share, odd, word, mixed) in zip(asked(), more, strict=True)
    ]
    write_rows(tmp_path / "own.jsonl", rows)
    made("own", A, "Quiz", "--data", "own.jsonl")
    assert rollbook("profile", "own", "-o", "p.parquet").returncode == 0
    table = parquet.read_table(tmp_path / "p.parquet")
    expected = {
        "size": "int64",
        "share": "double",
        "odd": "bool",
        "word": "string",
        "mixed": "string",
        "n": "int64",
        "mean": "double",
    }
    assert {name: str(table.schema.field(name).type) for name in expected} == expected
    assert table.column("share").to_pylist() == [0.5, 1.0, 1.5]
    assert table.column("mixed").to_pylist() == ["1", "y", "[2]"]


def test_curate_never_writes_over_what_it_reads(made, rollbook, tmp_path):
    made("a")
    rollbook("profile", "a", "-o", "p.jsonl")
    before = (tmp_path / "p.jsonl").read_bytes()
    refused = rollbook("curate", "p.jsonl", "--keep", "mean > 0.5", "-o", tmp_path / "p.jsonl")
    assert (refused.returncode, (tmp_path / "p.jsonl").read_bytes()) == (2, before)
    assert "this is the input file; choose another file" in refused.stderr
