"""The check finds what is wrong with an environment, each fault by its own row, and nothing in one that is sound."""

import asyncio
import json

import pytest

from rollbook import Environment, Task
from rollbook.checks.environment_check import check, uses_sandbox
from rollbook.checks.findings import Finding, Soundness
from rollbook.environments import resolve
from rollbook.environments.builtin import GSM8K
from rollbook.environments.registry import BUILT_IN
from rollbook.errors import UsageError
from support.judge import JudgeServer

SOUND = """
from rollbook import Environment, Task, tool

LOG = []

class Sound(Environment):
    def tasks(self):
        for i in range(6):
            yield Task(f"t{i}", f"Which number comes after {i + 40}?", answer=str(i + 41))

    def verify(self, task, rollout):
        return rollout.text.strip() == task.answer

    def solution(self, task):
        return task.answer
"""
STATEFUL = (
    SOUND
    + """
    def open(self, task):
        return []

    @tool
    def put(self, state, what: str, times: int = 1) -> str:
        "Put something down."
        state.append(what)
        return f"{len(state)} things"

    def outcome(self, state):
        return list(state)
"""
)
OFFERING = (
    SOUND
    + """
    async def open(self, task):
        return []

    def offers(self, task):
        function = {"name": f"put_{task.id}", "description": "Put it down.", "parameters": {"type": "object"}}
        return [{"type": "function", "function": function}]

    async def use(self, name, arguments, state):
        state.append(name)
        return f"{len(state)} things"

    async def outcome(self, state):
        return list(state)
"""
)


def checked(tmp_path, source, **options) -> Soundness:
    (tmp_path / "env.py").write_text(source)
    return check(f"{tmp_path}/env.py", **options)


def verdicts(result: Soundness) -> dict[str, str]:
    return {finding.check: finding.verdict for finding in result.findings}


def only_fault(result: Soundness):
    (fault,) = result.faults
    return fault


def test_a_sound_environment_has_no_fault_and_what_cannot_be_checked_is_no_pass(tmp_path):
    result = checked(tmp_path, SOUND)
    assert result.sound
    assert (result.environment, result.tasks) == ("Sound", 6)
    found = verdicts(result)
    assert found["known solutions score 1"] == "ok"
    assert found["it can be recreated in another process"] == "ok"
    assert found["verdicts are deterministic"] == "ok"
    unchecked = ("tool schemas are valid", "rollouts do not share state", "it works under the sandbox")
    assert {found[name] for name in unchecked} == {"not checked"}
    assert set(found.values()) == {"ok", "not checked"}


def test_without_a_solution_that_row_is_not_checked(tmp_path):
    result = checked(tmp_path, SOUND.replace("def solution", "def unknown"))
    assert result.sound
    assert verdicts(result)["known solutions score 1"] == "not checked"
    assert verdicts(result)["another task's solution is not right"] == "ok"


@pytest.mark.parametrize(
    ("old", "new", "row", "words"),
    [
        ('f"t{i}"', '"t"', "task ids are unique", "1 ids occur more than once"),
        ('f"Which number comes after {i + 40}?"', '" "', "prompts are not empty", "6 tasks have an empty prompt"),
        ("40}?", "40}? The answer: {i + 41}", "the answer is not shown", "6 prompts contain"),
        ("return task.answer", "return '7'", "known solutions score 1", "0 of 6"),
        ("return roll", "return not rollout.text or roll", "an empty answer is not right", "6 score 1"),
        ("return roll", "return 'know' in rollout.text or roll", "a refusal (I do not know.) is not right", "6 score"),
        ("return roll", "return len(rollout.text) > 200 or roll", "a long ramble is not right", "6 score 1"),
        ("return roll", "return '4' in rollout.text[:2] or roll", "another task's solution is not right", "score 1"),
        ("return roll", "return 'Which' in rollout.text[:6] or roll", "the question echoed is not right", "score 1"),
        ("return roll", "return rollout.text.count('W') > 2 or roll", "the prompt repeated is not right", "score 1"),
    ],
)
def test_each_fault_has_its_row(tmp_path, old, new, row, words):
    result = checked(tmp_path, SOUND.replace(old, new))
    fault = next(f for f in result.faults if f.check == row)
    assert words in fault.found
    assert fault.tasks == 6
    assert fault.example in ("t", "t0", "t1", "t2", "t3", "t4", "t5")


def test_a_verifier_that_breaks_on_an_empty_answer_is_unsound(tmp_path):
    fault = only_fault(checked(tmp_path, SOUND.replace("return roll", "rollout.text[0]; return roll")))
    assert fault.check == "an empty answer is not right"
    assert "6 have no score: verifier_error: IndexError" in fault.found


