"""Grade code that tries to pass by any means: the tests and the expected values are never in the process of the code.

Tests in Python run in a guest of their own and reach the code through a channel of plain data (`function`): two guests,
a socket between them, and clocks for both. Inputs go to the code one by one, in a guest that stays (a new one when it
was lost), and the host compares the output (`inputs`, `calls`). No exit code and no printed word of the code decides
anything. Tests that reach into the process of the code are refused: no answer of the code could satisfy them.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from threading import Thread
from types import UnionType
from typing import Any, NamedTuple

import msgspec

from rollbook.core import JSON, JSON_ERRORS
from rollbook.errors import SandboxError, TestsBroken, UsageError
from rollbook.sandbox.guest import Guest, GuestRun
from rollbook.sandbox.inner.plain_data import NotPlain, pack
from rollbook.sandbox.launcher import GuestLauncher
from rollbook.sandbox.limits import MAX_SECONDS, Limits, check_text, choose_limits
from rollbook.sandbox.outputs import Rule, same_value
from rollbook.sandbox.results import ProgramError, Result, Verdict, VerdictReason
from rollbook.sandbox.sandbox import Sandbox
from rollbook.sandbox.session import async_method, blocking_method
from rollbook.sandbox.session_state import PersistentState


class CrossProcessUse(NamedTuple):
    """Something that tests do, the pattern that finds it in their text, and words of the code it affects (any by
    default)."""

    what: str
    tests: re.Pattern[str]
    code: tuple[str, ...] = ("",)


CROSS_PROCESS_USES = (
    CrossProcessUse(
        "capture what the code prints",
        re.compile(r"\bredirect_std(out|err)\b|\bsys\.(stdout|stderr)\b|\bcapsys\b|\bcapfd\b"),
        ("print", "stdout", "stderr", "logging"),
    ),
    CrossProcessUse("replace the input of the code", re.compile(r"\bsys\.stdin\b"), ("input", "stdin")),
    CrossProcessUse(
        "replace something that the code uses", re.compile(r"\bpatch\b|\bmonkeypatch\b|\bbuiltins\.\w+\s*=")
    ),
    CrossProcessUse("seed the code's random numbers", re.compile(r"\bseed\("), ("random",)),
    CrossProcessUse(
        "leave files for the code, or look at its own",
        re.compile(r"\bopen\(|\bwrite_(text|bytes)\(|\bread_(text|bytes)\(|\btempfile\b|\bos\.(path|listdir|remove)\b"),
        ("open", "Path", "os."),
    ),
)


def find_cross_process_use(tests: str, code: str) -> str:
    """Return what these tests do that only works in one process with this code; empty for most.

    >>> find_cross_process_use("random.seed(1)", "import random")
    "seed the code's random numbers"
    >>> find_cross_process_use("random.seed(1)", "def f(x): return x")
    ''
    """
    uses = (
        use.what for use in CROSS_PROCESS_USES if use.tests.search(tests) and any(word in code for word in use.code)
    )
    return next(uses, "")


class ExaminerReport(msgspec.Struct):
    """The report of an examiner."""

    verdict: str
    weak: bool
    side_effects: bool
    error: ProgramError | None


MIN_REPORT_KB = 64
"""Room for the report of the tests, whatever the code raises: a report that was cut would be none."""


class Examination:
    """Runs the code under test in one guest and the tests in another; only the second reports the outcome."""

    def __init__(self, launcher: GuestLauncher, limits: Limits) -> None:
        self._launcher, self._limits = launcher, limits
        self._examiner_limits = msgspec.structs.replace(
            limits, wall_seconds=min(2 * limits.wall_s, MAX_SECONDS), output_kb=max(limits.output_kb, MIN_REPORT_KB)
        )
        self._candidate_result: Result | BaseException | None = None

    def run(self, code: str, exam: Mapping[str, JSON]) -> tuple[Result, Result]:
        """Return the results of the tests and of the code."""
        candidate_end, examiner_end = socket.socketpair()
        candidate = examiner = None
        try:
            request = {"core": self._launcher.core, "classes": exam["classes"]}
            candidate = self._launcher.launch(
                "candidate", self._limits, code=code, extra=[candidate_end.fileno()], request=request
            )
            examiner = self._launcher.launch(
                "examiner", self._examiner_limits, code=json.dumps(exam), extra=[examiner_end.fileno()], request=request
            )
            candidate_end.close()  # so that each guest notices when the other is gone
            examiner_end.close()
            return self._run_watched(candidate, examiner)
        finally:
            candidate_end.close()
            examiner_end.close()
            for guest in (examiner, candidate):
                if guest:
                    guest.close()

    def _run_watched(self, candidate: Guest, examiner: Guest) -> tuple[Result, Result]:
        watcher = Thread(target=self._run_candidate, args=[candidate], daemon=True)
        watcher.start()
        try:
            result = GuestRun(examiner, self._examiner_limits, shared_core=True).wait_for_result()
        finally:
            candidate.process.kill()
            watcher.join()
        if not isinstance(self._candidate_result, Result):
            raise self._candidate_result or RuntimeError("the candidate was not supervised")
        return result, self._candidate_result

    def _run_candidate(self, candidate: Guest) -> None:
        try:
            self._candidate_result = GuestRun(candidate, self._limits, shared_core=True).wait_for_result()
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self._candidate_result = error


def make_verdict(examined: Result, candidate: Result) -> Verdict:
    """Return the examiner's verdict, or the reason why there is none."""
    costs: dict[str, Any] = {"seconds": examined.seconds, "cpu_seconds": candidate.cpu_seconds}
    costs["isolation"] = candidate.isolation
    report = decode_report(examined)
    if report is None:
        return Verdict(False, find_limit(examined), f"the tests ended with {examined.status}", **costs)
    message = format_error(report.error)
    if report.verdict == "broken":
        raise TestsBroken(f"the tests do not run: {message}")
    if report.verdict == "passed":
        return Verdict(True, "passed", weak=report.weak, fraction=1.0, **costs)
    if report.verdict == "gone":
        return Verdict(False, find_reason(candidate), format_error(candidate.error), **costs)
    reasons: dict[str, VerdictReason] = {"refused": "refused", "memory": "memory"}
    return Verdict(False, reasons.get(report.verdict, "failed"), message, weak=report.weak, **costs)


