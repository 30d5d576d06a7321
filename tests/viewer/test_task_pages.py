import pytest

from rollbook.book import BookDraft
from rollbook.core import make_part
from rollbook.viewer.run_cache import CachedRun
from rollbook.viewer.task_pages import count_shared_prefix, join_model_text, make_task_page, make_task_rows
from support.sample_runs import Pen, make, rollout


def test_a_page_holds_only_what_it_shows(baseline):
    page = make_task_rows(baseline, "", "mean", True, 2, 3)
    assert (page["tasks"], page["kept"], len(page["rows"])) == (12, 12, 3)
    means = [make_task_rows(baseline, "", "mean", True, at, 1)["rows"][0]["mean"] for at in range(12)]
    assert [row["mean"] for row in page["rows"]] == means[2:5]


def test_beyond_the_end_there_is_nothing(baseline):
    assert make_task_rows(baseline, "", "", False, 10**9, 50)["rows"] == []


def test_a_task_shows_its_samples_and_apart_what_the_verifier_sees(baseline):
    page = make_task_page(baseline, 3)
    assert page["verifier"] == {"answer": "36", "fields": {"level": 3, "hint": "x^3"}}
    assert [each["sample"] for each in page["samples"]] == [0, 1, 2, 3]
    scored = [each for each in page["samples"] if each["status"] == "scored"]
    assert {each["before"] for each in scored} == {scored[0]["before"]}
    assert page["equal"] is (len({each["after"] for each in scored}) == 1)


def told(tmp_path, *texts):
    """The page of a task whose samples said these."""
    pen = Pen(make(tmp_path / "run", tasks=2, samples=len(texts)))
    for sample, text in enumerate(texts):
        pen.score(rollout(pen.book, 1, sample, text=text))
    return make_task_page(CachedRun(tmp_path / "run").take_snapshot(), 1)


def test_the_first_difference_is_found_however_late_it_comes(tmp_path):
    page = told(tmp_path, "🙂" * 5000 + "a", "🙂" * 5000 + "b")
    assert [each["after"] for each in page["samples"]] == ["a", "b"]
    assert page["samples"][0]["before"] == "🙂" * 120
    assert (page["equal"], page["samples"][0]["cut"]) == (False, (True, False))


def test_samples_that_say_the_same_are_said_to(tmp_path):
    page = told(tmp_path, "x" * 5000, "x" * 5000)
    assert (page["equal"], page["samples"][0]["after"]) == (True, "")


def test_a_row_knows_which_samples_it_has(tmp_path):
    book = make(tmp_path / "made", tasks=1, samples=4)
    with BookDraft(tmp_path / "run") as draft:
        draft.add_tasks(iter(book.tasks), "Calculus")
        draft.finish(book.manifest, [make_part((0, 1), (3, 4), 1)])
    (row,) = make_task_rows(CachedRun(tmp_path / "run").take_snapshot(), "", "", False, 0, 5)["rows"]
    assert (row["samples"], row["strip"]) == ([3], [None])


def test_many_samples_have_several_pages(tmp_path):
    make(tmp_path / "run", tasks=1, samples=70)
    page = make_task_page(CachedRun(tmp_path / "run").take_snapshot(), 0, 64)
    assert [each["sample"] for each in page["samples"]] == list(range(64, 70))
    assert (page["offset"], page["asked"]) == (64, 70)


def test_a_sample_that_failed_says_why(stopped):
    pages = [make_task_page(stopped, row) for row in range(12)]
    failed = [each for page in pages for each in page["samples"] if each["status"] == "failed"]
    assert failed
    assert {each["failure"].kind for each in failed} == {"model_timeout"}
    assert all("reward" not in each for each in failed)


@pytest.mark.parametrize(
    ("texts", "length"), [([], 0), (["a"], 0), (["ab", "ac", "abc"], 1), (["a", "a"], 1), (["", "a"], 0)]
)
def test_where_texts_part(texts, length):
    assert count_shared_prefix(texts) == length


def test_what_was_said_includes_thoughts_and_calls(baseline):
    import msgspec

    from rollbook.core import ScoredLine

    line = msgspec.json.decode(baseline.located.line(int(baseline.located.find_task(3)[0])), type=ScoredLine)
    said = join_model_text(line.messages)
    assert "python({" in said
    assert "Both terms are powers." in said
    assert "Reason step by step" not in said
