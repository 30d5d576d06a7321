"""Change one expression of the package at a time and see whether its tests notice:  make mutate SEED=1 MUTANTS=20

A seed determines the sample. A mutant is killed if a test of its package (the tests mirror the source) fails or hangs;
first those run that name its module, then all of the package. Survivors are printed as a difference: each is a missing
test, or equivalent to the original. Nothing here changes the working tree: tests run in a copy.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCE = Path("src/rollbook")
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
    """Yield every change of the functions of a module; annotations, defaults and what is only typed stay."""
    tree = ast.parse((ROOT / path).read_text())
    bodies = {id(node) for node in _walk_bodies(tree)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) in bodies:
            for change in list_changes(node):
                yield Place(path, number, change)


def _walk_bodies(tree: ast.AST) -> Iterator[ast.AST]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Raise):
                        yield node


def list_changes(node: ast.AST) -> Iterator[str]:
    """Yield the names of the changes that a node allows."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
        yield "comparison"
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in OTHER:
        yield "operator"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "drop not"
    if isinstance(node, ast.Constant) and type(node.value) in (bool, int):
        yield "constant"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "negate condition"
    if isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield "return None"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await):
        yield "drop call"


def mutate(place: Place) -> tuple[str, str]:
    """Return a module before and after a change, both as the parser writes them."""
    tree = ast.parse((ROOT / place.path).read_text())
    before = ast.unparse(tree)
    node = next(node for number, node in enumerate(ast.walk(tree)) if number == place.node)
    new = copy.copy(node)
    if isinstance(new, ast.Compare):
        new.ops = [OTHER[type(new.ops[0])](), *new.ops[1:]]
    elif isinstance(new, ast.BoolOp | ast.BinOp):
        new.op = OTHER[type(new.op)]()
    elif isinstance(new, ast.UnaryOp):
        return before, ast.unparse(_replace(tree, node, new.operand))
    elif isinstance(new, ast.Constant):
        new.value = not new.value if isinstance(new.value, bool) else new.value + 1
    elif isinstance(new, ast.If | ast.IfExp | ast.While):
        new.test = ast.UnaryOp(ast.Not(), new.test)
    elif isinstance(new, ast.Return):
        new.value = ast.Constant(None)
    else:
        new = ast.Pass()
    return before, ast.unparse(_replace(tree, node, new))


def _replace(tree: ast.Module, old: ast.AST, new: ast.AST) -> ast.Module:
    class Replacer(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    return ast.fix_missing_locations(Replacer().visit(tree))


def choose_tests(path: Path) -> list[list[str]]:
    """Return the groups of tests to run one after another: those that name the module, then the package's others."""
    package = SOURCE / path.relative_to(SOURCE).parts[0]
    tests = sorted((ROOT / "tests" / package.name).rglob("test_*.py"))
    near = [each for each in tests if path.stem in each.name or f".{path.stem}" in each.read_text()]
    groups = [near, [each for each in tests if each not in near]]
    return [[str(each.relative_to(ROOT)) for each in group] for group in groups if group]


def is_killed(copy_root: Path, groups: list[list[str]], within_s: float) -> bool:
    """Return whether a test fails, or takes too long."""
    for tests in groups:
        command = [sys.executable, "-m", "pytest", "-x", "-m", "not slow and not model", *tests]
        if run_in_group(command, copy_root, within_s) not in (0, 5):  # 5: there was no test
            return True
    return False


def run_in_group(command: list[str], folder: Path, within_s: float) -> int:
    """Run a command in a process group of its own, which is killed if it takes too long; return its exit status."""
    environ = {**os.environ, "PYTHONPATH": str(folder / "src"), "ROLLBOOK_MUTANT": secrets.token_hex(4)}
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(within_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait(30)


def copy_files(to: Path) -> None:
    """Copy what tests need; build folders and environments stay behind."""
    for name in ("src", "tests", "docs", "examples", "benchmarks"):
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"):
        shutil.copy(ROOT / name, to / name)


def describe(place: Place, before: str, after: str) -> str:
    """Return the changed lines."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    shown = "\n".join(f"      {line}" for line in list(lines)[2:])
    return f"{place.path} ({place.change})\n{shown}"


def main() -> int:
    """Try a sample of mutants; return 1 if fewer are killed than asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutants", type=int, default=20)
    parser.add_argument("--packages", default=",".join(PACKAGES), help="of these packages, separated by commas")
    parser.add_argument("--at-least", type=float, default=0.0, help="exit with 1 if a smaller share is killed")
    parser.add_argument("--within-s", type=float, default=600.0, help="seconds for the tests of one mutant")
    options = parser.parse_args()
    modules = [path for name in options.packages.split(",") for path in sorted((ROOT / SOURCE / name).rglob("*.py"))]
    paths = [path.relative_to(ROOT) for path in modules if GUESTS not in path.parts and path.name[0] != "_"]
    places = [place for path in paths for place in list_places(path)]
    sample = random.Random(options.seed).sample(places, min(options.mutants, len(places)))
    print(f"mutate: seed {options.seed}: {len(sample)} of {len(places)} changes in {len(paths)} modules", flush=True)
    killed = try_all(sample, options.within_s)
    share = killed / len(sample)
    print(f"mutate: {killed} killed, {len(sample) - killed} survived: {share:.2f}")
    return int(share < options.at_least)


def try_all(sample: list[Place], within_s: float) -> int:
    """Run the tests on every mutant and print what survived; return how many were killed."""
    killed = 0
    with tempfile.TemporaryDirectory(prefix="mutate-") as name:
        copy_files(folder := Path(name))
        for place in sample:
            began, (before, after) = time.monotonic(), mutate(place)
            (folder / place.path).write_text(after)
            dead = is_killed(folder, choose_tests(place.path), within_s)
            shutil.copy(ROOT / place.path, folder / place.path)
            killed += dead
            shown = f"{place.path} ({place.change})" if dead else describe(place, before, after)
            print(f"  {'killed' if dead else 'SURVIVED'} {time.monotonic() - began:4.0f} s {shown}", flush=True)
    return killed


if __name__ == "__main__":
    sys.exit(main())
