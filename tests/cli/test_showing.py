from types import SimpleNamespace

from rollbook.cli.showing import ways_on


def short(pending=0, **failed):
    return SimpleNamespace(pending=pending, failed=failed)


def test_what_the_infrastructure_lost_is_resumed():
    assert ways_on("a", short(model_timeout=3)) == ["try again: rollbook resume a"]
    assert ways_on("a", short(pending=1)) == ["try again: rollbook resume a"]


def test_what_the_data_broke_is_tried_again_only_by_name():
    assert ways_on("a", short(model_rejected=1, rollout_timeout=2)) == [
        "try again: rollbook resume a --retry model_rejected --retry rollout_timeout"
    ]


def test_what_a_remote_server_did_not_verify_is_played_again(monkeypatch):
    spec = SimpleNamespace(spec="http://127.0.0.1:9")
    book = SimpleNamespace(manifest=SimpleNamespace(environments={"far": spec}))
    monkeypatch.setattr("rollbook.cli.showing._book", lambda _: book)
    assert ways_on("a", short(verifier_error=1)) == ["try again: rollbook resume a --retry verifier_error"]
    spec.spec = "mine.py:Mine"
    (way,) = ways_on("a", short(verifier_error=1))
    assert way == "with the verifier mended: rollbook reverify a --env mine.py:Mine --only failed"