def test_a_verifier_that_hangs_is_told_by_its_deadline(tmp_path):
    from rollbook.core import Limits

    source = SOUND.replace("return roll", "import time; time.sleep(9 if not rollout.text else 0); return roll")
    result = checked(tmp_path, source, limit=1, limits=Limits(verify_s=0.3))
    fault = next(f for f in result.faults if f.check == "an empty answer is not right")
    assert "verifier_timeout" in fault.found
    assert verdicts(result)["verification is fast enough"] == "warning"


def test_chance_in_a_verdict_is_found_out(tmp_path):
    source = SOUND.replace("return roll", "import random; return random.random() / 100 or roll")
    result = checked(tmp_path, source)
    assert verdicts(result)["verdicts are deterministic"] == "unsound"


def test_a_verdict_that_depends_on_the_process_is_found_out(tmp_path):
    source = SOUND.replace("return roll", "import os; return os.getpid() % 97 / 1000 or roll").replace(
        "def solution", "def unknown"
    )
    fault = only_fault(checked(tmp_path, source))
    assert fault.check == "verdicts are deterministic"


def test_an_async_verdict_that_depends_on_the_process_is_found_out(tmp_path):
    source = SOUND.replace("    def verify", "    async def verify").replace(
        "return roll", "import os; return os.getpid() / 2**40 + (roll"
    )
    source = source.replace("task.answer\n\n    def solution", "task.answer)\n\n    def unknown")
    fault = only_fault(checked(tmp_path, source, limit=2))
    assert fault.check == "verdicts are deterministic"
    assert "in another process, an answer gets" in fault.found
    steady = checked(tmp_path, SOUND.replace("    def verify", "    async def verify"), limit=2)
    row = next(f for f in steady.findings if f.check == "verdicts are deterministic")
    assert (row.verdict, row.found) == ("ok", "14 answers, repeated and in fresh processes")


def test_an_async_verifier_that_exists_here_alone_is_repeated_here():
    class Here(Environment):
        def tasks(self):
            yield Task("a", "What is 1 + 1?", answer="2")

        async def verify(self, task, rollout):
            return rollout.text == task.answer

    row = next(f for f in check(Here()).findings if f.check == "verdicts are deterministic")
    assert (row.verdict, row.found) == ("ok", "5 answers, repeated in this process")


def test_tasks_that_depend_on_the_process_are_found_out(tmp_path):
    fault = only_fault(checked(tmp_path, SOUND.replace("range(6)", "sorted(range(6), key=lambda i: hash(str(i)))")))
    assert fault.check == "it can be recreated in another process"
    assert "not the same in another process" in fault.found


def test_partial_credit_for_nothing_is_a_warning(tmp_path):
    for credit in ("0.4", "0.9 * (task.id < 't3')"):
        result = checked(tmp_path, SOUND.replace("return roll", f"return {credit} if not rollout.text else roll"))
        assert result.sound
        assert verdicts(result)["an empty answer is not right"] == "warning"


def test_half_the_reward_for_nothing_on_most_tasks_is_unsound(tmp_path):
    source = SOUND.replace("return roll", "return 0.5 * (task.id < 't4') if not rollout.text else roll")
    fault = only_fault(checked(tmp_path, source))
    assert (fault.check, fault.found) == ("an empty answer is not right", "4 score 0.5 or more, up to 0.5")


def test_a_well_formed_answer_of_another_task_may_be_worth_much(tmp_path):
    result = checked(tmp_path, SOUND.replace("return roll", "return 0.6 if rollout.text[:1] == '4' else roll"))
    assert "another task's solution is not right" not in [fault.check for fault in result.faults]


def test_duplicates_and_near_duplicates_are_counted(tmp_path):
    words = " ".join(f"word{i}" for i in range(60))
    source = SOUND.replace("Which number comes after {i + 40}?", f"{words} {{'one' if i < 2 else 'two'}} {{i // 3}}")
    row = next(f for f in checked(tmp_path, source).findings if f.check == "prompts are distinct")
    assert (row.verdict, row.found) == ("warning", "3 duplicates, 2 near duplicates")


def test_state_of_its_own_and_valid_tools_pass(tmp_path):
    result = checked(tmp_path, STATEFUL)
    assert result.sound
    assert verdicts(result)["rollouts do not share state"] == "ok"
    assert verdicts(result)["tool schemas are valid"] == "ok"


