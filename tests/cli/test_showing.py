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
