"""Several models with --each: one run directory each, a leaderboard, and what happens when one of them cannot run."""

import json
import signal

import pytest

from support.alive import eventually
from support.commands import Served

TASKS = 12
SUMS = f"""
from rollbook import Environment, Task

class Sums(Environment):
    def tasks(self):
        for i in range({TASKS}):
            yield Task(id=f"sum-{{i}}", prompt=f"What is {{i}} + {{i}}?", answer=str(2 * i))

    def verify(self, task, rollout):
        return rollout.text == task.answer
"""
CLOSED = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def sums_file(tmp_path):
    (tmp_path / "sums.py").write_text(SUMS)


@pytest.fixture
def script(tmp_path):
    """Write a script that answers all but the first `wrong` sums rightly; gives its target."""

    def write(name, wrong):
        lines = [{"task": f"sum-{i}", "answer": str(2 * i) if i >= wrong else "?"} for i in range(TASKS)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return f"scripted:{name}.jsonl"

    return write


@pytest.fixture
def two(rollbook, script):
    """`rollbook run --each` of a poor and a good model into `both`."""
    targets = "-m", script("poor", 9), "-m", script("good", 1)
    return lambda *more: rollbook("run", "sums.py:Sums", *targets, "--each", "-k", 2, "-o", "both", *more)


def journal_bytes(run):
    return {path.name: path.read_bytes() for path in sorted((run / "journals").iterdir())}


def test_the_leaderboard_has_a_run_for_each_model_and_the_differences_that_compare_computes(two, rollbook, tmp_path):
    done = two()
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if ".jsonl" in line]
    assert [row[:2] for row in rows] == [["good.jsonl", "good"], ["poor.jsonl", "poor"]]  # the best first
    board = json.loads(rollbook("report", "both", "--json").stdout)
    assert json.loads((tmp_path / "both" / "leaderboard.json").read_text()) == board
    poor = board["rows"][1]
    compared = json.loads(rollbook("compare", "both/good", "both/poor", "--json").stdout)["comparison"]
    assert (board["reference"], poor["differences"]) == ("good", compared["metrics"])
    assert poor["p"] == compared["permutation_p"] < 0.05
    assert poor["differences"]["mean"]["difference"] == pytest.approx(-8 / 12)
    assert board["rows"][0]["differences"] == {}


def test_every_model_gets_the_same_tasks_and_the_same_seeds(two, tmp_path):
    two()
    tasks = {(tmp_path / "both" / name / "tasks.jsonl").read_bytes() for name in ("good", "poor")}
    assert len(tasks) == 1
    seeds = [
        sorted(
            (line["task"], line["sample"], line["seed"])
            for path in (tmp_path / "both" / name / "journals").glob("*.jsonl")
            for line in map(json.loads, path.read_text().splitlines())
        )
        for name in ("good", "poor")
    ]
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) == 2 * TASKS


def test_without_each_several_addresses_are_replicas_of_one_model(rollbook, endpoint, tmp_path):
    done = rollbook("run", "sums.py:Sums", "-m", endpoint, "-m", endpoint, "-o", "one")
    assert "given twice; each replica has its own URL" in done.stderr
    assert not (tmp_path / "one").exists()


def test_the_same_command_again_repeats_nothing_and_takes_another_model(two, rollbook, script, tmp_path):
    two()
    before = {name: journal_bytes(tmp_path / "both" / name) for name in ("good", "poor")}
    done = two("-m", script("middle", 4))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nothing is left to do") == 2
    assert [row["name"] for row in json.loads(rollbook("report", "both", "--json").stdout)["rows"]] == [
        *("good", "middle", "poor")
    ]
    assert {name: journal_bytes(tmp_path / "both" / name) for name in ("good", "poor")} == before


def test_another_meaning_is_refused_in_the_same_folder(two):
    two()
    for options, words in (
        (("-k", 3), "samples was 2 and is 3 now; use the same options, or another --out"),
        (("--temperature", 0.5), "sampling was"),
        (("-n", 3), "limit was not given and is 3 now"),
    ):
        done = two(*options)
        assert done.returncode == 2
        assert words in done.stderr.splitlines()[-1]


