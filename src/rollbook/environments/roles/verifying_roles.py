"""The models with which a stored run is verified again: those of its last start, or others that are given now."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from rollbook.book import Book, CountedLines, FinalFailures, read_line_before
from rollbook.core import FAILURE_KINDS, JSON, JUDGE, ModelSpec, RoleSettings, RoleSpec, Settings
from rollbook.environments.roles.client import EMBEDDED
from rollbook.environments.roles.run_roles import (
    RunRoles,
    endpoint_kind,
    probe_roles,
    resolve_judge,
    resolve_role,
)
from rollbook.errors import UsageError
from rollbook.models import is_provider_target

_START_OPTIONS = re.compile(
    r", or wait for one that is starting: --wait \d+|; a server that loads its weights [^;]*; --no-probe [^;]*"
)


class _StoredCall(msgspec.Struct, frozen=True):
    role: str
    in_verification: bool = False


class _CallsLine(msgspec.Struct, frozen=True):
    task: str
    sample: int
    attempt: int
    role_calls: list[_StoredCall] = []


def find_verifying_roles(book: Book) -> set[str]:
    """Return the roles, apart from the judge, that the verifiers of a run asked.

    Where the model of a role failed in verification, the line does not name it: then all roles of the run are returned.
    """
    known = set(book.manifest.roles)
    if not known:
        return known
    found = {role for _, _, line in CountedLines(book, _CallsLine) for role in _list_asked(line)}
    for path, end, header in FinalFailures(book).iterate_with_offsets():
        if header.failure.where == "verify" and not FAILURE_KINDS[header.failure.kind].in_verification:
            return known  # not a failure of the verifier itself, so of a model that it asked
        found |= set(_list_asked(msgspec.json.decode(read_line_before(path, end), type=_CallsLine)))
    return found & known


def _list_asked(line: _CallsLine) -> list[str]:
    return [call.role for call in line.role_calls if call.in_verification]


async def choose_verifying_roles(
    old: Book,
    asked: Iterable[str],
    targets: Sequence[str],
    judge_name: str,
    settings: Settings,
    say: Callable[[str], None],
) -> tuple[RunRoles, Settings]:
    """Return the models of the judge and of the roles that verifiers ask, and the settings with their addresses.

    `targets` are those of the judge. A role in `asked` that is not given has the model and the address of the last
    start. Every model is asked one completion: a UsageError says why one has no answer, before anything is written.
    """
    judge, settings = await _choose_judge(old, targets, judge_name, settings, say)
    given = {role: each for role, each in settings.roles.items() if role != JUDGE}
    others: dict[str, RoleSpec] = {}
    found = {role: each for role, each in settings.roles.items() if role == JUDGE}
    for role, each in given.items():
        others[role], found[role] = await _choose_role(old, role, each, settings, say)
    for role in sorted(set(asked) - set(given)):
        others[role], found[role] = await _take_stored_role(old, role, settings, say)
    return RunRoles(judge, others), msgspec.structs.replace(settings, roles=found)


async def _choose_judge(
    old: Book, targets: Sequence[str], name: str, settings: Settings, say: Callable[[str], None]
) -> tuple[ModelSpec | None, Settings]:
    before = old.manifest.judge
    kind = endpoint_kind(before) if before and not is_provider_target(targets) else "chat"
    error: UsageError | None = None
    for each in _list_names(targets, name, before):
        try:
            judge, found = resolve_judge(targets, each, settings, kind=kind)
            return judge, await _probe(RunRoles(judge), found, say)
        except UsageError as problem:
            error = problem
    assert error is not None
    raise error


def _list_names(targets: Sequence[str], name: str, before: ModelSpec | None) -> list[str]:
    """Return the names to try: the one that was given, or else the one before, then the one that the server lists."""
    planned = before.name if before and targets and not name and not is_provider_target(targets) else ""
    return [planned, ""] if planned else [name]


async def _choose_role(
    old: Book, role: str, given: RoleSettings, settings: Settings, say: Callable[[str], None]
) -> tuple[RoleSpec, RoleSettings]:
    """Return a role whose model is given now; what else is not given is as before."""
    before = old.manifest.roles.get(role)
    kind = endpoint_kind(before.model) if before and not is_provider_target(given.urls) else "chat"
    sampling: dict[str, JSON] = given.sampling or (before.sampling if before else {})
    error: UsageError | None = None
    for name in _list_names(given.urls, given.name, before.model if before else None):
        try:
            named = msgspec.structs.replace(given, name=name, sampling=sampling)
            spec, address = resolve_role(role, named, settings, kind=kind)
            return spec, await _probe_role(role, spec, address, settings, say)
        except UsageError as problem:
            error = problem
    assert error is not None
    raise error


async def _take_stored_role(
    old: Book, role: str, settings: Settings, say: Callable[[str], None]
) -> tuple[RoleSpec, RoleSettings]:
    """Return a role as the last start of the run had it."""
    spec = old.manifest.roles.get(role)
    if spec is None:
        raise UsageError(f"the verifier asks a model in the role {role}: give --role {role}=URL")
    address = _find_address(old, role)
    way = f"give --role {role}=URL"
    if not address.urls and spec.model.kind != EMBEDDED:
        raise UsageError(f"{old.path} does not say where {spec.model.name}, its role {role}, is: {way}")
    try:
        return spec, await _probe_role(role, spec, address, settings, say)
    except UsageError as error:
        raise UsageError(f"{error}; if it is elsewhere now, {way}") from None


def _find_address(old: Book, role: str) -> RoleSettings:
    rounds: list[Mapping[str, RoleSettings]] = [each.settings.roles for each in old.rounds()]
    return next((each[role] for each in reversed(rounds) if role in each and each[role].urls), RoleSettings())


async def _probe_role(
    role: str, spec: RoleSpec, address: RoleSettings, settings: Settings, say: Callable[[str], None]
) -> RoleSettings:
    alone = msgspec.structs.replace(settings, roles={role: address})
    return (await _probe(RunRoles(None, {role: spec}), alone, say)).roles[role]


async def _probe(roles: RunRoles, settings: Settings, say: Callable[[str], None]) -> Settings:
    """Probe the models; the advice of an error does not name options that only the start of a run has."""
    try:
        return await probe_roles(roles, settings, 0.0, say)
    except UsageError as error:
        raise UsageError(_START_OPTIONS.sub("", str(error))) from None
