"""Two runs on disk, made comparable: the same environment, and the same tasks or an agreed intersection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from rollbook.book.book import Book
from rollbook.collect.report import Reading
from rollbook.core.json import JSON, encode
from rollbook.core.manifest import EnvironmentSpec
from rollbook.errors import BookError, UsageError
from rollbook.stats.columns import Ints
from rollbook.stats.compare import Comparison, Side, compare
from rollbook.stats.tasks import PASS


class Run(msgspec.Struct, frozen=True):
    """One of the two: what it is and how complete."""

    run: str
    path: str
    model: str
    scripted: bool
    requested: int
    scored: int
    live: bool


class Compared(msgspec.Struct, frozen=True):
    """Two runs and what came of comparing them. `notes` say what the reader has to bear in mind."""

    a: Run
    b: Run
    notes: list[str]
    comparison: Comparison

    def json(self) -> dict[str, JSON]:
        """The comparison as plain JSON."""
        plain: dict[str, JSON] = msgspec.to_builtins(self)
        return plain


class Pairing(msgspec.Struct, frozen=True):
    """Which tasks two books share: by id and by content. `pairs` gives a row its pair's number, or -1."""

    names: list[str]
    pairs: tuple[Ints, Ints]
    only_a: list[str]
    only_b: list[str]
    changed: list[str]

    def groups(self, a: Reading) -> Ints | None:
        """The environment of every pair, where there are several."""
        if a.groups is None:
            return None
        held = np.zeros(len(self.names), np.int64)
        rows = np.flatnonzero(self.pairs[0] >= 0)
        held[self.pairs[0][rows]] = a.groups[rows]
        return held

    @property
    def differs(self) -> str:
        """How the task sets differ; empty if they do not."""
        said = [
            f"{len(ids)} {words} (first: {ids[0]})"
            for ids, words in (
                (self.only_a, "only in A"),
                (self.only_b, "only in B"),
                (self.changed, "with the same id but another prompt or answer"),
            )
            if ids
        ]
        return ", ".join(said)


def compare_runs(
    a: str | Path,
    b: str | Path,
    *,
    common: bool = False,
    ks: Sequence[int] | None = None,
    threshold: float = PASS,
    seed: int = 0,
) -> Compared:
    """Compare two runs; a UsageError where that would mean nothing. `common`: go on with the tasks both have."""
    books = Book(a), Book(b)
    for book in books:
        book.check_tasks()
    pairing, notes = paired(*books, common=common)
    return compare_readings(Reading([a]), Reading([b]), pairing, notes, ks, threshold, seed)


def paired(a: Book, b: Book, *, common: bool) -> tuple[Pairing, list[str]]:
    """The tasks of two books that are compared, and what is to be borne in mind of the rest."""
    differing = check_environments(a, b)
    pairing = pair(a, b)
    notes: list[str] = []
    if pairing.differs:
        shared = f"{len(pairing.names)} in common"
        if not common or not pairing.names:
            way = "; go on with those: --common" if pairing.names else ""
            raise UsageError(f"{a.path} and {b.path} do not have the same tasks: {pairing.differs}; {shared}{way}")
        notes.append(f"task sets differ: {pairing.differs}; {shared} compared")
    return pairing, notes + differing


def compare_readings(
    one: Reading,
    two: Reading,
    pairing: Pairing,
    notes: Sequence[str],
    ks: Sequence[int] | None = None,
    threshold: float = PASS,
    seed: int = 0,
) -> Compared:
    """Compare two runs that were read."""
    notes = list(notes)
    groups = pairing.groups(one)
    left, right = (Side(read.tally.columns, p, groups) for read, p in zip((one, two), pairing.pairs, strict=True))
    made = compare(left, right, pairing.names, ks, threshold, seed)
    if made.tasks < len(pairing.names):
        notes.append(f"{len(pairing.names) - made.tasks} tasks without a score in A or in B left out")
    for side, read in (("A", one), ("B", two)):
        notes += [f"{side} is still running"] if read.live else []
        notes += [f"{side} holds scores of two verifiers"] if read.book.manifest.mixed else []
    if threshold != PASS:
        notes.append(f"a rollout passes from a reward of {threshold:g}")
    return Compared(described(one), described(two), notes, made)