def find_limit(examined: Result) -> VerdictReason:
    """Return which limit tests without a report reached, with what the code gave them. Tests that left their process
    are broken; any other end is a failure of the sandbox, because the code cannot cause it."""
    if examined.status in ("timeout", "memory", "output"):
        return examined.status
    if examined.status in ("ok", "error"):
        raise TestsBroken(f"the tests left their process with exit code {examined.exit}")
    raise SandboxError(f"the process of the tests ended with {examined.status}")


def decode_report(examined: Result) -> ExaminerReport | None:
    """Return the examiner's report, if there is one."""
    try:
        return msgspec.json.decode(examined.value or "", type=ExaminerReport)
    except JSON_ERRORS:
        return None


def confirm_verdict(first: Verdict, second: Verdict, allow_weak: bool) -> Verdict:
    """Judge code that passed and changed its arguments, or returned them: it must pass by its values alone too."""
    costs: dict[str, Any] = {"seconds": first.seconds + second.seconds}
    costs["cpu_seconds"] = first.cpu_seconds + second.cpu_seconds
    if second.passed:
        return msgspec.structs.replace(second, **costs)
    if allow_weak:
        return msgspec.structs.replace(first, weak=True, **costs)
    why = (
        "the code changes its arguments, or returns them, and passes only by that; in_place=True is for such functions"
    )
    return Verdict(False, "refused", why, isolation=first.isolation, **costs)


