from types import SimpleNamespace

from rollbook.cli.run_display import suggest_commands
from support.sums import write_script, write_sums


def short(pending=0, **failed):
    return SimpleNamespace(cost=None, roles={}, pending=pending, failed=failed)


def test_infrastructure_failures_are_resumed():
    assert suggest_commands("a", short(model_timeout=3)) == ["try again: rollbook resume a"]
    assert suggest_commands("a", short(pending=1)) == ["try again: rollbook resume a"]


def test_data_failures_are_tried_again_only_by_name():
    assert suggest_commands("a", short(model_rejected=1, rollout_timeout=2)) == [
        "try again: rollbook resume a --retry model_rejected --retry rollout_timeout"
    ]


def test_what_a_remote_server_did_not_verify_is_played_again(monkeypatch):
    spec = SimpleNamespace(spec="http://127.0.0.1:9")
    book = SimpleNamespace(manifest=SimpleNamespace(environments={"far": spec}))
    monkeypatch.setattr("rollbook.cli.run_display.Book", lambda _: book)
    assert suggest_commands("a", short(verifier_error=1)) == ["try again: rollbook resume a --retry verifier_error"]
    spec.spec = "mine.py:Mine"
    (way,) = suggest_commands("a", short(verifier_error=1))
    assert way == "after fixing the verifier: rollbook reverify a --env mine.py:Mine --only failed"
    spec.spec = "harbor:task"
    _, other = suggest_commands("a", short(verifier_error=1))
    assert other == "tests that share the agent's container cannot run again: after fixing them, start a new run"


def test_a_later_round_counts_what_is_left_and_shows_no_mean_of_itself_alone(rollbook, tmp_path):
    first = rollbook("run", write_sums(tmp_path), "-m", write_script(tmp_path), "-o", "r").stderr
    assert "10 rollouts to do" in first
    assert "mean reward 0.800" in first
    later = rollbook("extend", "r", "-k", 3).stderr
    assert "20 rollouts to do" in later
    assert "scored 30/30" in later
    assert "mean reward" not in later
