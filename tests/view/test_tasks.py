import pytest

from rollbook.view.tasks import shared, spoken, task_page, task_rows


def test_a_page_holds_only_what_it_shows(baseline):
    page = task_rows(baseline, "", "mean", True, 2, 3)
    assert (page["tasks"], page["kept"], len(page["rows"])) == (12, 12, 3)
    means = [task_rows(baseline, "", "mean", True, at, 1)["rows"][0]["mean"] for at in range(12)]
    assert [row["mean"] for row in page["rows"]] == means[2:5]


def test_beyond_the_end_there_is_nothing(baseline):
    assert task_rows(baseline, "", "", False, 10**9, 50)["rows"] == []


def test_a_task_shows_its_samples_and_apart_what_the_verifier_sees(baseline):
    page = task_page(baseline, 3)
    assert page["verifier"] == {"answer": "36", "fields": {"level": 3, "hint": "x^3"}}
    assert [each["sample"] for each in page["samples"]] == [0, 1, 2, 3]
    texts = [each["text"] for each in page["samples"] if each["status"] == "scored"]
    assert len({text[: page["shared"]] for text in texts}) == 1
    assert len({text[: page["shared"] + 1] for text in texts}) == len(set(texts)) or len(set(texts)) > 2


def test_a_sample_that_failed_says_why(stopped):
    pages = [task_page(stopped, row) for row in range(12)]
    failed = [each for page in pages for each in page["samples"] if each["status"] == "failed"]
    assert failed
    assert {each["failure"].kind for each in failed} == {"model_timeout"}
    assert all("reward" not in each for each in failed)


@pytest.mark.parametrize(
    ("texts", "length"), [([], 0), (["a"], 0), (["ab", "ac", "abc"], 1), (["a", "a"], 1), (["", "a"], 0)]
)
def test_where_texts_part(texts, length):
    assert shared(texts) == length


def test_what_was_said_includes_thoughts_and_calls(baseline):
    import msgspec

    from rollbook.core.line import ScoredLine

    line = msgspec.json.decode(baseline.located.line(int(baseline.located.of(3)[0])), type=ScoredLine)
    said = spoken(line.messages)
    assert "python({" in said
    assert "Both terms are powers." in said
    assert "Reason step by step" not in said