def find_reason(result: Result) -> VerdictReason:
    """Return why the code did not answer: with exit code 0 or not, it ended instead of waiting for a question."""
    return "exit" if result.status == "ok" or (result.status == "error" and result.error is None) else result.status


def format_error(error: ProgramError | None) -> str:
    """Return an error as one line."""
    return f"{error.type}: {error.message}" if error else ""


class GradingCase(NamedTuple):
    """The message to the guest, and the check of its result."""

    body: Mapping[str, JSON]
    is_right: Callable[[Result], bool]


class CaseRunner:
    """Runs the cases of one program. The host judges its output and values; the program never sees expected ones."""

    def __init__(self, launcher: GuestLauncher, role: str, code: str, limits: Limits) -> None:
        self._launcher, self._role, self._code, self._limits = launcher, role, code, limits
        self._guest: PersistentState | None = None

    def grade(self, cases: Sequence[GradingCase], all_of_them: bool) -> Verdict:
        """Return how many cases were right, and what went wrong with the first that was not."""
        results: list[Result] = []
        wrong: list[int] = []
        for index, result in enumerate(self._run_cases(cases)):
            results.append(result)
            if not (self._ended_well(result) and cases[index].is_right(result)):
                wrong.append(index)
                if not all_of_them:
                    break
        reason, detail = _explain_failure(wrong[0], results[wrong[0]]) if wrong else ("passed", "")
        return Verdict(
            not wrong,
            reason,
            detail,
            fraction=(len(results) - len(wrong)) / len(cases),
            seconds=sum(result.seconds for result in results),
            cpu_seconds=sum(result.cpu_seconds for result in results),
            isolation=self._launcher.isolation,
        )

    def _ended_well(self, result: Result) -> bool:
        """Return whether the output counts: a program may exit with 0 once it has printed everything."""
        return result.status == "ok" or (self._role == "inputs" and exited_with_0(result))

    def _run_cases(self, cases: Sequence[GradingCase]) -> Iterator[Result]:
        try:
            for case in cases:
                yield self._run_case(case.body)
        finally:
            if self._guest:
                self._guest.close()

    def _run_case(self, body: Mapping[str, JSON]) -> Result:
        self._guest = guest = self._guest or PersistentState(
            self._launcher, self._limits, {}, role=self._role, code=self._code
        )
        result = guest.run_turn(body, self._limits)
        if result.state == "lost":
            guest.close()
            self._guest = None
        return result


def exited_with_0(result: Result) -> bool:
    """Return whether the process exited by itself with 0 before the turn ended."""
    return result.state == "lost" and result.exit == 0


def _explain_failure(index: int, result: Result) -> tuple[VerdictReason, str]:
    if result.status == "ok" or exited_with_0(result):
        return "failed", f"case {index + 1}: another output was expected"
    return result.status, f"case {index + 1}: {format_error(result.error) or result.status}"


MIN_VALUE_KB = 4096
"""A returned value is compared as a whole, so more of it is kept than of output for people."""
EXAMINER_TIME_FACTOR = 2
"""Tests may take twice the wall time of the code, and some are run again."""
OUTPUT_FACTOR = 4
"""How much is kept of an output, as a multiple of the longest expected one: room for white space and packed values."""