def test_state_that_two_rollouts_share_is_found_out(tmp_path):
    shared = STATEFUL.replace("        return []", "        return LOG").replace(
        "return list(state)", "return list(LOG)"
    )
    shared += "\n    def close(self, state):\n        state.clear()\n"
    fault = only_fault(checked(tmp_path, shared))
    assert fault.check == "rollouts do not share state"
    assert "its result differs" in fault.found


def test_state_that_is_shared_shows_without_a_known_solution(tmp_path):
    shared = STATEFUL.replace("        return []", "        LOG[:] = []; return LOG").replace(
        'return f"{len(state)} things"', 'state[:] = [what]; return "done"'
    )
    shared = shared.replace("def solution", "def unknown")
    fault = only_fault(checked(tmp_path, shared, limit=2))
    assert fault.check == "rollouts do not share state"


@pytest.mark.parametrize(
    ("told", "verdict"),
    [("type(self).n = n = getattr(self, 'n', 0) + 1", "unsound"), ("import random; n = random.random()", "warning")],
    ids=["kept", "chance"],
)
def test_what_outlives_a_rollout_is_unsound_and_chance_a_warning(tmp_path, told, verdict):
    source = STATEFUL.replace('return f"{len(state)} things"', f'{told}; return f"{{n}} things"')
    result = checked(tmp_path, source.replace("def solution", "def unknown"), limit=2)
    row = next(f for f in result.findings if f.check == "rollouts do not share state")
    assert row.verdict == verdict
    assert ("a second rollout sees" in row.found) == (verdict == "unsound")


def test_a_tool_that_explains_nothing_is_a_warning(tmp_path):
    assert (
        verdicts(checked(tmp_path, STATEFUL.replace('"Put something down."', "pass")))["tool schemas are valid"]
        == "warning"
    )


def test_tools_that_tasks_have_of_their_own_are_checked_and_used(tmp_path):
    row = {f.check: f for f in checked(tmp_path, OFFERING).findings}
    assert (row["tool schemas are valid"].verdict, row["tool schemas are valid"].found) == ("ok", "6 tools")
    assert row["rollouts do not share state"].verdict == "ok"
    shared = OFFERING.replace("        return []", "        return LOG")
    assert verdicts(checked(tmp_path, shared))["rollouts do not share state"] == "unsound"


def test_offers_that_are_none_are_found_out(tmp_path):
    broken = OFFERING.replace('"parameters": {"type": "object"}', '"parameters": {"type": "string"}')
    rows = {f.check: f for f in checked(tmp_path, broken, limit=2).findings}
    assert rows["tool schemas are valid"].verdict == "unsound"
    assert "offers(task) gives put_t0 parameters that are not the schema" in rows["tool schemas are valid"].found


def test_a_solution_may_be_a_conversation(tmp_path):
    call = json.dumps({"calls": [{"name": "put", "arguments": {"what": "x"}}]})
    source = STATEFUL.replace("return task.answer\n", f"return [{call!r}, task.answer]\n").replace(
        "return roll", "return rollout.outcome == ['x'] and roll"
    )
    assert verdicts(checked(tmp_path, source))["known solutions score 1"] == "ok"


def test_what_tasks_and_solution_raise_is_told_in_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"Sound.solution\(\) raised ZeroDivisionError"):
        checked(tmp_path, SOUND.replace("return task.answer", "return 1 / 0"))


def test_an_environment_without_tasks_is_refused(tmp_path):
    with pytest.raises(UsageError, match="Sound has no tasks"):
        checked(tmp_path, SOUND.replace("range(6)", "range(0)"))


def test_it_is_awaited_in_a_running_loop(tmp_path):
    (tmp_path / "env.py").write_text(SOUND)

    async def work():
        return check(f"{tmp_path}/env.py", limit=2)

    assert asyncio.run(work()).tasks == 2


def test_who_uses_the_sandbox_is_seen_from_the_source():
    assert not uses_sandbox(GSM8K)
    assert uses_sandbox(resolve("humaneval").cls)


ROWS = {
    "code": [
        {
            "question": f"Read a number and print it times {i}.",
            "input_output": json.dumps({"inputs": ["1\n", "7\n"], "outputs": [f"{i}\n", f"{7 * i}\n"]}),
            "solution": f"print(int(input()) * {i})",
        }
        for i in range(2, 6)
    ],
    "math": [{"problem": f"{i} + 1?", "answer": str(i + 1)} for i in range(20, 24)],
    "mcqa": [{"question": f"Q{i}?", "options": ["red", "blue", "green"], "answer": "ABC"[i % 3]} for i in range(4)],
    "string_match": [{"question": f"Capital {i}?", "answer": ["Paris", "Rome", "Oslo"][i % 3]} for i in range(4)],
    "json_schema": [
        {"prompt": f"Give {i}.", "schema": {"type": "object", "required": ["n"]}, "answer": {"n": i}} for i in range(4)
    ],
}
ELSEWHERE = ("harbor", "openenv", "rubric", "rubric_calibration", "verifiers")
"""Those that need a server, containers, or a package that is not of ours: they have tests of their own."""