def described(read: Reading) -> Run:
    """What a run is and how complete."""
    manifest = read.book.manifest
    requested, scored = int(read.asked.sum()), len(read.tally.columns)
    scripted = manifest.model.kind == "scripted"
    return Run(manifest.run, str(read.book.path), manifest.model.name, scripted, requested, scored, read.live)


def check_environments(a: Book, b: Book) -> list[str]:
    """Refuse environments of different names; note where source, arguments or judge are not the same in both."""
    one, two = a.manifest.environments, b.manifest.environments
    if set(one) != set(two):
        words = " and ".join(f"{book.path} is of {', '.join(sorted(book.manifest.environments))}" for book in (a, b))
        raise UsageError(f"different environments cannot be compared: {words}")
    if a.manifest.run == b.manifest.run:
        return ["A and B are of the same run: they differ only in what each directory holds"]
    differ = {name: how for name in one if (how := _differs(name, one[name], two[name]))}
    judges = [book.manifest.judge.name if book.manifest.judge else "no judge" for book in (a, b)]
    judged = [f"A has {judges[0]}, B {judges[1]}"] if a.manifest.judge != b.manifest.judge else []
    if again := _scored_again(a, b):
        return [f"{again}{_by(name, a, b, differ)}" for name in one] + judged
    return [f"the {how}" for how in differ.values()] + judged


def _by(name: str, a: Book, b: Book, differ: dict[str, str]) -> str:
    """With whose verifier a run was scored again; nothing is said where one of them holds scores of two."""
    if name in differ:
        return f": the verifier of {name} differs (the {differ[name]})"
    mixed = a.manifest.mixed or b.manifest.mixed or a.manifest.judge != b.manifest.judge
    return "" if mixed else ": by the same verifier"


def _differs(name: str, one: EnvironmentSpec, two: EnvironmentSpec) -> str:
    """In what two environments of one name are not the same; empty if they are."""
    said = []
    if (one.target, one.digest) != (two.target, two.digest):
        moved = "" if one.target == two.target else f" ({one.target} and {two.target})"
        said.append(f"source of {name} is not the same in both{moved}")
    pairs = {key: (_shown(one, key), _shown(two, key)) for key in sorted({*one.args, *two.args})}
    if changed := [f"{key}: {left} and {right}" for key, (left, right) in pairs.items() if left != right]:
        words = ", ".join(changed)
        said.append(f"arguments of {name} are not the same in both ({words})")
    return ", the ".join(said)


def _shown(spec: EnvironmentSpec, key: str) -> str:
    return encode(spec.args[key]).decode() if key in spec.args else "not given"


def _scored_again(a: Book, b: Book) -> str:
    """Whether one of the runs is the other with its rollouts scored again, in words."""
    if b.manifest.parent == a.manifest.run:
        return "B is A scored again"
    return "A is B scored again" if a.manifest.parent == b.manifest.run else ""


def pair(a: Book, b: Book) -> Pairing:
    """Match tasks by id; those that ask something else, or expect another answer, are not the same task."""
    one, two = a.tasks.rows, b.tasks.rows
    shared = [task for task in one if task in two]
    try:
        changed = [task for task in shared if not _same(a.tasks.raw(one[task]), b.tasks.raw(two[task]))]
    except msgspec.DecodeError as error:
        raise BookError(f"{a.path} and {b.path}: a line of tasks.jsonl is not a task: {error}") from None
    names = [task for task in shared if task not in set(changed)] if changed else shared
    pairs = np.full(len(a.tasks), -1), np.full(len(b.tasks), -1)
    for number, task in enumerate(names):
        pairs[0][one[task]] = pairs[1][two[task]] = number
    return Pairing(names, pairs, [t for t in one if t not in two], [t for t in two if t not in one], changed)


class _Asked(msgspec.Struct):
    """What makes a task the same task. Other fields may differ: a profile adds some."""

    env: str
    messages: JSON
    answer: JSON = None


_asked = msgspec.json.Decoder(_Asked)


def _same(a: bytes, b: bytes) -> bool:
    return a == b or _asked.decode(a) == _asked.decode(b)
