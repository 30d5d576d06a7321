import pytest

from rollbook.environments.answers.extraction import last_block


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
        ("  ```python\n  a\n  ```", "a\n"),
        ("1. So:\n\n      ```python\n      if a:\n          b\n\n      c\n      ```\nDone", "if a:\n    b\n\nc\n"),
        ("- ```python\n  a\n  ```\n- that is it", "a\n"),
        ("\t```python\n\ta\n\t```", "a\n"),
        (
            '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```',
            'def f():\n    """\n    ```\n    f()\n    ```\n    """\n',
        ),
        ("```python\na\n```\nOutput:\n```\n4\n```", "a\n"),
        ("```\n4\n```\n```\na\n```\n```text\n4\n```", "a\n"),
        ("```\n4\n```\n```py\n \n```", "4\n"),
        ("```json\n{}\n```", None),
        ("```python\r\na\r\n```", "a\n"),
    ],
)
def test_the_last_python_block_is_taken(text, found):
    assert last_block(text) == found


def test_a_hundred_thousand_fences_take_no_time():
    assert last_block("```python\nx\n```\n" * 100_000) == "x\n"