PLAIN = {
    "gsm8k": "gsm8k",
    "reasoning_gym": "reasoning_gym:chain_sum",
    "humaneval": "humaneval",
    "math500": "math500",
    "mbpp": "mbpp",
    "bbh": "bbh",
    "ifeval": "ifeval",
    "python_tool": "python_tool",
    "workplace": "workplace",
}


@pytest.mark.parametrize("name", sorted({*PLAIN, *ROWS}))
def test_every_built_in_is_sound(tmp_path, name):
    data = None
    if name in ROWS:
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS[name])))
        data = str(tmp_path / "rows.jsonl")
    result = check(PLAIN.get(name, name), limit=4, data=data)
    assert result.faults == []
    wanted = "not checked" if name == "ifeval" else "ok"  # its data has no solutions
    assert verdicts(result)["known solutions score 1"] == wanted


def test_no_built_in_is_left_out():
    assert set(BUILT_IN) == {*PLAIN, *ROWS, *ELSEWHERE}


def test_where_only_the_form_counts_answers_without_content_are_not_tried(tmp_path):
    careless = SOUND.replace("return rollout.text.strip() == task.answer", "return bool(rollout.text)")
    assert careless != SOUND
    refusal = "a refusal (I do not know.) is not right"
    assert verdicts(checked(tmp_path, careless))[refusal] == "unsound"
    formal = careless.replace("class Sound(Environment):", "class Sound(Environment):\n    judges_form = True\n")
    (tmp_path / "formal").mkdir()
    found = verdicts(checked(tmp_path / "formal", formal))
    assert (found[refusal], found["an empty answer is not right"]) == ("not checked", "ok")


JUDGED = (
    SOUND.replace("class Sound(Environment):", "class Sound(Environment):\n    needs_judge = True\n")
    + """
    async def appeal(self, task, rollout, score, judge):
        if score.reward:
            return score
        ruling = await judge.same(task.prompt, task.answer, rollout.text)
        return float(ruling.same)
"""
)


def test_an_environment_is_checked_with_its_judge(tmp_path):
    with JudgeServer() as judge:
        result = checked(tmp_path, JUDGED, limit=3, judge=judge.url)
    assert result.sound
    assert judge.asked
    with pytest.raises(UsageError, match="Sound cannot score without a judge"):
        checked(tmp_path, JUDGED)


def test_a_judge_that_lets_everything_pass_is_found_out(tmp_path):
    (tmp_path / "kind.jsonl").write_text(json.dumps({"answer": "Verdict: same"}))
    result = checked(tmp_path, JUDGED, limit=3, judge=f"scripted:{tmp_path}/kind.jsonl")
    assert "an empty answer is not right" in [fault.check for fault in result.faults]


def test_a_judge_that_nobody_asks_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--judge: Sound uses no judge"):
        checked(tmp_path, SOUND, judge="http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "            yield Task",
            "            yield 'hello'; yield Task",
            r"Sound: tasks\(\) gave a str, not a Task",
        ),
        ("answer=str(i + 41))", "answer=str(i + 41), f=lambda: 1)", "Sound: task 't0' cannot be stored as JSON"),
        ("return task.answer", "return 7", r"Sound.solution\('t0'\) is not text, a list of texts or None: 7"),
    ],
)
def test_what_is_no_environment_at_all_is_told_in_one_line(tmp_path, old, new, words):
    with pytest.raises(UsageError, match=words) as caught:
        checked(tmp_path, SOUND.replace(old, new))
    assert "\n" not in str(caught.value)


def test_the_findings_show_a_short_text_and_a_table():
    found = [Finding("repeat", "ok", 3, "the same"), Finding("empty", "unsound", 3, "<b> scores 1", "t0")]
    shown = Soundness("env.py:Sums", 3, found)
    assert repr(shown) == "Soundness(env.py:Sums: unsound, 3 tasks)\nempty: unsound, <b> scores 1"
    assert shown._repr_html_().count("<tr>") == 3
    assert "<b>" not in shown._repr_html_()
