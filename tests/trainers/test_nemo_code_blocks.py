"""Where code begins and ends in a model's message."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.trainers.nemo_rl.code_samples import find_blocks

CASES = {
    "": (),
    "no code here": (),
    "<code>1 + 1</code>": ("1 + 1",),
    "so <code>x = 1</code> and <code>x</code> then": ("x = 1", "x"),
    "<code>\nx = 1\nx\n</code>": ("x = 1\nx",),
    "<code>unfinished": ("unfinished",),
    "<code>a</code> <code>b": ("a", "b"),
    "<code></code>": ("",),
    "<code>\n\n</code>": ("",),
    "</code> stray": (),
    "<code> 1 + 1 </code>": ("1 + 1",),
    "<code>\n    if x:\n        y\n</code>": ("if x:\n    y",),
    "<code>if x:\n    y</code>": ("if x:\n    y",),
    '<code>print("</code>")</code>': ('print("</code>")',),
    "<code>s = '''\n</code>\n'''</code> after": ("s = '''\n</code>\n'''",),
    '<code>s = """a "quoted" </code> word"""</code>': ('s = """a "quoted" </code> word"""',),
    r"<code>s = 'it\'s </code>'</code>": (r"s = 'it\'s </code>'",),
    "<code>x = 1  # don't stop</code> it's over": ("x = 1  # don't stop",),
    "<code>x  # '</code>'": ("x  # '",),
    "<code>print('open</code> it's": ("print('open",),
    '<code>s = """open</code> and on': ('s = """open',),
    '<code>print("<code>")</code>': ('print("<code>")',),
    "<code>a <code> b</code>": ("a <code> b",),
    "I use <code> tags, don't I.\n<code>\n1\n</code>": ("1",),
    "<code>x = '\N{SNOWMAN}</code>\N{SNOWMAN}'</code>": ("x = '\N{SNOWMAN}</code>\N{SNOWMAN}'",),
    "<code>a\\\n+ b</code>": ("a\\\n+ b",),
}


@pytest.mark.parametrize("message", CASES)
def test_blocks_are_found_as_their_writer_meant_them(message):
    assert find_blocks(message).blocks == CASES[message]


def test_what_follows_the_last_block_is_told():
    assert find_blocks("<code>1</code>\n").after == "\n"
    assert find_blocks("<code>1</code> so <code>2</code> done").after == " done"
    assert find_blocks("<code>1").after == ""
    assert find_blocks("just words").after == ""


@given(st.lists(st.sampled_from(["<code>", "</code>", "'", '"', '"""', "\\", "#", "\n", "x", " "]), max_size=40))
def test_any_message_has_blocks_that_are_part_of_it(pieces):
    message = "".join(pieces)
    blocks = find_blocks(message)
    assert bool(blocks.blocks) == ("<code>" in message)
    assert message.endswith(blocks.after)
    for block in blocks.blocks:
        assert all(line.strip() in message for line in block.splitlines())


@pytest.mark.parametrize(
    "nasty", ['"\\' * 50_000, "'" + "\\'" * 50_000, '"""' + '\\"""' * 30_000, "#" * 100_000, "\n  <code>" * 10_000]
)
def test_no_message_takes_long_to_read(nasty):
    started = time.process_time()
    find_blocks("<code>" + nasty)
    find_blocks("<code>" + nasty + "</code>")
    assert time.process_time() - started < 2
