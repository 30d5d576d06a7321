"""`rollbook export`: CSV that others read, and datasets on the Hugging Face Hub by its own client."""

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rollbook as package
from rollbook.reports import hub_upload
from support.hub import TOKEN, Hub
from support.sums import SUMS, write_script, write_sums

TEXT = 'one, "two"\nthree'


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    scored = SUMS.replace(
        "        return rollout.text.strip().endswith(task.answer)",
        "        right = rollout.text.strip().endswith(task.answer)\n"
        "        texts = {'sum-0': 'one, \"two\"\\nthree', 'sum-1': '=1+1', 'sum-2': None}\n"
        "        parts = {'right': float(right)} | ({'late': 0.5} if task.id == 'sum-4' else {})\n"
        "        return Score(float(right), parts, texts.get(task.id, rollout.text))",
    )
    return package.run(write_sums(folder, scored), write_script(folder), out=folder / "run", samples=2).path


def test_csv_is_a_flat_table_that_a_reader_of_csv_gives_back(rollbook, run, tmp_path):
    done = rollbook("export", run, "--format", "csv", "-o", "rows.csv")
    assert done.stderr == "20 rollouts: rows.csv\n"
    raw = (tmp_path / "rows.csv").read_bytes().decode()
    assert raw.count("\r\n") == 21
    rows = list(csv.DictReader(io.StringIO(raw, newline="")))
    assert list(rows[0]) == [
        *("task", "sample", "env", "model", "seed", "reward", "answer", "expected", "prompt_tokens"),
        *("completion_tokens", "turns", "truncated", "seconds", "parts.late", "parts.right"),
    ]
    found = {(row["task"], row["sample"]): row for row in rows}
    assert len(found) == 20
    assert found["sum-0", "1"]["answer"] == TEXT
    assert found["sum-2", "0"]["answer"] == ""
    assert (found["sum-4", "0"]["parts.late"], found["sum-5", "0"]["parts.late"]) == ("0.5", "")
    assert (found["sum-5", "0"]["reward"], found["sum-5", "0"]["turns"]) == ("1.0", "1")


def test_text_that_a_spreadsheet_would_run_is_marked_as_text(rollbook, run, tmp_path):
    rollbook("export", run, "--format", "csv", "-o", "rows.csv", "--keep", "task == 'sum-1'")
    with open(tmp_path / "rows.csv", newline="") as file:
        assert {row["answer"] for row in csv.DictReader(file)} == {"'=1+1"}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")  # a store with a protocol of its own; LFS is what others have
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def export(tmp_path, *words):
    """Run the command in a process of its own: the client reads its variables once, when it is imported."""
    environ = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    command = [sys.executable, "-m", "rollbook", "export", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=120)
    assert TOKEN not in done.stdout + done.stderr
    return done


def test_a_run_becomes_a_dataset_with_a_card(hub, run, tmp_path):
    pytest.importorskip("huggingface_hub")
    parquet = pytest.importorskip("pyarrow.parquet")
    done = export(tmp_path, run, "--to", "hf://org/sums", "--keep", "reward >= 1", "--license", "cc-by-4.0")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    where = f"16 rollouts: {hub.url}/datasets/org/sums"
    assert done.stderr.splitlines() == [f"{where} (not exported: 4 not kept by 'reward >= 1')"]
    assert [each.get("visibility") or each.get("private") for each in hub.created] in (["private"], [True])
    files = hub.datasets["org/sums"]
    assert sorted(files) == ["README.md", "data/train-00000-of-00001.parquet"]
    table = parquet.read_table(io.BytesIO(files["data/train-00000-of-00001.parquet"]))
    assert (table.num_rows, set(table["reward"].to_pylist())) == (16, {1.0})
    assert table.column_names == list(hub_upload.COLUMN_NOTES)
    _, header, card = files["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(header)["license"] == "cc-by-4.0"
    assert yaml.safe_load(header)["configs"][0]["data_files"][0]["path"] == "data/train-*.parquet"
    for line in ("| environment | Sums |", "| rollouts scored | 20 |", "| rollouts in this dataset | 16, those with"):
        assert line in card
    assert hub.unknown == []
    assert not any(TOKEN.encode() in data for data in files.values())
    again = export(tmp_path, run, "--to", "hf://org/sums")
    assert again.returncode == 2
    assert "hf://org/sums: has data already: choose another name" in again.stderr


def test_a_big_run_is_several_files(run, tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(hub_upload, "SHARD_ROWS", 5)
    book = package.Book(run)
    for kept, files in ((20, 4), (7, 2), (0, 1)):
        rows = list(hub_upload.make_rows(book, "parquet", None, package.load(run).rollouts(tokens=True)))[:kept]
        shards, written = hub_upload._write_shards(tmp_path, iter(rows), "--to")
        assert (len(shards), written) == (files, kept)
    assert list(shards) == ["data/train-00000-of-00001.parquet"]


def test_a_dataset_without_rows_is_refused_before_anything_is_uploaded(hub, run, tmp_path):
    pytest.importorskip("huggingface_hub")
    done = export(tmp_path, run, "--to", "hf://org/sums", "--keep", "reward > 5")
    assert done.returncode == 2
    assert "--to hf://org/sums: --keep 'reward > 5' matches none of 20 scored rollouts" in done.stderr
    assert hub.datasets == {}


def test_a_hub_that_does_not_answer_is_named(run, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = export(tmp_path, run, "--to", "hf://org/sums")
    assert done.returncode == 2
    assert "--to hf://org/sums: " in done.stderr
    assert "127.0.0.1:9" in done.stderr


def test_a_token_that_the_hub_refuses_is_one_line(hub, run, tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    done = export(tmp_path, run, "--to", "hf://org/sums")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "401" in done.stderr
    assert "hf_another" not in done.stderr
    assert hub.datasets == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "hf://sums"], "write hf://ORG/NAME"),
        (["--to", "s3://org/sums"], "write hf://ORG/NAME"),
        (["--to", "hf://org/sums", "-o", "a.jsonl"], "give -o FILE or --to hf://ORG/NAME"),
        ([], "give -o FILE or --to hf://ORG/NAME"),
        (["-o", "a.jsonl", "--license", "mit"], "--license mit: goes with --to"),
        (["--to", "hf://org/sums", "--license", "a\nb: c"], "write the identifier of a license"),
        (["--to", "hf://org/sums", "--format", "csv"], "--to uploads Parquet files"),
        (["--to", "hf://org/sums"], "no token: set HF_TOKEN"),
    ],
)
def test_a_mistake_is_one_line(rollbook, run, words, said, monkeypatch, tmp_path):
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nobody"))
    done = rollbook("export", run, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_without_the_client_one_line_says_how_to_install_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(package.UsageError, match=r"pip install 'rollbook\[hf\]'"):
        hub_upload.upload_rollouts(run, "hf://org/sums")
