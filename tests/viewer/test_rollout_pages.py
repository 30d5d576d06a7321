import shlex

import pytest

from rollbook.core import decode
from rollbook.errors import UsageError
from rollbook.tokens import merge
from rollbook.viewer.rollout_pages import MAX_TOKENS, make_rollout_page, make_token_page
from rollbook.viewer.run_cache import CachedRun
from rollbook.viewer.vocabulary import Vocabulary
from support.books import edit_journal
from support.sample_runs import Pen, make, rollout


def test_the_line_is_the_journals_own(baseline):
    page = make_rollout_page(baseline, 3, 0, None)
    place = baseline.located.find(3, 0)
    assert page["raw"].encode() == baseline.located.line(place)
    assert page["task"] == {"id": "area-3", "env": "Calculus", "asked": 2}


def test_the_replay_command_asks_for_this_rollout_with_its_seed(baseline):
    words = shlex.split(make_rollout_page(baseline, 3, 1, None)["replay"])
    assert words[:3] == ["rollbook", "run", "calculus.py:Calculus"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert (given["--task"], given["--sample"], given["--seed"]) == ("area-3", "1", "7")
    assert (given["--temperature"], given["-m"]) == ("0.7", "http://localhost:8000/v1")


def test_a_number_is_as_it_was_written(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=1, samples=1))
    pen.score(rollout(pen.book, 0, 0))
    assert edit_journal(pen.scored_file, '"by rule"', "12345678901234567891") == 1
    page = make_rollout_page(CachedRun(tmp_path / "run").take_snapshot(), 0, 0, None)
    assert page["raw"].encode() + b"\n" == pen.scored_file.read_bytes()
    assert "12345678901234567891" in page["raw"]


@pytest.fixture
def tried(tmp_path):
    pen = Pen(make(tmp_path / "run", tasks=2, samples=2))
    for attempt in (1, 2):
        pen.fail(rollout(pen.book, 0, 0, attempt=attempt, failure="model_timeout"), attempt == 2)
    pen.fail(rollout(pen.book, 1, 0, failure="environment_error"), False)
    pen.score(rollout(pen.book, 1, 0, attempt=2))
    return CachedRun(tmp_path / "run").take_snapshot()


def test_a_rollout_shows_the_tries_that_failed_before(tried):
    page = make_rollout_page(tried, 1, 0, None)
    assert decode(page["raw"])["status"] == "scored"
    assert [each["failure"].kind for each in page["tries"]] == ["environment_error"]
    assert decode(make_rollout_page(tried, 1, 0, 0)["raw"])["status"] == "failed"


def test_a_failed_rollout_shows_its_last_try_and_has_no_reward(tried):
    line = decode(make_rollout_page(tried, 0, 0, None)["raw"])
    assert (line["status"], line["attempt"], "reward" in line) == ("failed", 2, False)


def test_a_pending_rollout_has_no_line(tried):
    assert make_rollout_page(tried, 0, 1, None)["raw"] is None
    with pytest.raises(UsageError, match="has not run yet"):
        make_token_page(tried, 0, 1, None, 0, 0)


def test_what_was_not_asked_for_is_refused(tried):
    with pytest.raises(UsageError, match="was not requested"):
        make_rollout_page(tried, 0, 9, None)
    with pytest.raises(UsageError, match="2 failed tries"):
        make_rollout_page(tried, 0, 0, 2)


def test_tokens_are_those_a_trainer_gets_with_their_forks(baseline):
    played = rollout(baseline.book, 6, 0)
    page = make_token_page(baseline, 6, 0, None, 1, 0)
    assert [each["fork"] is None for each in page["sequences"]] == [True, False]
    assert len(merge(played.turns)) == 2
    assert len(page["ids"]) == len(page["mask"]) == len(page["logprobs"]) == page["sequences"][1]["tokens"]
    assert sum(page["mask"]) == page["sequences"][1]["trained"]
    assert all(
        (logprob is None) == (not trained) for logprob, trained in zip(page["logprobs"], page["mask"], strict=True)
    )


def test_a_page_of_tokens_is_bounded(baseline):
    page = make_token_page(baseline, 6, 0, None, 0, 10)
    assert page["offset"] == 10
    assert len(page["ids"]) == min(MAX_TOKENS, page["sequences"][0]["tokens"] - 10)
    with pytest.raises(UsageError, match="2 sequences"):
        make_token_page(baseline, 6, 0, None, 2, 0)


def test_tokens_that_were_not_recorded_are_not_guessed(tmp_path):
    from support.books import make_book, scored

    book = make_book(tmp_path / "run")
    Pen(book).score(scored(book, 0, 0))
    with pytest.raises(UsageError, match="never guessed"):
        make_token_page(CachedRun(tmp_path / "run").take_snapshot(), 0, 0, None, 0, 0)


def test_with_a_tokenizer_tokens_have_their_text(runs, tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"one": 1, "two": 2}}}')
    snapshot = CachedRun(runs / "baseline", Vocabulary(tmp_path / "tokenizer.json")).take_snapshot()
    assert make_token_page(snapshot, 1, 0, None, 0, 0)["texts"][:3] == ["one", "two", None]


def test_without_one_they_have_none(baseline):
    assert make_token_page(baseline, 1, 0, None, 0, 0)["texts"] is None
