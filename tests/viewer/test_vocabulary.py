import json

import pytest

from rollbook.errors import UsageError
from rollbook.viewer.vocabulary import Vocabulary


def written(tmp_path, held):
    (tmp_path / "tokenizer.json").write_text(json.dumps(held))
    return Vocabulary(tmp_path / "tokenizer.json")


def test_byte_level_tokens_are_their_bytes(tmp_path):
    vocabulary = {"Ġthe": 0, "Ċ": 1, "Ã¼": 2, "Ã": 3}
    held = {
        "model": {"vocab": vocabulary},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": 4, "content": "<|end|>"}],
    }
    assert written(tmp_path, held).texts([0, 1, 2, 3, 4, 5]) == [" the", "\n", "ü", "\\xc3", "<|end|>", None]


def test_pieces_with_a_mark_for_spaces(tmp_path):
    held = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁the", -1.0], ["<0x0A>", -2.0]]}}
    assert written(tmp_path, held).texts([0, 1, 2]) == ["<unk>", " the", "\n"]


@pytest.mark.parametrize("held", [{}, [], {"model": {}}, {"model": {"vocab": 3}}])
def test_what_is_no_tokenizer_is_refused(tmp_path, held):
    with pytest.raises(UsageError, match=r"name the tokenizer\.json"):
        written(tmp_path, held)


def test_a_file_that_is_not_there_or_not_json_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file"):
        Vocabulary(tmp_path / "nothing")
    (tmp_path / "x").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        Vocabulary(tmp_path / "x")


@pytest.mark.parametrize("vocabulary", [{"c": [1]}, {"<0xZZ>": 84}, [3]])
def test_a_vocabulary_that_is_none_is_one_line(tmp_path, vocabulary):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"vocab": vocabulary}}))
    with pytest.raises(UsageError, match=r"its vocabulary cannot be read"):
        Vocabulary(path)
