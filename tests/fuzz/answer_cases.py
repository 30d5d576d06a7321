"""Answers that are known: numbers, expressions, letters and code in random text, and which pairs of them are equal."""

from __future__ import annotations

import json
import random
from fractions import Fraction

from fuzz.cases import Case, MakeCase, draw_name, draw_object
from rollbook.agents.tool_formats import read_calls
from rollbook.core import Message
from rollbook.environments.answers.choices import read_letter
from rollbook.environments.answers.comparison import canonicalize, is_equal, is_same_answer, parse_number
from rollbook.environments.answers.extraction import (
    extract_answer,
    extract_math_answer,
    find_boxed,
    find_last_number,
    find_tagged,
    last_block,
    strip_thinking,
)

WORDS = [
    "we",
    "count",
    "apples",
    "then",
    "add",
    "pears",
    "so",
    "that",
    "every",
    "basket",
    "holds",
    "fruit",
    "from",
    "both",
    "trees",
    "here",
    "now",
]
EXPRESSIONS = (r"\sqrt{%d}", r"x^{%d}+1", r"\frac{\pi}{%d}", r"(%d, y)", r"%dx - 3y", r"\{%d, a\}", r"2^{%d}")
OPTION_TEXTS = ("red paint", "blue sky", "green grass", "seven owls", "the moon", "old iron")


def draw_value(draw: random.Random, *, plain: bool = False, multiplied: bool = True) -> tuple[str, Fraction]:
    """Return a number as a person or a model writes it, and its value; `multiplied`: also as a number of millions."""
    sign = draw.choice(("", "", "-"))
    whole, below = draw.choice((draw.randint(0, 99), draw.randint(1000, 9_999_999))), draw.randint(2, 40)
    places = draw.randint(1, 4)
    digits = f"{draw.randrange(10**places):0{places}}"
    factor = -1 if sign else 1
    mixed, above = draw.choice(("\\frac", " \\frac", "\\tfrac")), draw.randrange(1, below)
    forms: list[tuple[str, Fraction]] = [
        (f"{sign}{whole}", Fraction(whole)),
        (f"{sign}{whole:,}", Fraction(whole)),
        (f"{sign}{whole}.{digits}", Fraction(f"{whole}.{digits}")),
        (f"{sign}{whole:,}.{digits}", Fraction(f"{whole}.{digits}")),
        (f"{sign}{whole}/{below}", Fraction(whole, below)),
    ]
    if not plain:
        forms += [
            (f"{sign}\\frac{{{whole}}}{{{below}}}", Fraction(whole, below)),
            (f"{sign}\\dfrac{{{whole}}}{{{below}}}", Fraction(whole, below)),
            (f"{sign}{whole}{mixed}{{{above}}}{{{below}}}", whole + Fraction(above, below)),
            (f"{sign}{whole:,}{mixed}{{{above}}}{{{below}}}", whole + Fraction(above, below)),
            (f"{sign}${whole:,}", Fraction(whole)),
            (f"{sign}{whole} apples", Fraction(whole)),
            (f"{sign}{whole}%", Fraction(whole)),
            (f"{sign}{whole}e{places}", Fraction(whole * 10**places)),
        ]
    if multiplied and not plain:
        forms.append((f"{sign}{whole % 100} million", Fraction(whole % 100 * 10**6)))
    text, value = draw.choice(forms)
    return text, factor * value


def write_value(value: Fraction) -> str:
    """Return the one form of a number: whole, else a finite decimal, else a fraction in lowest terms."""
    if value.denominator == 1:
        return str(value.numerator)
    places = next((n for n in range(1, 31) if 10**n % value.denominator == 0), 0)
    if not places:
        return f"{value.numerator}/{value.denominator}"
    digits = abs(value.numerator) * 10**places // value.denominator
    return f"{'-' if value < 0 else ''}{digits // 10**places}.{digits % 10**places:0{places}}"


def draw_prose(draw: random.Random, *, numbers: bool = True) -> str:
    """Return some sentences that mark no answer; with `numbers`, some name other numbers."""
    sentences = []
    for _ in range(draw.randint(0, 4)):
        words = draw.choices(WORDS, k=draw.randint(3, 9))
        if numbers and draw.random() < 0.5:
            words.insert(draw.randrange(1, len(words)), str(draw.randint(0, 999)))
        sentences.append(" ".join(words).capitalize() + draw.choice((".", ".\n", ".\n\n")))
    return " ".join(sentences)


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def make_number(draw: random.Random) -> Case:
    text, value = draw_value(draw)
    return Case(text, (parse_number(text), canonicalize(text)), (value, write_value(value)))


def make_no_number(draw: random.Random) -> Case:
    text = draw.choice(("x", "{} + x", "{} or {}", "{}, {}", "{}x", "about {} or so", "\\sqrt{{{}}}", "")).format(
        draw.randint(2, 99), draw.randint(2, 99)
    )
    return Case(text, parse_number(text), None)


