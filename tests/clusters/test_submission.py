"""Submitting, to programs that only pretend: what they are asked, and what is kept of their answers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from fakeslurm import Fakes

from rollbook.clusters.job_files import last_submission_number, read_jobs, read_order, report_bad_node
from support.commands import Commands


def test_workers_and_a_report_are_handed_in_and_their_ids_kept(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    done = commands.run("submit", *sums, "--workers", 4, "-o", "run")
    assert done.code == 0, done.stderr
    run = tmp_path / "run"
    assert done.stdout.splitlines() == [str(run), "workers 101 (array of 4)", "report 102"]
    assert f"next: rollbook status {run}" in done.stderr
    workers, report = fakes.calls("sbatch")
    assert workers == ["--parsable", "--array=0-3", f"{run}/jobs/0001/workers.sh"]
    assert report == ["--parsable", "--dependency=afterany:101", f"{run}/jobs/0001/report.sh"]
    kept = read_jobs(run)
    assert [(job.kind, job.job, job.count) for job in kept] == [("workers", "101", 4), ("report", "102", 1)]
    assert kept[0].script == hashlib.sha256((run / "jobs/0001/workers.sh").read_bytes()).hexdigest()
    assert read_order(run, last_submission_number(run)).workers == 4
    assert json.loads((run / "rounds/0001.json").read_text())["settings"]["workers"] == 4


def test_a_dry_run_shows_the_scripts_and_leaves_nothing(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    done = commands.run("submit", *sums, "--workers", 4, "-o", "run", "--dry-run")
    assert done.code == 0, done.stderr
    assert "#SBATCH --array=0-3" in done.stdout
    assert f"-m rollbook report {tmp_path}/run" in done.stdout
    shown = commands.run("submit", *sums, "--workers", 4, "-o", "run", "--dry-run", "--json").json["scripts"]
    assert "#SBATCH --array=0-3" in shown[f"{tmp_path}/run/jobs/0001/workers.sh"]
    assert not (tmp_path / "run").exists()
    assert fakes.calls("sbatch") == []


def test_arrays_are_no_longer_than_the_cluster_allows(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    fakes.say(config="MaxArraySize = 10")
    assert commands.run("submit", *sums, "--workers", 25, "-o", "run").code == 0
    arrays = [words[1] for words in fakes.calls("sbatch")[:-1]]
    assert arrays == ["--array=0-9", "--array=0-9", "--array=0-4"]
    assert "--dependency=afterany:101:102:103" in fakes.calls("sbatch")[-1]
    assert [job.first for job in read_jobs(tmp_path / "run")][:3] == [0, 10, 20]


def test_a_submit_limit_means_fewer_workers_and_is_said(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    fakes.say(limit=20)
    done = commands.run("submit", *sums, "--workers", 64, "-o", "run")
    assert done.code == 0, done.stderr
    assert "20 of 64 workers were submitted: the cluster's submit limit allows no more" in done.stderr
    assert "no report job, by the cluster's submit limit: afterwards, rollbook report" in done.stderr
    assert sum(job.count for job in read_jobs(tmp_path / "run")) == 20


def test_no_worker_at_all_is_an_error_whatever_else_was_taken(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    fakes.say(limit=1)
    done = commands.run("submit", sums[0], *VLLM, "--shared-servers", 1, "--workers", 2, "-o", "run")
    assert done.code == 2
    assert "submit limit" in done.complaint
    assert "101 was submitted, the plan stays: rollbook resume" in done.complaint


def test_what_the_login_shell_says_of_jobs_does_not_reach_sbatch(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    sbatch = fakes.folder / "sbatch"
    noted = f"open({str(tmp_path / 'environ')!r}, 'w').write(repr(sorted(os.environ)))\n"
    sbatch.write_text(sbatch.read_text() + noted)
    theirs = {"SBATCH_PARTITION": "urgent", "SLURM_RESTART_COUNT": "30", "SLURM_CONF": "/c", "HF_TOKEN": "kept"}
    done = commands.run("submit", *sums, "-o", "run", **theirs)
    assert done.code == 0, done.stderr
    seen = (tmp_path / "environ").read_text()
    assert ("SBATCH_" in seen, "RESTART" in seen, "SLURM_CONF" in seen, "HF_TOKEN" in seen) == (
        False,
        False,
        True,
        True,
    )


def test_nodes_are_forgiven_where_no_server_ever_ran(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    commands.run("submit", *sums, "--workers", 4, "-o", "run")
    for node in ("n1", "n1", "n2", "n2"):
        report_bad_node(tmp_path / "run", node, "no such command")
    fakes.say(squeue_error="slurm_load_jobs error: Invalid job id specified")
    again = commands.run("resume", "run")
    assert "these nodes are no longer excluded: n1, n2" in again.stderr
    assert "--exclude" not in (tmp_path / "run/jobs/0002/workers.sh").read_text()
    (tmp_path / "run/journals/w.1.jsonl").write_text("")
    for _ in range(2):
        report_bad_node(tmp_path / "run", "n2", "no GPU")
    assert commands.run("resume", "run").code == 0
    assert "#SBATCH --exclude=n2" in (tmp_path / "run/jobs/0003/workers.sh").read_text()


def test_a_cluster_that_cannot_be_read_stops_the_submit(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    fakes.say(config="nothing")
    assert "returns no MaxArraySize" in commands.run("submit", *sums, "-o", "run").complaint
    assert not (tmp_path / "run").exists()


def test_without_slurm_nothing_is_planned(commands: Commands, sums: list[str], tmp_path: Path) -> None:
    done = commands.run("submit", *sums, "-o", "run", PATH=str(tmp_path))
    assert done.complaint == "rollbook: scontrol: not found; go to a machine that can submit to Slurm"
    assert not (tmp_path / "run").exists()


def test_resume_submits_only_what_is_missing(commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path) -> None:
    commands.run("submit", *sums, "--workers", 4, "-o", "run")
    fakes.say(squeue="101|0|RUNNING|None|n1\n101|1|COMPLETED|None|n1\n101|2|FAILED|None|n1\n101|3|PENDING|x|\n")
    again = commands.run("resume", "run")
    assert again.stdout.splitlines()[1:] == ["workers 103 (array of 2)", "report 104"]
    fakes.say(squeue_error="slurm_load_jobs error: Unable to contact slurm controller")
    assert "Unable to contact" in commands.run("resume", "run").complaint
    fakes.say(squeue_error="slurm_load_jobs error: Invalid job id specified")
    anew = commands.run("resume", "run", "--workers", 2)
    assert anew.stdout.splitlines()[1:] == ["workers 105 (array of 2)", "report 106"]
    assert len(list((tmp_path / "run/rounds").glob("*.json"))) == 2
    assert read_order(tmp_path / "run", 2).workers == 4, "two more were submitted, four stay ordered"
    assert [job.first for job in read_jobs(tmp_path / "run") if job.kind == "workers"] == [0, 4, 6]


def test_resume_submits_servers_that_are_missing_though_workers_wait(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    commands.run("submit", sums[0], *VLLM, "--shared-servers", 2, "--workers", 2, "-o", "run")
    fakes.say(squeue="101|0|RUNNING|None|n1\n101|1|RUNNING|None|n1\n")
    assert "which is enough: nothing was submitted" in commands.run("resume", "run").stderr
    fakes.say(squeue="101|0|RUNNING|None|n1\n101|1|FAILED|None|n1\n")
    again = commands.run("resume", "run")
    assert [line.split()[0] for line in again.stdout.splitlines()[1:]] == ["servers", "workers", "report"]


def test_an_order_that_the_cluster_did_not_take_is_not_the_last(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    commands.run("submit", *sums, "--workers", 4, "-o", "run")
    (commands.folder / "bad.yaml").write_text("partition: nope\n")
    fakes.say(squeue_error="slurm_load_jobs error: Invalid job id specified", limit=0)
    assert commands.run("resume", "run", "--cluster", "bad.yaml").code == 2
    (commands.folder / "far.yaml").write_text("ssh: {host: login, path: /runs, python: /bin/python3}\n")
    fakes.say(squeue_error="slurm_load_jobs error: Invalid job id specified")
    assert "and its jobs are on this machine" in commands.run("resume", "run", "--cluster", "far.yaml").complaint
    assert commands.run("resume", "run").code == 0
    assert "nope" not in (tmp_path / "run/jobs/0002/workers.sh").read_text()


def test_a_run_that_was_only_planned_can_be_resumed_on_a_cluster(
    commands: Commands, fakes: Fakes, sums: list[str]
) -> None:
    commands.run("plan", *sums, "-o", "run")
    assert (
        "was never submitted: describe your cluster with --cluster"
        in commands.run("resume", "run", "--on", "slurm").complaint
    )
    (commands.folder / "c.yaml").write_text("partition: batch\nworkers: 3\n")
    done = commands.run("resume", "run", "--on", "slurm", "--cluster", "c.yaml")
    assert "workers 101 (array of 3)" in done.stdout


def test_samples_are_added_where_the_run_was_submitted(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    commands.run("submit", *sums, "--workers", 4, "-o", "run")
    fakes.say(squeue="101|0|RUNNING|None|n1\n")
    assert "extend it when they are done" in commands.run("extend", "run", "-k", 2).complaint
    fakes.say()
    done = commands.run("extend", "run", "-k", 2)
    assert done.stdout.splitlines()[1:] == ["workers 103 (array of 4)", "report 104"], done.stderr
    assert commands.run("status", "run", "--json").json["requested"] == 20
    assert "has 2 samples of every task already" in commands.run("extend", "run", "-k", 2).complaint
    here = commands.run("extend", "run", "-k", 3, "--on", "local", "--json")
    assert here.code == 0, here.stderr
    assert here.json["scored"] == 30


def test_a_submitted_run_can_be_finished_here(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    commands.run("submit", *sums, "--workers", 64, "-o", "run")
    done = commands.run("resume", "run", "--on", "local", "--json")
    assert (done.code, done.json["scored"]) == (0, 10), done.stderr


def test_status_cancel_and_what_the_queue_says(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    commands.run("submit", *sums, "--workers", 2, "-o", "run")
    fakes.say(squeue="101|0|RUNNING|None|n1\n101|1|PENDING|Resources|\n102|N/A|PENDING|Dependency|\n")
    shown = commands.run("status", "run")
    assert "workers  PENDING       1  Resources" in shown.stdout
    assert "workers  RUNNING       1  -" in shown.stdout
    assert commands.run("cancel", "run").stdout == "cancelled 3 jobs\n"
    assert fakes.calls("scancel") == [["101", "102"]]
    assert [job.job for job in read_jobs(tmp_path / "run") if job.kind == "cancelled"] == ["101", "102"]
    fakes.say(
        squeue_error="slurm_load_jobs error: Invalid job id specified", sacct="101_0|CANCELLED by 0\n101_1|FAILED\n"
    )
    jobs = commands.run("status", "run", "--json").json["jobs"]
    assert [(job["kind"], job["state"]) for job in jobs] == [
        ("report", "GONE"),
        ("workers", "CANCELLED"),
        ("workers", "FAILED"),
    ]
    fakes.say(squeue_error="slurm_load_jobs error: Unable to contact slurm controller")
    away = commands.run("status", "run")
    assert away.code == 0
    assert "the jobs cannot be seen from here" in away.stderr


def test_a_run_without_jobs_has_none_to_cancel(commands: Commands, fakes: Fakes, sums: list[str]) -> None:
    commands.run("run", *sums, "-o", "run")
    assert "no job was submitted for this run" in commands.run("cancel", "run").complaint
    assert "no worker has written a log" in commands.run("logs", "run").complaint


def test_the_values_of_secrets_are_nowhere(commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("secrets: [MY_TOKEN]\ncontainer: pyxis\nworker: {image_path: /a.sqsh}\n")
    words = ["submit", *sums, "--cluster", "c.yaml", "-o", "run"]
    assert "MY_TOKEN is not set here" in commands.run(*words).complaint
    assert commands.run(*words, MY_TOKEN="hush-hush-hush").code == 0
    said = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert b"--container-env=MY_TOKEN" in said
    assert b"hush" not in said
    assert "hush" not in json.dumps(fakes.calls("sbatch"))


def test_what_the_profile_says_of_a_run_holds_unless_it_is_typed(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("num_random_seeds: 4\nstarting_seed: 9\nnum_chunks: 3\n")
    commands.run("submit", *sums, "--cluster", "c.yaml", "-o", "a")
    commands.run("submit", *sums, "--cluster", "c.yaml", "-o", "b", "-k", 2, "--workers", 5, "--seed", 1)
    meant = [json.loads((tmp_path / name / "run.json").read_text()) for name in "ab"]
    assert [(each["samples"], each["seed"]) for each in meant] == [(4, 9), (2, 1)]
    assert [read_order(tmp_path / name, 1).workers for name in "ab"] == [3, 5]


VLLM = ["--serve", "vllm", "--model-path", "/m"]
SPREAD = [*VLLM, "--nodes-per-server", "2"]
COMMAND = ["--serve", "command", "--server-command", "a {port}", "--model-name", "m"]


def test_a_served_model_is_planned_under_its_name(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    options = ["--tensor-parallel", 2, "--gpus", 8, "--replicas", 4, "--server-arg=--max-model-len=8192"]
    done = commands.run("submit", sums[0], *VLLM, *options, "--model-name", "policy", "-o", "run")
    assert done.code == 0, done.stderr
    meant = json.loads((tmp_path / "run/run.json").read_text())
    assert (meant["model"]["name"], meant["model"]["kind"]) == ("policy", "chat")
    settings = json.loads((tmp_path / "run/rounds/0001.json").read_text())["settings"]
    assert (settings["urls"], settings["concurrency"]) == ([], 64)
    order = read_order(tmp_path / "run", 1)
    assert order.serve
    assert (order.serve.replicas, order.serve.tensor_parallel, order.serve.args) == (4, 2, ["--max-model-len=8192"])
    assert "#SBATCH --gpus-per-node=8" in (tmp_path / "run/jobs/0001/workers.sh").read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--on", "moon"], "--on moon: workers run on one of local, slurm, ray"),
        (["--address", "here:1"], "--address here:1: goes with --on ray"),
        (["--on", "local"], "--on local: there is no scheduler to submit to"),
        ([*VLLM, "-m", "http://localhost:1/v1"], "-m http://localhost:1/v1: --serve vllm serves the model itself"),
        (["--serve", "tgi"], "--serve tgi: known are vllm, sglang, command"),
        (["--serve", "vllm"], "--serve vllm: give the weights with --model-path"),
        (["--serve", "command", "--model-name", "m"], "give the command with --server-command"),
        (["--serve", "command", "--server-command", "a {port}"], "give the name of the model with --model-name"),
        (
            ["--serve", "command", "--server-command", "a", "--model-name", "m"],
            "write {port} where the server takes its port",
        ),
        (["--serve", "command", "--server-command", "a '", "--model-name", "m"], "No closing quotation"),
        (["--serve", "command", "--server-arg", "a"], "--server-arg: --serve command runs --server-command as it is"),
        ([*VLLM, "--server-command", "a"], "--server-command: --serve vllm makes the command itself"),
        (["--tensor-parallel", "8"], "--tensor-parallel: goes with --serve"),
        ([*VLLM, "--gpus", "8", "--tensor-parallel", "4", "--replicas", "3"], "the servers of one node take 12"),
        ([*VLLM, "--server-arg=--port=9"], "the server's command has --port already; leave it out"),
        ([*VLLM, "--server-arg=-tp=2"], "has -tp already; set it with --tensor-parallel"),
        ([*VLLM, "--server-arg=--api-key=sk-1"], "a key in a command is seen by everyone"),
        (["--pack", "nowhere"], "--pack nowhere: not a folder"),
        ([*SPREAD, "--tensor-parallel", "4", "--replicas", "2"], "--replicas 2 are servers on one node"),
        ([*SPREAD, "--tensor-parallel", "4", "--data-parallel", "2"], "--data-parallel is for one node"),
        ([*SPREAD, "--tensor-parallel", "3"], "--tensor-parallel 3 cannot be split evenly over them"),
        ([*SPREAD, "--tensor-parallel", "16", "--gpus", "4"], "the servers of one node take 8 (1 replicas x 16 tensor"),
        ([*COMMAND, "--nodes-per-server", "2"], "on several nodes, write {rank} where it takes its rank"),
        (["--nodes-per-server", "2"], "--nodes-per-server: goes with --serve"),
        (["--sandbox-package", "numpy"], "--sandbox-package numpy: goes with --with-sandbox"),
        (["--cluster", "none.yaml"], "none.yaml: No such file or directory"),
        (["--after", "none"], "none is not a run directory"),
    ],
)
def test_contradictions_are_refused_in_one_line(
    commands: Commands, fakes: Fakes, sums: list[str], words: list[str], why: str
) -> None:
    served = any(word in ("--serve", "-m") for word in words)
    done = commands.run("submit", *(sums[:1] if served else sums), *words, "-o", "run")
    assert done.code == 2
    assert why in done.complaint
    assert not (commands.folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--on", "slurm"], "run --on slurm: add --wait-jobs"),
        (["--wait-jobs"], "--wait-jobs: goes with --on slurm"),
        (["--cluster", "c.yaml"], "--cluster: goes with --on slurm"),
        (["--on", "local", "--serve", "vllm"], "--serve: goes with --on slurm"),
    ],
)
def test_run_takes_a_cluster_only_on_one(
    commands: Commands, fakes: Fakes, sums: list[str], words: list[str], why: str
) -> None:
    assert why in commands.run("run", *sums, *words, "-o", "run").complaint


def test_jobs_that_are_not_waited_for_have_nobody_who_logs_them(
    commands: Commands, fakes: Fakes, sums: list[str]
) -> None:
    assert commands.run("submit", *sums, "-o", "run").code == 0
    for words in (["resume", "run"], ["extend", "run", "-k", 9]):
        done = commands.run(*words, "--log", "wandb")
        assert done.code == 2
        assert "--log wandb: jobs on slurm work without this command" in done.complaint
    assert len(fakes.calls("sbatch")) == 2


def test_a_server_on_several_nodes_is_not_started_from_an_image(
    commands: Commands, fakes: Fakes, sums: list[str]
) -> None:
    (commands.folder / "c.yaml").write_text("container: pyxis\nworker: {image_path: /a.sqsh}\n")
    done = commands.run("submit", sums[0], *SPREAD, "--tensor-parallel", 2, "--cluster", "c.yaml", "-o", "run")
    assert "give the image to `server:` alone" in done.complaint


def test_what_is_ordered_beside_the_run_is_kept_for_the_nodes(
    commands: Commands, fakes: Fakes, sums: list[str], tmp_path: Path
) -> None:
    words = ["--with-sandbox", "--sandbox-package", "numpy", "--install", "-o", "run"]
    assert commands.run("submit", *sums, *words).code == 0
    order = read_order(tmp_path / "run", 1)
    assert (order.sandbox, order.sandbox_packages, order.install) == (True, ["numpy"], True)
    assert (tmp_path / "run/jobs/0001/install.py").exists()
    assert json.loads((tmp_path / "run/jobs/0001/install.json").read_text())["requirements"] is None


def test_on_local_is_what_run_does_anyway(commands: Commands, sums: list[str]) -> None:
    done = commands.run("run", *sums, "--on", "local", "-o", "run", "--json")
    assert (done.code, done.json["scored"]) == (0, 10), done.stderr


@pytest.mark.parametrize(
    ("out", "profile", "why"),
    [
        ("two\nlines", "", "a script cannot hold this name"),
        ("a:b", "container: pyxis\n", "cannot be mounted"),
        ("a\\b", "", "Slurm treats a backslash in log names as special"),
    ],
)
def test_a_folder_that_no_script_can_name_is_refused(
    out: str, profile: str, why: str, commands: Commands, fakes: Fakes, sums: list[str]
) -> None:
    (commands.folder / "c.yaml").write_text(profile or "partition: batch\n")
    done = commands.run("submit", *sums, "--cluster", "c.yaml", "-o", out)
    assert why in done.complaint
    assert not (commands.folder / out).exists()