def test_one_endpoint_that_is_down_does_not_lose_the_results_of_the_others(rollbook, script, tmp_path):
    targets = "-m", script("good", 1), "-m", CLOSED, "-m", script("poor", 9)
    done = rollbook("run", "sums.py:Sums", *targets, "--each", "-o", "both")
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert last.startswith("rollbook: 2 of 3 models are complete; 127.0.0.1-9: http://127.0.0.1:9: connection refused")
    assert last.endswith("try again: rollbook resume both")
    assert "Traceback" not in done.stderr
    rows = json.loads((tmp_path / "both" / "leaderboard.json").read_text())["rows"]
    assert [(row["name"], row["scored"]) for row in rows] == [("good", 12), ("poor", 12), ("127.0.0.1-9", 0)]
    assert "connection refused" in rows[2]["problem"]
    assert rows[2]["mean"] is None  # no score is not a score of 0
    again = rollbook("resume", "both")
    assert again.returncode == 3
    assert again.stderr.count("nothing is left to do") == 2


@pytest.fixture
def endpoints():
    """Two endpoints as processes, the second a slow one."""
    started = [Served("--mode", "ok"), Served("--mode", "slow", "--delay-s", "0.3")]
    yield started
    for each in started:
        each.kill()


@pytest.mark.parametrize("way", ["resume", "same command"])
def test_an_interrupt_in_the_second_model_is_resumed_and_the_first_is_not_repeated(commands, endpoints, way):
    first, second = endpoints
    words = "run", "sums.py:Sums", "-m", first.url, "-m", second.url, "--each", "-o", "both", "-c", "2"
    running = commands.start(*words)
    assert eventually(lambda: second.calls >= 4, 30)
    running.signal(signal.SIGINT)
    assert running.wait().code == 75, running.stderr
    assert running.complaint.endswith("the models that are finished are kept: rollbook resume both")
    asked, seeds = first.calls, second.seeds
    second.switch("ok")
    done = commands.run(*(("resume", "both") if way == "resume" else words), "--json")
    assert [row["scored"] for row in done.json["rows"]] == [TASKS, TASKS]
    assert first.calls == asked
    assert 0 < len(seeds) < TASKS  # it was interrupted in the middle


def test_a_mistake_that_is_the_same_for_all_models_is_raised_and_can_be_corrected(rollbook, script, tmp_path):
    targets = "-m", script("good", 1), "-m", script("poor", 9)
    done = rollbook("run", "sums.py:Smus", *targets, "--each", "-o", "both")
    assert done.returncode == 2
    assert "Smus" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "both").exists()
    assert rollbook("run", "sums.py:Sums", *targets, "--each", "-o", "both").returncode == 0


def test_a_folder_that_cannot_be_written_is_one_line(rollbook, script, tmp_path):
    (tmp_path / "file").write_text("")
    targets = "-m", script("good", 1), "-m", script("poor", 9)
    done = rollbook("run", "sums.py:Sums", *targets, "--each", "-o", "file/both")
    assert done.returncode == 2
    assert done.stderr.startswith("rollbook: ")
    assert "file/both" in done.stderr


def test_a_file_lists_models_with_options_of_their_own(rollbook, script, tmp_path):
    script("good", 1), script("poor", 9)
    (tmp_path / "models.yaml").write_text(
        "environment: sums.py:Sums\nsamples: 2\nout: both\nmodels:\n  - scripted:good.jsonl\n"
        '  - {model: scripted:poor.jsonl, name: cold, temperature: 0, price: "in=1,out=2"}\n'
    )
    done = rollbook("run", "--config", "models.yaml", "--json")
    assert done.returncode == 0, done.stderr
    assert [(row["name"], row["cost"]) for row in json.loads(done.stdout)["rows"]] == [("good", None), ("cold", 0.0)]
    manifest = json.loads((tmp_path / "both" / "cold" / "run.json").read_text())
    assert manifest["sampling"]["temperature"] == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run sums.py:Sums -m scripted:a --each", "--each: name at least two models"),
        ("run sums.py:Sums -m scripted:a -m scripted:a --each", "-m scripted:a: given twice"),
        ("run sums.py:Sums -m scripted:a -m http://ann:hush@host --each", "no user or password in the URL"),
        ("run sums.py:Sums -m a/b -m c/d --each --model-name x", "--model-name x: --each runs several models"),
        ("run sums.py:Sums -m scripted:a -m scripted:b --each --on ray", "--each runs one model after another"),
        ("run sums.py:Sums --config bad.yaml", "bad.yaml:1: models, number 2: samples is no option of one model"),
        ("run sums.py:Sums --config none.yaml", "none.yaml:1: models, number 2: it names no model; write model:"),
        ("run sums.py:Sums --config name.yaml", "name.yaml:1: models, number 1: name ../a: write letters"),
        ("run sums.py:Sums --config good.yaml --save-config new.yaml", "--save-config: writes no `models`; copy"),
        ("run sums.py:Sums --config good.yaml -m scripted:a", "the file of --config has `models`; give one of them"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(rollbook, tmp_path, line, words):
    (tmp_path / "bad.yaml").write_text("models: [openai/a, {model: openai/b, samples: 3}]\n")
    (tmp_path / "none.yaml").write_text("models: [openai/a, {name: b}]\n")
    (tmp_path / "name.yaml").write_text("models: [{model: openai/b, name: ../a}]\n")
    (tmp_path / "good.yaml").write_text("models: [scripted:a, scripted:b]\n")
    (tmp_path / "a").write_text('{"task": "sum-0", "answer": "0"}\n')
    done = rollbook(*line.split(), "-o", "both")
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "both").exists()
    assert not (tmp_path / "new.yaml").exists()
    assert "hush" not in done.stderr


