"""Change one expression of the package at a time and see whether its tests notice:  make mutate SEED=1 MUTANTS=40

What is changed: every comparison, also a later one in a chain; `and`, `or` and arithmetic; a `not` (removed); constants
(numbers by one, true and false, text to no text and no text to some), also those that are defaults of parameters;
conditions (negated); what is returned (None instead); calls whose value is not used (removed); `except` (catches every
`Exception`, or does nothing).

A seed determines the sample. First the tests of a package (they mirror the source) run once without a change: if they
fail, nothing can be said of its mutants, and this ends with an error. That run also records which tests run which line.
A mutant is killed if one of those tests fails or hangs; where only other processes run the line, all tests of the
package run, those that name the module first. Survivors are printed as a difference: each is a missing test, or
equivalent to the original. The exit status is 1 if a smaller share than `--at-least` is killed; equivalent mutants
count as survivors, and a sample of less than 40 says little. Nothing here changes the working tree: tests run in a
copy. What was recorded is kept in
build/mutation until the package or a test of it changes.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import coverage

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/rollbook")
RECORDS = Path("build/mutation")
SELECTED = ["-m", "not slow and not model"]
PACKAGES = ("core", "book", "engine", "tokens", "stats", "models", "sandbox")
GUESTS = "inner"
"""Of the sandbox only the host side: what runs inside guests is tested by attacks, in tests/sandbox/attacks."""

OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip


class Place(NamedTuple):
    """One change: the file, the number of the node in it in the order of `ast.walk`, and which change of the node."""

    path: Path
    node: int
    change: str


def list_places(path: Path) -> Iterator[Place]:
    """Yield every change of the functions of a module; annotations, docstrings and what is only typed stay."""
    tree = ast.parse((ROOT / path).read_text())
    bodies = {id(node) for node in _walk_bodies(tree)} - {id(node) for node in _walk_fixed(tree)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in bodies:
            for change in list_changes(node):
                yield Place(path, number, change)


def _walk_bodies(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of the bodies of functions, and of the defaults of their parameters."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for default in (*function.args.defaults, *filter(None, function.args.kw_defaults)):
                yield from ast.walk(default)
            for statement in function.body:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise):
                    yield from ast.walk(statement)


def _walk_fixed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of docstrings and of types, which do nothing when they run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value
        elif isinstance(node, ast.AnnAssign | ast.arg) and node.annotation:
            yield from ast.walk(node.annotation)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "cast":
            yield from ast.walk(node.args[0])


def list_changes(node: ast.AST) -> Iterator[str]:
    """Yield the names of the changes that a node allows."""
    if isinstance(node, ast.Compare):
        for number, sign in enumerate(node.ops, 1):
            if type(sign) in OTHER:
                yield f"comparison {number}" if number > 1 else "comparison"
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in OTHER:
        yield "operator"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop not"
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int, float, str):
        if not isinstance(node.value, str):
            yield "constant"
        elif " " not in node.value:  # a text with spaces is a message
            yield "text"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "negate condition"
    if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield "return None"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield "drop call"
    if isinstance(node, ast.ExceptHandler):
        if node.type and ast.unparse(node.type) not in ("Exception", "BaseException"):
            yield "catch Exception"
        if not isinstance(node.body[0], ast.Pass):
            yield "drop handling"


def mutate(place: Place) -> tuple[str, str]:
    """Return a module before and after a change, both as the parser writes them."""
    tree = ast.parse((ROOT / place.path).read_text())
    before = ast.unparse(tree)
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == place.node)
    return before, ast.unparse(_replace(tree, node, _change(node, place.change)))


def _change(node: ast.AST, change: str) -> ast.AST:
    """Return what takes the place of a node."""
    new = copy.copy(node)
    if isinstance(new, ast.Compare):
        at = int(change.removeprefix("comparison") or 1) - 1
        new.ops = [*new.ops[:at], OTHER[type(new.ops[at])](), *new.ops[at + 1 :]]
    elif isinstance(new, ast.BoolOp | ast.BinOp):
        new.op = OTHER[type(new.op)]()
    elif isinstance(new, ast.UnaryOp):
        return new.operand
    elif isinstance(new, ast.Constant):
        new.value = _change_constant(new.value)
    elif isinstance(new, ast.If | ast.IfExp | ast.While):
        new.test = ast.UnaryOp(ast.Not(), new.test)
    elif isinstance(new, ast.Return):
        new.value = ast.Constant(None)
    elif isinstance(new, ast.ExceptHandler) and change == "catch Exception":
        new.type = ast.Name("Exception", ast.Load())
    elif isinstance(new, ast.ExceptHandler):
        new.body = [ast.Pass()]
    else:
        return ast.Pass()
    return new


def _change_constant(value: object) -> object:
    if isinstance(value, str):
        return "" if value else "changed"
    assert isinstance(value, bool | int | float)
    return not value if isinstance(value, bool) else value + 1


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> ast.Module:
    class Replacer(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return ast.fix_missing_locations(Replacer().visit(tree))


class TestsFail(Exception):
    """The tests of a package fail before anything is changed."""


class Recorded(NamedTuple):
    """The tests of a package without a change: pytest's last line, which tests run which line, and for how long."""

    summary: str
    lines: coverage.CoverageData
    seconds: dict[str, float]

    def find_tests(self, place: Place) -> list[str]:
        """Return the tests that run the lines of a place in their own process: those that name its module, then others.

        Short tests come first, because one test that fails is enough.
        """
        by_line = self.lines.contexts_by_lineno(str(place.path))
        tests = {test for line in find_lines(place) for test in by_line.get(line, ()) if test}
        return sorted(
            tests, key=lambda test: (place.path.stem not in test.partition("::")[0], self.seconds.get(test, 0.0), test)
        )


