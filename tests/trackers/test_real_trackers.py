"""The real packages, read back with their own readers: `make test-trackers`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rollbook
from support.commands import Commands, Process
from support.sums import write_script, write_sums

LIMIT_S = 180.0
"""Importing MLflow takes long on a machine with other work."""


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    started = Commands(tmp_path)
    yield started
    assert started.nothing_left()
    started.close()


def run_logged(commands: Commands, name: str, **environ: str) -> None:
    """Run sums, then two more samples of each, both logged to the same run of a tracker."""
    folder = commands.folder
    words = ["run", write_sums(folder), "-m", write_script(folder, delay_s=0.1), "-k", 2, "-c", 4, "-o", "run"]
    finish(commands.python("-m", "rollbook", *words, "--log", name, **environ), name)
    finish(commands.python("-m", "rollbook", "extend", "run", "-k", 4, "--log", name, **environ), name)


def finish(command: Process, name: str) -> None:
    """Wait for a command; nothing may be reported of the tracker, except that it is waited for."""
    command.wait(LIMIT_S)
    assert command.code == 0, command.stderr
    told = [line for line in command.stderr.splitlines() if name in line and not line.startswith("waiting for")]
    assert told == []


def read_scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read the scalars of TensorBoard's event files with its own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def read_texts(folder: Path) -> dict[str, str]:
    """Read the last text of every tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {tag: reader.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in reader.Tags()["tensors"]}


def test_tensorboard_reads_scalars_settings_and_tables(commands: Commands, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_logged(commands, "tensorboard")
    assert len([*(tmp_path / "run" / "tensorboard").iterdir()]) == 2
    scalars, texts = read_scalars(tmp_path / "run" / "tensorboard"), read_texts(tmp_path / "run" / "tensorboard")
    assert scalars["scored"][-1] == (40, 40.0)
    assert scalars["final/scored"] == [(20, 20.0), (40, 40.0)]
    assert scalars["mean_reward"][-1][1] == pytest.approx(0.8)
    assert {"tokens/prompt", "rollouts_per_s", "failed"} <= set(scalars)
    assert '"samples": 2' in texts["settings"]
    assert "| sum-9 |" in texts["tasks"]
    assert "What is 9 + 9?" in texts["samples"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the database toolkit, about MLflow's own code
def test_mlflow_has_params_metrics_and_tables_of_one_run(commands: Commands, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    run_logged(commands, "mlflow", MLFLOW_TRACKING_URI=store, MLFLOW_EXPERIMENT_NAME="sums")
    from mlflow import MlflowClient

    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("sums")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    assert (found.info.run_name, found.info.status) == ("run", "FINISHED")
    assert found.info.run_id == json.loads((tmp_path / "run/trackers/mlflow.json").read_text())["id"]
    assert (found.data.params["samples"], found.data.params["sampling.temperature"]) == ("2", "1.0")
    assert found.data.metrics["final/scored"] == found.data.metrics["scored"] == 40
    assert found.data.metrics["final/pass_at_1"] == pytest.approx(0.8)
    assert client.get_metric_history(found.info.run_id, "scored")[-1].step == 40
    tasks, samples = (read_mlflow_table(client, found.info.run_id, name) for name in ("tasks.json", "samples.json"))
    assert [row[0] for row in tasks["data"]] == [f"sum-{i}" for i in range(10)]
    assert len(samples["data"]) == 20  # of the second start
    assert json.loads(found.data.tags["mlflow.loggedArtifacts"])[0]["path"] == "tasks.json"


def read_mlflow_table(client: Any, run_id: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(client.download_artifacts(run_id, name)).read_text())
    return found


def test_wandb_offline_has_config_history_summary_and_tables_of_one_run(commands: Commands, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_logged(commands, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    files = sorted((tmp_path / "wandb").glob("offline-run-*/run-*.wandb"))
    tracker_id = json.loads((tmp_path / "run/trackers/wandb.json").read_text())["id"]
    assert {path.stem for path in files} == {f"run-{tracker_id}"}
    first, second = map(read_wandb, files)
    assert (first["project"], first["name"]) == ("rollbook", "run")
    assert first["config"]["samples"] == 2
    assert "sums_env.py:Sums" in first["config"]["environments"]["Sums"]["spec"]
    assert [row["scored"] for row in first["history"] if "scored" in row][-1] == 20
    assert [row["rollouts"] for row in second["history"] if "rollouts" in row][-1] == 40
    assert second["summary"]["final/scored"] == 40
    assert second["summary"]["state"] == "finished"
    assert second["exit_code"] == 0
    tables = {
        path.name.partition("_")[0]: json.loads(path.read_text()) for path in files[1].parent.rglob("*.table.json")
    }
    assert [row[0] for row in tables["tasks"]["data"]] == [f"sum-{i}" for i in range(10)]
    assert len(tables["samples"]["data"]) == 20


def read_wandb(path: Path) -> dict[str, Any]:
    """Read a .wandb file: the records of one run, by the package's own messages."""
    from wandb.proto import wandb_internal_pb2

    found: dict[str, Any] = {"history": [], "summary": {}, "config": {}}
    for data in read_log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            found |= {"project": record.run.project, "name": record.run.display_name}
            found["config"] |= decode_items(record.run.config.update)
        elif record.HasField("history"):
            found["history"].append(decode_items(record.history.item))
        elif record.HasField("summary"):
            found["summary"] |= decode_items(record.summary.update)
        elif record.HasField("exit"):
            found["exit_code"] = record.exit.exit_code
    return found


def read_log_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log in LevelDB's format, which the package itself reads with a program in Go.

    Blocks of 32 KiB hold pieces with a header of 7 bytes: checksum, length, and whether it is a whole record, the
    first, a middle or the last piece of one. The file begins with 7 bytes of its own.
    """
    at, record = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # no room for a header: the rest of the block is empty
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (WHOLE, LAST):
            yield record
            record = b""


BLOCK, WHOLE, LAST = 1 << 15, 1, 4


def decode_items(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


UNREACHABLE = """
import sys
import rollbook
from rollbook.engine import tracking

tracking.TRACKER_END_S = 15.0
result = rollbook.run(sys.argv[1], sys.argv[2], out="run", log=["wandb"])
print(result.report.scored)
"""


def test_wandb_without_a_connection_neither_delays_nor_fails_the_run(commands: Commands, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    words = [write_sums(tmp_path), write_script(tmp_path, delay_s=0.2)]
    key = "0123456789" * 4
    unreachable = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": key, "WANDB_DIR": str(tmp_path)}
    began = time.monotonic()
    done = commands.python("-c", UNREACHABLE, *words, **unreachable).wait(LIMIT_S)
    assert done.stdout == "10\n", done.stderr
    assert time.monotonic() - began < 120
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("wandb")]
    assert "the run" in line
    assert key not in done.stderr
    report = rollbook.load(tmp_path / "run").report
    assert report.scored == 10
    assert key not in "".join(path.read_text() for path in (tmp_path / "run").rglob("*") if is_ours(path))


def is_ours(path: Path) -> bool:
    return path.is_file() and path.suffix in (".json", ".jsonl", ".log")