class Grader:
    """Grades in an open sandbox: `function`, `inputs` and `calls`, each also as a blocking method."""

    def __init__(self, box: Sandbox) -> None:
        self._sandbox = box

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        return self._sandbox._submit(work)

    def _function(
        self,
        code: str,
        tests: str,
        entry: str,
        *,
        check: str = "",
        setup: str = "",
        limits: Limits | None = None,
        allow_weak: bool = False,
        in_place: bool = False,
        is_class: bool | None = None,
    ) -> Verdict:
        """Run tests, a module in which `entry` is the code's function or class of that name.

        A function should return plain data: an object of the code's own is assumed to hold data and nothing else.
        `check`: a function of the tests that is then called with the entry point. `setup` runs before the tests and on
        their side: trusted helpers. Tests that compare objects of the code's own classes are refused, and so is code
        that passes only by changing its arguments; `allow_weak` accepts both. `in_place`: the function is there to
        change its arguments, and to return None. `is_class`: whether a class is under test, whose objects answer for
        themselves; None: its name and how the tests use it decide.
        """
        exam: dict[str, JSON] = {"tests": tests, "entry": entry, "check": check, "setup": setup, "weak": allow_weak}
        check_entry(entry)
        for what in ("tests", "check", "setup"):
            check_text(what, exam[what])
        exam |= {"in_place": True} if in_place else {}  # a server may be older
        exam |= {} if is_class is None else {"is_class": is_class}
        run_limits = self._check_code(code, limits)
        if self._sandbox.remote:
            return self._sandbox.remote.grade("function", code, exam, run_limits, 2 * EXAMINER_TIME_FACTOR)
        classes = names_a_class(entry) if is_class is None else is_class
        exam |= {"in_place": in_place, "is_class": is_class, "classes": classes}

        def examine(copies: bool) -> tuple[Result, Result]:
            request = exam | {"copies": copies}
            return self._sandbox.use_launcher(lambda launcher: Examination(launcher, run_limits).run(code, request))

        results = examine(False)
        verdict, report = make_verdict(*results), decode_report(results[0])
        if verdict.passed and report and report.side_effects:
            return confirm_verdict(verdict, make_verdict(*examine(True)), allow_weak)
        if verdict.reason == "failed" and (what := find_cross_process_use(f"{setup}\n{tests}", code)):
            return msgspec.structs.replace(verdict, reason="refused", detail=f"the tests {what}: {verdict.detail}")
        return verdict

    def _inputs(
        self,
        code: str,
        cases: Sequence[tuple[str, str]],
        *,
        rule: Rule = Rule(),  # noqa: B008 - frozen
        limits: Limits | None = None,
        all_of_them: bool = False,
    ) -> Verdict:
        """Run the whole program on every (stdin, expected stdout). Stops at the first failure unless `all_of_them`."""
        run_limits = self._check_code(code, limits)
        for case in cases:
            check_case(case, "(stdin, expected stdout), both texts", str, str)
        if self._sandbox.remote:
            request: dict[str, JSON] = {"cases": list(cases), "rule": rule, "all_of_them": all_of_them}
            return self._sandbox.remote.grade("inputs", code, request, run_limits, len(cases))
        grading_cases = [GradingCase({"stdin": stdin}, _make_output_check(expected, rule)) for stdin, expected in cases]
        case_limits = _widen_limits(run_limits, (expected for _, expected in cases))
        return self._run_cases("inputs", code, grading_cases, case_limits, all_of_them)

    def _calls(
        self,
        code: str,
        entry: str,
        cases: Sequence[tuple[Sequence[JSON], JSON]],
        *,
        tolerance: float = 1e-9,
        limits: Limits | None = None,
        all_of_them: bool = False,
    ) -> Verdict:
        """Call the code's function `entry` with every (arguments, expected value), each from JSON."""
        run_limits = self._check_code(code, limits)
        check_entry(entry)
        for case in cases:
            check_case(case, "(arguments, expected value), the arguments as a list", list | tuple, object)
        if self._sandbox.remote:
            packed = pack([(list(args), expected) for args, expected in cases], _refuse_object)
            request: dict[str, JSON] = {
                "entry": entry,
                "cases": packed,
                "tolerance": tolerance,
                "all_of_them": all_of_them,
            }
            return self._sandbox.remote.grade("calls", code, request, run_limits, len(cases))
        grading_cases = [
            GradingCase({"args": pack(list(args), _refuse_object)}, _make_value_check(expected, tolerance))
            for args, expected in cases
        ]
        case_limits = _widen_limits(run_limits, (_format_expected(expected) for _, expected in cases), MIN_VALUE_KB)
        return self._run_cases(
            "calls", json.dumps({"code": code, "entry": entry}), grading_cases, case_limits, all_of_them
        )

    def _check_code(self, code: str, limits: Limits | None) -> Limits:
        check_text("code", code)
        return choose_limits(limits, self._sandbox.limits)

    def _run_cases(self, role: str, code: str, cases: list[GradingCase], limits: Limits, all_of_them: bool) -> Verdict:
        if not cases:
            raise TestsBroken("there are no cases to grade with")
        return self._sandbox.use_launcher(
            lambda launcher: CaseRunner(launcher, role, code, limits).grade(cases, all_of_them)
        )

    function, function_sync = async_method(_function), blocking_method(_function)
    inputs, inputs_sync = async_method(_inputs), blocking_method(_inputs)
    calls, calls_sync = async_method(_calls), blocking_method(_calls)