def make_last_number(draw: random.Random) -> Case:
    text, value = draw_value(draw, plain=True)
    text = join(draw_prose(draw), f"That makes {text}.", draw_prose(draw, numbers=False))
    return Case(text, find_last_number(text), write_value(value))


def make_answer(draw: random.Random) -> Case:
    """The last box precedes what follows `####`, which precedes "the answer is", which precedes the last number."""
    values = [draw_value(draw, multiplied=level > 0) for level in range(3)]
    level = draw.randrange(3)
    marks = [
        f"The answer is {values[0][0]}.",
        f"\n#### {values[1][0]}\n",
        draw.choice(("So \\boxed{%s}.", "$$\\boxed{ %s }$$", "\\fbox{%s}")) % values[2][0],
    ]
    parts = [draw_prose(draw), marks[level]]
    for lower in marks[:level]:  # what marks an answer less strongly may come before it and after it
        parts.insert(draw.randrange(len(parts) + 1), f"{lower}\n")
    text = join(*parts, draw_prose(draw))
    return Case(text, extract_answer(text), write_value(values[level][1]))


def make_boxed_expression(draw: random.Random) -> Case:
    inside = draw.choice(EXPRESSIONS) % draw.randint(2, 99)
    before = draw.choice(("", f"First \\boxed{{{draw.randint(0, 9)}}}. "))
    text = join(f"{before}{draw_prose(draw)}", f"Thus \\boxed{{{inside}}}.", draw_prose(draw))
    return Case(text, (extract_answer(text), extract_math_answer(text), find_boxed(text)), (inside,) * 3)


def make_math_answer(draw: random.Random) -> Case:
    """What is thought does not count; a box precedes a tag, which precedes a marked answer, then the last formula."""
    inside = draw.choice(EXPRESSIONS) % draw.randint(2, 99)
    others = [draw.choice(EXPRESSIONS) % draw.randint(2, 99) for _ in range(2)]
    mark = draw.choice(("\\boxed{%s}", "<answer>%s</answer>", "The answer is $%s$.", "Answer: \\(%s\\)", "so $%s$"))
    thought = f"<think>Maybe \\boxed{{{others[0]}}}, <answer>{others[1]}</answer></think>"
    earlier = mark % others[0] + ".\n" if draw.random() < 0.5 else ""
    text = join(draw.choice(("", thought)) + earlier + draw_prose(draw), mark % inside)
    return Case(text, extract_math_answer(text), inside)


def make_marked_number(draw: random.Random) -> Case:
    """A number after "the answer is" means what it says, whichever reader reads it."""
    text, value = draw_value(draw, plain=True)
    text = join(draw_prose(draw), draw.choice(("The final answer is %s.", "Answer: %s", "#### %s")) % text)
    found = extract_math_answer(text)
    return Case(text, None if found is None else parse_number(found), value)


def make_tags(draw: random.Random) -> Case:
    inside = [join(draw_prose(draw)) for _ in range(draw.randint(0, 4))]
    text = "".join(f"{draw_prose(draw)}<answer>{each}</answer>" for each in inside) + draw_prose(draw)
    return Case(text, find_tagged(text), inside)


def make_thoughts(draw: random.Random) -> Case:
    visible, thought = draw_prose(draw), f"<think>{draw_prose(draw)}</think>" * draw.randint(0, 2)
    return Case(thought + visible, strip_thinking(thought + visible), visible)


def make_block(draw: random.Random) -> Case:
    """The last block that is tagged as Python and not empty, else the last untagged one."""
    text, last = draw_prose(draw), dict[str, str]()
    for _ in range(draw.randint(0, 4)):
        tag = draw.choice(("python", "py", "Python3", "", "", "json", "bash"))
        code = "".join(f"{draw.choice(('', '    '))}x = {draw.randint(0, 999)}\n" for _ in range(draw.randint(0, 3)))
        fence, indent = draw.choice(("```", "````", "~~~")), draw.choice(("", "  "))
        lines = [f"{fence}{tag}", *code.splitlines(), fence]
        text += "\n" + "".join(f"{indent}{line}\n" for line in lines) + draw_prose(draw)
        if code:
            last["python" if tag.lower().startswith("py") else tag] = code
    return Case(text, last_block(text), last.get("python", last.get("")))


def make_letter(draw: random.Random) -> Case:
    labels = "ABCDEF"[: draw.randint(2, 6)]
    options = dict(zip(labels, draw.sample(OPTION_TEXTS, len(labels)), strict=True))
    label = draw.choice(labels)
    boxed = draw.choice((r"\boxed{%s}", r"\boxed{\text{%s}}", r"\boxed{(%s)}", r"$\boxed{\textbf{%s}}$.")) % label
    said = draw.choice(("The answer is %s.", "Answer: (%s)", "The correct option is **%s**.", "<answer>%s</answer>"))
    text = join(draw_prose(draw), boxed)
    lenient = join(draw_prose(draw), draw.choice((said % label, f"\n{label}) {options[label]}", f"\n{options[label]}")))
    found = (
        read_letter(text, options, lenient=False),
        read_letter(text, options, lenient=True),
        read_letter(lenient, options, lenient=True),
        read_letter(lenient, options, lenient=False),
    )
    return Case((text, lenient, options), found, (label, label, label, None))


