"""A member: one environment of a run, found and named; the only one, or one of a blend."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from rollbook.collect.blend import NAME, Blend, Entry, read_blend
from rollbook.collect.request import Request
from rollbook.environments.environment import Environment
from rollbook.environments.registry import Loaded, names_blend, of, resolve
from rollbook.environments.snapshot import sources
from rollbook.errors import UsageError


@dataclass(frozen=True)
class Member:
    """An environment that takes part: `most` of its tasks are asked, of which a blend's weights gave it `share`."""

    name: str
    loaded: Loaded
    most: int | None
    entry: Entry | None = None
    share: int | None = None
    where: str = ""

    @property
    def prefix(self) -> str:
        """What stands before the ids of its tasks in the book."""
        return f"{self.name}/" if self.entry else ""

    def wrong(self, why: object) -> UsageError:
        """A mistake in what the blend says of it."""
        return UsageError(f"{self.where}: {why}")


def is_blend(env: str | Environment) -> bool:
    """Whether a file of several environments was named."""
    return isinstance(env, str) and names_blend(env)


def name_of(loaded: Loaded) -> str:
    """What an environment is called in the book: the class of the user's own source, else as it was asked for."""
    return loaded.cls.__name__ if loaded.path else loaded.spec.spec.partition("?")[0]


def found(env: str | Environment, data: str | None = None, template: str | None = None) -> Loaded:
    """The environment that was asked for."""
    return of(env) if isinstance(env, Environment) else resolve(env, data, template)


def members_of(request: Request) -> list[Member]:
    """All environments that were asked for."""
    if not isinstance(request.env, str) or not is_blend(request.env):
        loaded = found(request.env, request.data, request.template)
        return [Member(name_of(loaded), loaded, request.limit)]
    for option, value in (("--data", request.data), ("--prompt-template", request.template)):
        if value is not None:
            raise UsageError(f"{option} {value}: {request.env} says itself which rows each of its environments asks")
    blend = read_blend(request.env)
    entries = zip(blend.entries, shared(blend), strict=True)
    several = [_member(blend, line, entry, share, request) for (line, entry), share in entries]
    _check_names(several)
    _check_modules(several)
    return several


def _member(blend: Blend, line: int, entry: Entry, share: int | None, request: Request) -> Member:
    try:
        beside = blend.path.parent
        loaded = resolve(entry.env, blend.beside(entry.data), blend.beside(entry.template), beside=beside)
    except UsageError as error:
        raise blend.wrong(line, error) from None
    caps = [count for count in (share, entry.limit, request.limit) if count is not None]
    name = entry.name or name_of(loaded)
    if not NAME.fullmatch(name):
        raise blend.wrong(line, f"{name} cannot stand in the ids of tasks: give it another one with `name:`")
    return Member(name, loaded, min(caps, default=None), entry, share, f"{blend.path}:{line}")


def shared(blend: Blend) -> list[int | None]:
    """How many of the blend's tasks each environment is to give, by weight; None where it gives all it has."""
    if blend.tasks is None:
        return [None] * len(blend.entries)
    return list(shares(blend.tasks, [entry.weight for _, entry in blend.entries]))


def shares(total: int, weights: Sequence[float]) -> list[int]:
    """Whole shares of a total by weight: rounded down, what is left going to the largest remainders.

    >>> shares(10, [2, 1, 1]), shares(2, [1, 1, 1])
    ([5, 3, 2], [1, 1, 0])
    """
    exact = [Fraction(weight) * total for weight in weights]
    whole = sum(map(Fraction, weights))
    found = [math.floor(share / whole) for share in exact]
    order = sorted(range(len(weights)), key=lambda at: found[at] - exact[at] / whole)
    for at in order[: total - sum(found)]:
        found[at] += 1
    return found


def _check_names(several: Sequence[Member]) -> None:
    """Names tell the environments apart in ids and in folders, also where folders do not know capitals."""
    seen: dict[str, Member] = {}
    for member in several:
        other = seen.setdefault(member.name.casefold(), member)
        if other is not member:
            raise member.wrong(f"two environments are called {member.name}: give this one another `name:`")


def _check_modules(several: Sequence[Member]) -> None:
    """Async environments share one process, where a module's name can mean one file only."""
    seen: dict[str, tuple[Member, object]] = {}
    for member in several:
        if "async" not in (member.loaded.spec.verify, member.loaded.spec.state) and not member.loaded.spec.appeals:
            continue
        for name, path in sources(member.loaded).items():
            other, its = seen.setdefault(name, (member, path))
            if path != its and name.endswith(".py"):
                raise member.wrong(f"{member.name} and {other.name} each have a {name} of their own: rename one")


def taking_part(members: Sequence[Member], request: Request, say: Callable[[str], None]) -> list[Member]:
    """The members that have anything to ask."""
    if request.tasks is not None:
        return _named_by_tasks(members, request.tasks)
    for member in members:
        if member.share == 0:
            say(f"{member.name}: left out, since its share of the tasks is none")
    return [member for member in members if member.share != 0]


def _named_by_tasks(members: Sequence[Member], tasks: Sequence[str]) -> list[Member]:
    for task in tasks:
        if not any(task.startswith(member.prefix) for member in members):
            known = ", ".join(f"{member.prefix}ID" for member in members)
            raise UsageError(f"--task {task}: none of the blend's environments has that task; write {known}")
    return [member for member in members if any(task.startswith(member.prefix) for task in tasks)]
