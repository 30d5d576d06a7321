import pytest

from rollbook.environments.fences import last_block


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("no code at all", None),
        ("", None),
        ("```python\na = 1\n```", "a = 1\n"),
        ("Look:\n```\na = 1\n```\nDone.", "a = 1\n"),
        ("```python\na\n```\n```py\nb\n```", "b\n"),
        ("```Python3 title=x\na\n```", "a\n"),
        ("```python\na\n```\nIt prints\n```text\n5\n```\n```bash\nls\n```", "a\n"),
        ("```python\na\n```\n```python\n   \n```", "a\n"),
        ("```python\na\n", "a\n"),
        ("```python\na\n```\nand\n```python\nb = 2", "b = 2\n"),
        ("~~~python\na\n~~~", "a\n"),
        ('````python\ns = """\n```\n"""\n````', 's = """\n```\n"""\n'),
        ("<think>```python\nthought\n```</think>said ```a``` inline", None),
        ("<think>```python\nthought\n```</think>\n```python\nsaid\n```", "said\n"),
        ("  ```python\n  a\n  ```", "  a\n"),
        ("```json\n{}\n```", None),
        ("```python\r\na\r\n```", "a\n"),
    ],
)
def test_the_last_python_block_is_taken(text, found):
    assert last_block(text) == found


def test_a_hundred_thousand_fences_take_no_time():
    assert last_block("```python\nx\n```\n" * 100_000) == "x\n"
