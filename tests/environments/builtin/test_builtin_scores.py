"""Verdicts on whole answers, by the rules of mathematics and of GSM8K: what must not be rewarded, and what must."""

from __future__ import annotations

import time

import pytest

from rollbook.core import Message, Rollout, Task
from rollbook.environments.builtin.gsm8k import GSM8K
from rollbook.environments.builtin.math import Math
from rollbook.environments.environment import Environment

WRONG = [
    *((f"\\boxed{{3 {words}}}", "3") for words in ("x", "i", "pi", "log x", "billion", "xy", "\\pi")),
    *((f"\\boxed{{4{words}}}", "4") for words in (" is wrong", " versus five", " mod seven", ", maybe five", "xy")),
    *((f"\\boxed{{5 {words}}}", "5") for words in ("million", "dozen", "squared", "less than x")),
    ("The answer is not 4.", "4"),
    ("The answer isn't 5.", "5"),
    ("The answer is negative 5.", "5"),
    ("The answer is minus 5.", "5"),
    ("The answer is anything but 5.", "5"),
    ("The answer is less than 5.", "5"),
    ("The answer is more than 5.", "5"),
    ("The answer is at least 5.", "5"),
    ("The answer is half of 5.", "5"),
    ("The answer is twice 5.", "5"),
    ("The answer is the square root of 5.", "5"),
    ("The answer is not $4$.", "4"),
    (r"\boxed{4|5}", "4"),
    (r"\boxed{4|5}", "5"),
    (r"\boxed{4 \mid 5}", "4"),
    (r"\boxed{4 \vee 5}", "4"),
    (r"\boxed{4=5}", "4"),
    (r"\boxed{4=5}", "5"),
    (r"\boxed{4 \rightarrow 5}", "5"),
    (r"\boxed{4 \text{ (or 5)}}", "4"),
    (r"\boxed{\max=4, \min=5}", "5"),
    (r"\boxed{\max=4, \min=5}", "4"),
    ("The answer is between 4 and 5.", "4"),
    ("The answer is between 4 and 5.", "5"),
    ("The answer is one of 1, 2, 3, 4, 5.", "1"),
    ("The answer is $4$ or $5$.", "5"),
    ("The answer is $4$ or $5$.", "4"),
    ("The answer is 4? No, it is 7.", "4"),
    ("Answer: 4/5?", "4"),
    (r"\boxed{4 5}", "9"),
    (r"\boxed{4 5}", "45"),
    (r"\boxed{12 30}", "42"),
    (r"\boxed{1 2 3}", "6"),
    (r"\boxed{2(3)}", "5"),
    (r"\boxed{1\ 2}", "12"),
    (r"\boxed{4^-1}", "4"),
    (r"\boxed{\neq 4}", "4"),
    (r"\boxed{4\times}", "4"),
    (r"\boxed{4+}", "4"),
    (r"\boxed{4 \quad 5}", "9"),
    (r"\boxed{4..5}", "4"),
    ("The answer is ten times 5.", "5"),
    ("The answer lies between 4 and 5.", "5"),
    ("The answer can't be 5.", "5"),
    (r"\boxed{5 m}", "5 km"),
    (r"\boxed{5 \text{ hours}}", "5 minutes"),
    (r"\boxed{5 \text{ cents}}", r"\$5"),
    (r"\boxed{7 am}", "7 pm"),
    (r"\boxed{4 \text{ rad}}", r"4^\circ"),
    (r"\boxed{101_3}", "101_2"),
    (r"\boxed{\{1,2\}}", "(1,2)"),
    (r"\boxed{(1,2)}", r"\{1,2\}"),
]
RIGHT = [
    ("The answer is negative 5.", "-5"),
    ("The answer is minus 5.", "-5"),
    (r"\boxed{2(3)}", "6"),
    (r"\boxed{4^-1}", "1/4"),
    ("Answer: 4/5?", "4/5"),
    (r"\boxed{\frac{1}{2} \text{ or } 0.5}", "0.5"),
    ("The answer is 3, since 1+2 = 3.", "3"),
    ("The final answer is 42 because 6*7=42 and nothing is left.", "42"),
    (r"<answer>\frac{1}{2}</answer>", "1/2"),
    ("Answer:\n```\n42\n```", "42"),
    ("The answer is $42$ dollars for $6$ items.", "42"),
    (r"\boxed{\text{The answer is } 42}", "42"),
    (r"\boxed{\textbf{(A)}\ 42}", "42"),
    (r"\boxed{½}", "1/2"),
    (r"\boxed{¾}", r"\frac{3}{4}"),
    (r"\boxed{3½}", "3.5"),
    (r"\boxed{2√2}", r"\sqrt{8}"),
    (r"\boxed{x²+1}", "x^2+1"),
    (r"\boxed{10⁻³}", "0.001"),
    (r"\boxed{2×3}", "6"),
    (r"\boxed{2·3}", "6"),
    (r"\boxed{∞}", r"\infty"),
    (r"\boxed{∅}", r"\emptyset"),
    (r"\boxed{\emptyset}", r"\varnothing"),
    (r"\boxed{2*pi}", r"2\pi"),
    (r"\boxed{pi/2}", r"\frac{\pi}{2}"),
    (r"\boxed{1 1/2}", "3/2"),
    (r"\boxed{5 million}", "5,000,000"),
    (r"\boxed{5,000,000}", "5 million"),
    (r"\boxed{\bigl(1,2\bigr)}", "(1,2)"),
    (r"\boxed{1’234}", "1234"),
    (r"\boxed{1{\,}234}", "1234"),
    (r"\boxed{5 \text{ kilometers}}", "5 km"),
    (r"\boxed{5 km}", "5"),
    (r"\boxed{5}", r"\$5"),
    (r"\boxed{7 \, \text{m}^2}", "7"),
    (r"\boxed{18 \text{ dollars a day}}", "18"),
    (r"\boxed{12 \text{ square feet per minute}}", "12"),
    (r"\boxed{x=1 \text{ or } x=2}", r"\{1,2\}"),
    (r"\boxed{\{x \mid x > 0\}}", r"\{x \mid x>0\}"),
    (r"\boxed{2+2=4}", "4"),
    (r"\boxed{\sin^2 x}", r"\sin^2(x)"),
    (r"\boxed{3\times 10^5}", "300000"),
    ("The answer is 5, not 4.", "5"),
    ("The answer is (B) 42", "42"),
    (r"\boxed{(x+1)^{10}}", "(1+x)^{10}"),
]
ENDLESS = [
    (r"\boxed{x^{50}-x+1=0}", "x=1"),
    (r"\boxed{\sin(x)+\cos(2x)+\tan(3x)=1}", "x=1"),
    (r"\boxed{(x+y+z)^9(a+b+c)^9(d+e+f)^9}", "x^2"),
    (r"\boxed{{(x+y+z+w)}^{99}}", "7"),
    (r"\boxed{x^{99}+x^{98}+1=0}", "x=1"),
    (r"\boxed{(x+y+z+w)^{99}(a+b+c+d)^{99}}", "x^2"),
    (r"\boxed{(1+\sqrt2+\sqrt3+\sqrt5+\sqrt7)^{99}}", "7"),
    (r"\boxed{" + r"\sin(\cos(" * 8 + "x" + "))" * 8 + "}", "x"),
]
NOT_EIGHTEEN = [
    r"\boxed{17 and 18}",
    r"\boxed{17 to 18}",
    "#### 17 or 18",
    "It is not 18",
    "It lies between 17 and 18.",
    "The answer can't be 18.",
    "The answer is 18 million.",
    "The answer is 18 squared.",
    "The answer is 18 times 2.",
    r"\boxed{18 million}",
    r"\boxed{17 or 18}",
    r"\boxed{18 or 17}",
    r"\boxed{18 is wrong}",
    "It is 17 or 18",
    "It is 18 or 17.",
    "The answer is 17 or 18.",
    "The answer is 18 or 17.",
    "The answer is not 18.",
    "The answer isn't 18.",
    "The answer is minus 18.",
    "The answer is between 18 and 20.",
]


def reward(environment: Environment, text: str, answer: str) -> float:
    task = Task(id="t", prompt="q", answer=answer)
    rollout = Rollout(task=task, sample=0, seed=0, messages=[*task.messages, Message("assistant", text)])
    return environment.verify(task, rollout).reward  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(("text", "answer"), WRONG)
def test_a_wrong_answer_is_not_rewarded(text: str, answer: str) -> None:
    assert reward(Math(data=""), text, answer) == 0.0


@pytest.mark.parametrize(("text", "answer"), RIGHT)
def test_a_right_answer_is_rewarded(text: str, answer: str) -> None:
    assert reward(Math(data=""), text, answer) == 1.0


@pytest.mark.parametrize(("text", "answer"), ENDLESS)
def test_what_would_keep_algebra_busy_for_ever_is_wrong_at_once(text: str, answer: str) -> None:
    began = time.process_time()
    assert reward(Math(data=""), text, answer) == 0.0
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("text", NOT_EIGHTEEN)
def test_a_hedge_is_no_number(text: str) -> None:
    assert reward(GSM8K(), text, "18") == 0.0