def count_states(rollbook):
    models = json.loads(rollbook("status", "both", "--json").stdout)["models"]
    return {name: status and (status["requested"], status["scored"]) for name, status in models.items()}


def test_a_folder_is_extended_and_its_status_has_a_row_for_each_model(two, rollbook, script, tmp_path):
    assert two().returncode == 0
    before = journal_bytes(tmp_path / "both" / "good")
    extended = rollbook("extend", "both", "-k", 3)
    assert extended.returncode == 0, extended.stderr
    assert "36/36" in extended.stdout
    assert count_states(rollbook) == {"poor": (36, 36), "good": (36, 36)}
    assert all(journal_bytes(tmp_path / "both" / "good")[name] == data for name, data in before.items())
    shown = rollbook("status", "both").stdout.splitlines()
    assert shown[1].split()[:4] == ["model", "state", "requested", "scored"]
    assert [line.split()[0] for line in shown[2:]] == ["poor", "good"]
    again = rollbook("extend", "both", "-k", 3)
    assert (again.returncode, again.stderr.strip().count("\n")) == (2, 0)
    assert "both has 3 samples of every task already: give more than that with -k" in again.stderr
    more = rollbook(
        "run", "sums.py:Sums", "-m", script("third", 0), "-m", script("good", 1), "--each", "-k", 3, "-o", "both"
    )
    assert more.returncode == 0, more.stderr
    assert count_states(rollbook)["third"] == (36, 36)


def test_resume_goes_on_where_an_extension_was_interrupted(two, rollbook, tmp_path):
    assert two().returncode == 0
    models = json.loads((tmp_path / "both" / "models.json").read_text())
    for model in models["models"]:  # as it is after a kill before the first rollout
        model["extended_to"] = model["options"]["samples"] = 4
    (tmp_path / "both" / "models.json").write_text(json.dumps(models))
    assert rollbook("resume", "both").returncode == 0
    assert count_states(rollbook) == {"poor": (48, 48), "good": (48, 48)}


@pytest.mark.parametrize("delete", [True, False])
def test_a_model_is_removed_from_a_folder_and_its_run_only_where_that_is_said(two, rollbook, script, tmp_path, delete):
    assert two().returncode == 0
    done = rollbook("remove", "both", "poor", *(["--delete"] if delete else []))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both" / "poor" / "run.json").exists() != delete
    board = json.loads(rollbook("report", "both", "--json").stdout)
    assert [row["name"] for row in board["rows"]] == ["good"]
    assert json.loads((tmp_path / "both" / "leaderboard.json").read_text()) == board
    assert count_states(rollbook) == {"good": (24, 24)}
    assert two().returncode == 0, "it can be added again"
    assert count_states(rollbook) == {"good": (24, 24), "poor": (24, 24)}


def test_mistakes_with_a_folder_are_one_line(two, rollbook, tmp_path):
    assert two().returncode == 0
    expected = {
        ("remove", "both", "purr"): "both has no model purr; it has poor, good",
        ("remove", "both", "good", "poor"): "both would have no model left: delete the folder instead",
        ("remove", "both/good", "poor"): "both/good is not a folder of run --each: it has no models.json",
        ("remove", "nowhere", "poor"): "nowhere is not a folder of run --each",
        ("extend", "both", "-k", 4, "-m", CLOSED): "-m: both has several models",
        ("extend", "both", "-k", 4, "--on", "slurm"): "continued on this machine; leave the cluster out",
    }
    before = (tmp_path / "both" / "models.json").read_bytes()
    for words, line in expected.items():
        done = rollbook(*words)
        assert done.returncode == 2, words
        assert line in done.stderr
        assert done.stderr.strip().count("\n") == 0
    assert (tmp_path / "both" / "models.json").read_bytes() == before