def record_tests(package: str, folder: Path, records: Path, within_s: float) -> Recorded:
    """Run the tests of a package without a change, unless it was done already; raise `TestsFail` unless they pass."""
    name = records / f"{package}-{digest_files(package)}"
    data, summary = name.with_suffix(".coverage"), name.with_suffix(".txt")
    if not summary.exists():
        records.mkdir(parents=True, exist_ok=True)
        output, settings = name.with_suffix(".log"), name.with_suffix(".ini")
        settings.write_text(f"[run]\nrelative_files = true\nsource = {SOURCE / package}\ndata_file = {data}\n")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest"]
        status = run_in_group(
            [*command, "-p", "mutation.contexts", *SELECTED, f"tests/{package}"], folder, within_s, output
        )
        lines = output.read_text().splitlines()
        last = next(
            (line for line in reversed(lines) if re.match(r"\d+ (passed|failed|skipped|error)", line)), "no result"
        )
        if status != 0:
            first = next((line for line in lines if line.startswith(("FAILED ", "ERROR "))), "no test failed")
            raise TestsFail(f"the tests in tests/{package} fail without a change ({last}), see {output}: {first}")
        summary.write_text(last)
    lines_run = coverage.CoverageData(str(data))
    lines_run.read()
    return Recorded(summary.read_text(), lines_run, json.loads(data.with_suffix(".json").read_text()))


def digest_files(package: str) -> str:
    """Return a digest of the source, and of the tests of a package and what they share."""
    found = hashlib.sha256()
    for folder in (SOURCE, Path("tests") / package, Path("tests/support")):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def find_lines(place: Place) -> range:
    """Return the lines of the statement around a place; of one with a body, those before the body.

    The default of a parameter is used by the body of the function. An `except` is run where something was raised.
    """
    nodes = list(ast.walk(ast.parse((ROOT / place.path).read_text())))
    if isinstance(node := nodes[place.node], ast.ExceptHandler):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    inside = {
        id(node): statement for statement in nodes if isinstance(statement, ast.stmt) for node in ast.walk(statement)
    }
    statement = inside[id(node)]  # the last that was walked: the innermost
    body = None if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else getattr(statement, "body", None)
    end = body[0].lineno - 1 if body else statement.end_lineno
    return range(statement.lineno, max(statement.lineno, end) + 1)


