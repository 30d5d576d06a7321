import json

import pytest

from rollbook.environments.builtin.string_match import StringMatch, matches, read_final_text
from rollbook.errors import UsageError
from support.rollouts import make_rollout


def env_of(tmp_path, *rows, **arguments):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return StringMatch(str(path), **arguments)


@pytest.mark.parametrize(
    ("text", "accepted", "modes"),
    [
        ("Paris", "Paris", {"exact", "folded", "contains"}),
        (" paris. ", "Paris", {"folded", "contains"}),
        ("It is Paris, of course", "Paris", {"contains"}),
        ("Parisian", "Paris", set()),
        ("São  Paulo", "são paulo", {"folded", "contains"}),
        ("", "Paris", set()),
        ("C++", "c++", {"folded", "contains"}),
        ("25", "2⁵", set()),
        ("x2", "x²", set()),
        ("H2O", "H₂O", set()),
        ("2⁵", "2⁵", {"exact", "folded", "contains"}),
        ("Ｐａｒｉｓ", "Paris", {"folded", "contains"}),
        ("Sa\u0303o Paulo", "São Paulo", {"folded", "contains"}),
        (r"\boxed{\text{Paris}}", "Paris", {"folded", "contains"}),
        ("“Paris”", "Paris", {"folded", "contains"}),
        ("Rock ’n’ Roll", "rock 'n' roll", {"folded", "contains"}),
        ("(Paris)", "Paris", {"folded", "contains"}),
        ("Paris。", "Paris", {"folded", "contains"}),
        ("首都は東京です", "東京", {"contains"}),
        ("首都はParisです", "Paris", {"contains"}),
        ("f(x)", "f(y)", set()),
        ("125", "25", set()),
    ],
)
def test_each_mode_has_its_rule(text, accepted, modes):
    assert {mode for mode in ("exact", "folded", "contains") if matches(read_final_text(text), accepted, mode)} == modes


@pytest.mark.parametrize("text", ["<answer>Paris</answer>", "\\boxed{Paris}", "<think>Rome</think>\nParis"])
def test_what_is_marked_as_the_answer_is_the_answer(text):
    assert read_final_text(text) == "Paris"


def test_any_of_several_texts_will_do(tmp_path):
    env = env_of(
        tmp_path, {"question": "Where?", "answer": ["Paris", "Lutetia"]}, {"question": "When?", "answer": 1789}
    )
    first, second = env.tasks()
    assert [env.verify(first, make_rollout(first, text)).reward for text in ("lutetia", "Rome")] == [1.0, 0.0]
    assert env.verify(second, make_rollout(second, env.solution(second))).reward == 1.0


@pytest.mark.parametrize("answer", [None, [], "", " . ", {"a": 1}, [None], True])
def test_an_answer_that_is_no_text_names_the_row(tmp_path, answer):
    with pytest.raises(UsageError, match=r"mine.jsonl:1: the answer must be text or a list of texts, and not empty"):
        list(env_of(tmp_path, {"question": "Where?", "answer": answer}).tasks())


def test_an_unknown_mode_is_refused(tmp_path):
    with pytest.raises(UsageError, match="mode=fuzzy; give exact, folded, contains"):
        env_of(tmp_path, mode="fuzzy")