def check_case(case: object, shape: str, *kinds: type | UnionType) -> None:
    """Raise UsageError unless a case is a pair of these types."""
    if not (isinstance(case, list | tuple) and len(case) == 2 and all(map(isinstance, case, kinds))):
        raise UsageError(f"case {case!r:.80}: give {shape}")


def _widen_limits(limits: Limits, expected: Iterable[str], least_kb: int = 0) -> Limits:
    """Return limits that keep enough of an output to compare it with the longest expected one."""
    longest = max((len(text.encode(errors="replace")) for text in expected), default=0)
    return msgspec.structs.replace(limits, output_kb=max(limits.output_kb, least_kb, OUTPUT_FACTOR * longest >> 10))


def _format_expected(expected: JSON) -> str:
    """Return a value roughly as the guest would return it."""
    try:
        return json.dumps(expected, default=str, skipkeys=True)
    except ValueError:  # a number of thousands of digits
        return json.dumps(pack(expected, repr))


def check_entry(entry: str) -> None:
    """Raise UsageError unless a program can define this name: else the code would fail for the tests' mistake."""
    check_text("entry", entry)
    if not entry.isidentifier():
        raise UsageError(f"entry {entry[:80]!r}: give the name of a function or class")


def names_a_class(entry: str) -> bool:
    """Return whether a class is under test: the task's name decides, by Python's naming style; the code never does.

    >>> [names_a_class(name) for name in ("Stack", "find_zero", "Strongest_Extension")]
    [True, False, False]
    """
    return entry[:1].isupper() and "_" not in entry


def _make_output_check(expected: str, rule: Rule) -> Callable[[Result], bool]:
    return lambda result: not result.stdout_cut and rule.same(expected, result.stdout)


def _make_value_check(expected: JSON, tolerance: float) -> Callable[[Result], bool]:
    def is_right(result: Result) -> bool:
        try:
            return same_value(expected, packed_to_json(json.loads(result.value or "")), tolerance)
        except (ValueError, TypeError, NotPlain, RecursionError):
            return False

    return is_right


def _refuse_object(value: object) -> JSON:
    raise TestsBroken(f"a case holds an object of {type(value).__name__}: only plain data can be handed over")


def packed_to_json(data: JSON) -> JSON:
    """Return a packed value as JSON. Only texts are hashed here: numbers can be chosen so that hashing takes
    forever."""
    if not isinstance(data, list):
        return data
    tag, content = data
    if tag in ("n", "Q"):  # a named tuple, a bounded deque
        tag, content = "l", content[1]
    if tag == "m":  # a Counter and its like
        tag, content = "d", list(zip(content[1][::2], content[1][1::2], strict=True))
    if tag in ("l", "t", "q"):
        return [packed_to_json(item) for item in content]
    if tag == "d":
        by_text = {str(packed_to_json(key)): packed_to_json(item) for key, item in content}
        if len(by_text) != len(content):
            raise NotPlain("two keys of one name")
        return by_text
    if tag == "i":
        return int(content, 16)
    if tag == "f":
        return float(content)
    raise NotPlain(f"not JSON: {tag}")