def choose_tests(path: Path) -> list[list[str]]:
    """Return the groups of tests to run one after another: those that name the module, then the package's others."""
    package = SOURCE / path.relative_to(SOURCE).parts[0]
    tests = sorted((ROOT / "tests" / package.name).rglob("test_*.py"))
    near = [each for each in tests if path.stem in each.name or f".{path.stem}" in each.read_text()]
    groups = [near, [each for each in tests if each not in near]]
    return [[str(each.relative_to(ROOT)) for each in group] for group in groups if group]


def is_killed(copy_root: Path, groups: list[list[str]], within_s: float, test_within_s: float = 60.0) -> bool:
    """Return whether a test fails, or takes too long."""
    hangs = ["-o", f"faulthandler_timeout={test_within_s}", "-o", "faulthandler_exit_on_timeout=true"]
    command = [sys.executable, "-m", "pytest", "-x", *hangs, *SELECTED]
    for tests in groups:
        status = run_in_group([*command, *tests], copy_root, within_s)
        if status == 4:  # a test is not found: its file cannot be imported, or it has another name now
            status = run_in_group([*command, *sorted({test.partition("::")[0] for test in tests})], copy_root, within_s)
        if status not in (0, 5):  # 5: there was no test
            return True
    return False


def run_in_group(command: list[str], folder: Path, within_s: float, output: Path = Path(os.devnull)) -> int:
    """Run a command in a process group of its own, of which nothing is left; return its exit status."""
    paths = os.pathsep.join([str(folder / "src"), str(folder / "tests")])
    environ = {**os.environ, "PYTHONPATH": paths, "ROLLBOOK_MUTANT": secrets.token_hex(4)}
    with output.open("w") as stdout:
        process = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=stdout, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def copy_files(to: Path) -> None:
    """Copy what tests need; build folders and environments stay behind."""
    for name in ("src", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, to / path.name)


def describe(place: Place, before: str, after: str) -> str:
    """Return the changed lines."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    shown = "\n".join(f"      {line}" for line in list(lines)[2:])
    return f"{place.path} ({place.change})\n{shown}"


def main() -> int:
    """Try a sample of mutants; return 1 if fewer are killed than asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=40)
    parser.add_argument("--packages", default=",".join(PACKAGES), help="of these packages, separated by commas")
    parser.add_argument("--at-least", type=float, default=0.92, help="exit with 1 if a smaller share is killed")
    parser.add_argument("--within-s", type=float, default=600.0, help="seconds for the tests of one package or mutant")
    options = parser.parse_args()
    modules = [path for name in options.packages.split(",") for path in sorted((ROOT / SOURCE / name).rglob("*.py"))]
    paths = [path.relative_to(ROOT) for path in modules if GUESTS not in path.parts and path.name[0] != "_"]
    places = [place for path in paths for place in list_places(path)]
    sample = random.Random(options.seed).sample(places, min(options.mutants, len(places)))
    print(f"mutate: seed {options.seed}: {len(sample)} of {len(places)} changes in {len(paths)} modules", flush=True)
    try:
        killed = try_all(sample, options.within_s)
    except TestsFail as error:
        print(f"mutate: {error}", file=sys.stderr)
        return 2
    share = killed / len(sample)
    print(f"mutate: {killed} killed, {len(sample) - killed} survived: {share:.2f}")
    return int(share < options.at_least)


def try_all(sample: list[Place], within_s: float) -> int:
    """Run the tests on every mutant and print what survived; return how many were killed."""
    killed, recorded = 0, dict[str, Recorded]()
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        copy_files(folder := Path(name))
        for place in sample:
            package = place.path.relative_to(SOURCE).parts[0]
            if package not in recorded:
                recorded[package] = record_tests(package, folder, ROOT / RECORDS, within_s)
                print(f"  tests/{package} without a change: {recorded[package].summary}", flush=True)
            began, (before, after) = time.monotonic(), mutate(place)
            (folder / place.path).write_text(after)
            tests = recorded[package].find_tests(place)
            dead = is_killed(folder, [tests] if tests else choose_tests(place.path), within_s)
            shutil.copy(ROOT / place.path, folder / place.path)
            killed += dead
            shown = f"{place.path} ({place.change})" if dead else describe(place, before, after)
            print(f"  {'killed' if dead else 'SURVIVED'} {time.monotonic() - began:4.0f} s {shown}", flush=True)
    return killed


if __name__ == "__main__":
    sys.exit(main())