def make_comparison(draw: random.Random) -> Case:
    """Two ways of writing one number are equal, two numbers are not."""
    (given, left), (expected, right) = draw_value(draw), draw_value(draw)
    if draw.random() < 0.5:
        form = draw.choice((write_value, str, lambda value: f"{value.numerator}/{value.denominator}"))
        expected, right = draw.choice(("%s", "$%s$", " %s ")) % form(left), left
    if "%" in given + expected or "apples" in given + expected or "$" in given[:2] + expected[:2]:
        return Case((given, expected), None, None)  # units and percent signs have rules of their own
    same = left == right
    found = is_same_answer(given, expected), is_same_answer(expected, given), is_equal(given, expected.strip(" $"))
    return Case((given, expected), found, (same,) * 3)


UNITS = (("km", "kilometres"), ("cm", "centimeters"), ("kg", "kilograms"), ("hr", "hours"), ("min", "minutes"))


def make_units(draw: random.Random) -> Case:
    """A number with another unit is another answer; one without a unit, and a percentage as a share, are the same."""
    number, (one, other) = draw.randint(2, 99), draw.sample(UNITS, 2)
    pairs = [
        (f"{number} {one[0]}", f"{number} {one[1]}", True),
        (f"{number} {one[draw.randrange(2)]}", f"{number} {other[draw.randrange(2)]}", False),
        (f"{number} {one[draw.randrange(2)]}", str(number), True),
        (f"{number} {one[draw.randrange(2)]}", str(number + 1), False),
        (f"${number}", f"{number} dollars", True),
        (f"\\${number}", f"{number} euros", False),
        (f"{number}%", f"0.{number:02}", True),
        (f"{number}%", f"0.{(number + 1) % 100:02}", False),
    ]
    left, right, same = draw.choice(pairs)
    return Case((left, right), is_same_answer(left, right), same)


def make_hedge(draw: random.Random) -> Case:
    """An answer that names two values, or says what it is not, is not the answer."""
    right, wrong = draw.sample(range(2, 99), 2)
    given = draw.choice(("{} or {}", "{1} or {0}", "not {0}", "{0} + {1}", "less than {0}", "{0} \\text{{ or }} {1}"))
    given = given.format(right, wrong)
    return Case((given, right), is_same_answer(given, str(right)), False)


def make_algebra(draw: random.Random) -> Case:
    a, b, c = (draw.randint(2, 9) for _ in range(3))
    pairs: list[tuple[str, str, bool]] = [
        (f"{a}x + {b}", f"{b} + {a}x", True),
        (f"(x+{a})(x+{b})", f"x^2+{a + b}x+{a * b}", True),
        (f"\\sqrt{{{a * a * b}}}", f"{a}\\sqrt{{{b}}}", True),
        (f"{a}^{{{c}}}", str(a**c), True),
        (f"{a}x + {b}", f"{a}x + {b + 1}", False),
        (f"\\frac{{{a}}}{{{b}}}", f"\\frac{{{a}}}{{{b + 1}}}", False),
        (f"({a}, {b})", f"({a}, {b + 1})", False),
        (f"-{a}\\pi", f"{a}\\pi", False),
    ]
    left, right, same = draw.choice(pairs)
    return Case((left, right), is_same_answer(left, right), same)


def make_calls(draw: random.Random) -> Case:
    """Calls that are written as JSON into a text come back with their names and arguments, in order."""
    calls = [(draw_name(draw), draw_object(draw)) for _ in range(draw.randint(1, 3))]
    written = [{"name": name, "arguments": arguments} for name, arguments in calls]
    body = json.dumps({"calls": written}) if draw.random() < 0.5 else "\n".join(map(json.dumps, written))
    body = draw.choice(("%s", "```json\n%s\n```", "I call them. %s", "<think>{1}</think>%s")).replace("%s", body)
    message = read_calls(Message("assistant", body), 3)
    found = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    return Case(body, found, [(f"call_3_{n}", *call) for n, call in enumerate(calls)])


def make_said_answer(draw: random.Random) -> Case:
    answer = draw_prose(draw)
    body = draw.choice(("%s", "```json\n%s\n```")).replace("%s", json.dumps({"answer": answer}))
    message = read_calls(Message("assistant", body), 0)
    return Case(body, (message.content, message.tool_calls, message.written), (answer, None, body))


CASES: dict[str, MakeCase] = {
    "number": make_number,
    "no number": make_no_number,
    "last number": make_last_number,
    "answer": make_answer,
    "boxed expression": make_boxed_expression,
    "math answer": make_math_answer,
    "marked number": make_marked_number,
    "answer tags": make_tags,
    "thoughts": make_thoughts,
    "code block": make_block,
    "letter": make_letter,
    "comparison": make_comparison,
    "units": make_units,
    "hedge": make_hedge,
    "algebra": make_algebra,
    "tool calls": make_calls,
    "said answer": make_said_answer,
}
