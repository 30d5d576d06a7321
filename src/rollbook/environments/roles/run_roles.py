"""The roles of a run, the judge among them: which models they are, whether they fit its environments, opening them.

`--judge MODEL` and `--role judge=MODEL` are the same: the judge keeps its own settings, and its place in run.json.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from rollbook.core import (
    JSON,
    JUDGE,
    Manifest,
    ModelSpec,
    RoleSettings,
    RoleSpec,
    Settings,
    check_extra_sampling,
    check_sampling_values,
)
from rollbook.environments.judge import JUDGE_WORDING, JudgeClient, make_judge_settings
from rollbook.environments.registry import LoadedEnvironment
from rollbook.environments.roles.client import EMBEDDED, RoleClient, RoleWording, list_targets, make_model_settings
from rollbook.errors import UsageError
from rollbook.models import ENDPOINT_KINDS, is_provider_target, resolve_model


class RunRoles(msgspec.Struct, frozen=True):
    """What the roles of a run mean: the model of its judge, if it has one, and those of the other roles."""

    judge: ModelSpec | None = None
    others: dict[str, RoleSpec] = {}

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> RunRoles:
        """Return the roles that a run was planned with."""
        return cls(manifest.judge, manifest.roles)

    def find_nameless(self) -> str:
        """Return the first role, apart from the judge, whose model's name is not known yet; empty if there is none."""
        return next((role for role, spec in self.others.items() if not spec.model.name), "")


class RoleClients:
    """The open models of the roles of a run; `judge` is the one that `appeal` gets."""

    def __init__(self, judge: JudgeClient | None, others: Mapping[str, RoleClient]) -> None:
        self.judge, self._others = judge, others

    def find(self, role: str) -> RoleClient | None:
        """Return the model of a role; None if the run has none."""
        return self.judge if role == JUDGE else self._others.get(role)

    @property
    def meaning(self) -> RunRoles:
        """What the roles mean, with the names of their models."""
        judge = self.judge.spec if self.judge else None
        return RunRoles(judge, {role: client.meaning for role, client in self._others.items()})

    def stop_waiting(self) -> None:
        """Let calls that wait for a model give up at once."""
        for client in self.list_clients():
            client.stop_waiting()

    def describe_outage(self) -> str:
        """Return which models have not answered for how long, and why; empty while all do."""
        return "; ".join(filter(None, (client.describe_outage() for client in self.list_clients())))

    def list_clients(self) -> list[RoleClient]:
        """Return all of them, the judge first."""
        return [*([self.judge] if self.judge else []), *self._others.values()]


def make_clients(roles: RunRoles, settings: Settings) -> RoleClients:
    """Return the models of roles, not yet opened; refuse one whose address is not known."""
    if roles.judge is not None and not settings.judge_urls:
        raise UsageError(f"this run is judged by {roles.judge.name}: give its address with --judge URL")
    judge = JudgeClient(roles.judge, settings) if roles.judge else None
    return RoleClients(judge, {role: _make_client(role, spec, settings) for role, spec in roles.others.items()})


def _make_client(role: str, spec: RoleSpec, settings: Settings) -> RoleClient:
    given = settings.roles.get(role, RoleSettings())
    if not given.urls and spec.model.kind != EMBEDDED:
        raise UsageError(f"the role {role} of this run is {spec.model.name}: give its address with --role {role}=URL")
    return RoleClient(role, spec, make_model_settings(role, given, settings), price=given.price)


async def probe_roles(roles: RunRoles, settings: Settings, wait_s: float, say: Callable[[str], None]) -> Settings:
    """Ask the model of every role one short completion; a UsageError says why one has no answer.

    Return the settings with the names of parameters that the endpoints have turned out to take.
    """
    clients = make_clients(roles, settings)
    if clients.judge:
        settings = msgspec.structs.replace(settings, judge_wire_names=await clients.judge.probe(wait_s, say))
    found = dict(settings.roles)
    for role in roles.others:
        client = clients.find(role)
        assert client is not None
        if learned := await client.probe(wait_s, say):
            found[role] = msgspec.structs.replace(found[role], wire_names=learned)
    return msgspec.structs.replace(settings, roles=found)


@asynccontextmanager
async def open_roles(roles: RunRoles, settings: Settings) -> AsyncIterator[RoleClients]:
    """Open the models of the roles of a run for as long as the context lasts."""
    clients = make_clients(roles, settings)
    async with AsyncExitStack() as stack:
        for client in clients.list_clients():
            stack.push_async_callback(client.close)
            await client.open()
        yield clients


def take_judge(roles: Mapping[str, RoleSettings], judge_urls: Sequence[str]) -> tuple[dict[str, JSON], str]:
    """Return `--role judge=...` as the settings of `--judge`, and the name that it gives the judge.

    Only the price of its tokens stays among the roles, for `--judge` has none.
    """
    given = roles.get(JUDGE, RoleSettings())
    if given.urls and judge_urls:
        raise UsageError(f"--role judge={given.urls[0]}: --judge {judge_urls[0]} is the same role; give one of them")
    check_sampling_values(given.sampling, "--role judge.sampling.")
    kept = {role: each for role, each in roles.items() if role != JUDGE}
    if given.price:
        kept[JUDGE] = RoleSettings(price=given.price)
    taken = {
        "judge_urls": given.urls,
        "judge_key_env": given.key_env,
        "judge_sampling": given.sampling,
        "judge_headers": given.headers,
    }
    return {"roles": kept, **{name: value for name, value in taken.items() if value}}, given.name


def resolve_roles(
    targets: Sequence[str], judge_name: str, settings: Settings, *, needs_key: bool = True, judge_kind: str = "chat"
) -> tuple[RunRoles, Settings]:
    """Return what the roles of a new run mean, and the settings with their addresses.

    `targets` are those of the judge. Without `needs_key`, the run is only planned here: keys may be elsewhere.
    """
    changes, name = take_judge(settings.roles, targets)
    settings = msgspec.structs.replace(settings, **{"judge_urls": list(targets), **changes})
    if name and judge_name and name != judge_name:
        raise UsageError(f"--role judge.name={name}: --judge-name {judge_name} is another one; give one of them")
    judge, settings = resolve_judge(
        settings.judge_urls, judge_name or name, settings, kind=judge_kind, needs_key=needs_key
    )
    others: dict[str, RoleSpec] = {}
    found = {role: given for role, given in settings.roles.items() if role == JUDGE}
    for role, given in settings.roles.items():
        if role != JUDGE:
            others[role], found[role] = resolve_role(role, given, settings, needs_key=needs_key)
    return RunRoles(judge, others), msgspec.structs.replace(settings, roles=found)


def resolve_role(
    role: str, given: RoleSettings, settings: Settings, *, kind: str = "chat", needs_key: bool = True
) -> tuple[RoleSpec, RoleSettings]:
    """Return what a role means, and where its model is."""
    if not given.urls:
        raise UsageError(f"--role {role}: give its model as well, as in --role {role}=http://host:8000/v1")
    check_sampling_values(given.sampling, f"--role {role}.sampling.")
    check_extra_sampling(_drop_own_fields(given.sampling), f"--role {role}.sampling")
    own = make_model_settings(role, given, settings)
    spec, own = RoleWording(role).explain(
        lambda: resolve_model(list_targets(given.urls), given.name, own, kind=kind, needs_key=needs_key)
    )
    address = RoleSettings(
        urls=own.urls, key_env=own.api_key_env, headers=own.headers, wire_names=own.wire_names, price=given.price
    )
    return RoleSpec(spec, given.sampling), address


def _drop_own_fields(sampling: Mapping[str, JSON]) -> dict[str, JSON]:
    return {name: value for name, value in sampling.items() if name not in ("temperature", "top_p", "max_tokens")}


def resolve_judge(
    targets: Sequence[str], name: str, settings: Settings, *, kind: str = "chat", needs_key: bool = True
) -> tuple[ModelSpec | None, Settings]:
    """Return which model judges (part of a run's meaning), and settings with its URLs; None without a target."""
    if not targets:
        if name:
            raise UsageError(f"--judge-name {name}: give --judge URL as well")
        return None, msgspec.structs.replace(settings, judge_urls=[])
    own = make_judge_settings(settings)
    named = list_targets(targets)
    spec, own = JUDGE_WORDING.explain(lambda: resolve_model(named, name, own, kind=kind, needs_key=needs_key))
    return spec, msgspec.structs.replace(
        settings,
        judge_urls=own.urls or [EMBEDDED],  # no address would mean no judge
        judge_key_env=own.api_key_env,
        judge_headers=own.headers,
        judge_wire_names=own.wire_names,
    )


def resolve_roles_for(loaded: LoadedEnvironment, settings: Settings, judge_name: str) -> tuple[RunRoles, Settings]:
    """Return the roles for one environment, and the settings with their addresses; refuse what does not fit."""
    roles, resolved = resolve_roles(settings.judge_urls, judge_name, settings)
    check_roles([loaded], roles)
    return roles, resolved


def check_roles(several: Sequence[LoadedEnvironment], roles: RunRoles) -> None:
    """Refuse a role that no environment would ask, and an environment whose roles have no model."""
    check_judge(several, roles.judge is not None)
    asked = {role for loaded in several for role in loaded.cls.roles}
    names = ", ".join(loaded.cls.__name__ for loaded in several)
    for role in roles.others:
        if role not in asked:
            known = f"it asks {', '.join(sorted(asked))}" if asked else f'it has no roles = ("{role}",)'
            raise UsageError(f"--role {role}: {names} asks no model of that role; {known}")
    for loaded in several:
        for role in loaded.cls.roles:
            if role != JUDGE and role not in roles.others:
                raise UsageError(f"{loaded.cls.__name__} asks a model in the role {role}: give --role {role}=URL")


def check_judge(several: Sequence[LoadedEnvironment], has_judge: bool) -> None:
    """Refuse a judge that would never be used, and an environment that needs one and has none.

    Of a blend, at least one environment has to use the judge.
    """
    names = ", ".join(loaded.cls.__name__ for loaded in several)
    if has_judge and not any(loaded.spec.appeals or JUDGE in loaded.cls.roles for loaded in several):
        has = "it has" if len(several) == 1 else "they have"
        raise UsageError(f"--judge: {names} uses no judge; {has} no async def appeal(task, rollout, score, judge)")
    for loaded in several:
        if (loaded.cls.needs_judge or JUDGE in loaded.cls.roles) and not has_judge:
            raise UsageError(f"{loaded.cls.__name__} cannot score without a judge: give --judge URL")


def check_same_roles(manifest: Manifest, settings: Settings, where: object) -> None:
    """Refuse other models in the roles than those that the run was planned with: that would be another run."""
    _check_same_judge(manifest.judge, settings, where)
    for role in settings.roles:
        if role not in manifest.roles and role != JUDGE:
            raise UsageError(f"{where} was planned without the role {role}: start a new run for one")


def _check_same_judge(planned: ModelSpec | None, settings: Settings, where: object) -> None:
    if planned is None:
        if settings.judge_urls:
            raise UsageError(f"{where} was planned without a judge: start a new run for one")
        return
    if not settings.judge_urls:
        return
    current, _ = resolve_judge(settings.judge_urls, planned.name, settings, kind=endpoint_kind(planned))
    if current != planned:
        raise UsageError(f"{where} was planned with the judge {planned.kind} {planned.name}: start a new run")


def endpoint_kind(planned: ModelSpec) -> str:
    """Return how the endpoint of a plain URL is spoken to, for a model that was planned."""
    return planned.kind if planned.kind in ENDPOINT_KINDS else "chat"


def merge_roles(before: Mapping[str, RoleSettings], given: Mapping[str, RoleSettings]) -> dict[str, RoleSettings]:
    """Return the roles of a next start: what was given for it, and what was not given as before.

    A provider has a key variable and headers of its own.
    """
    merged = dict(before)
    for role, each in given.items():
        kept = ("price",) if is_provider_target(each.urls) else ("key_env", "headers", "price")
        last = before.get(role, RoleSettings())
        merged[role] = msgspec.structs.replace(
            each, **{name: getattr(each, name) or getattr(last, name) for name in kept}
        )
    return merged


def change_roles(planned: Mapping[str, RoleSpec], before: Mapping[str, RoleSettings], settings: Settings) -> Settings:
    """Return settings in which new addresses of roles are resolved.

    `settings.roles` are those of the next start, merged. Another address may take other names of parameters.
    """
    found = dict(before)
    for role, given in settings.roles.items():
        spec, last = planned.get(role), before.get(role, RoleSettings())
        if spec is None or given == last:
            found[role] = given
            continue
        if given.name or given.sampling:
            field = "name" if given.name else "sampling"
            raise UsageError(f"--role {role}.{field}: it is part of what this run means; start a new run for another")
        if not given.urls:
            found[role] = msgspec.structs.replace(given, urls=last.urls, wire_names=last.wire_names)
            continue
        named = msgspec.structs.replace(given, name="" if is_provider_target(given.urls) else spec.model.name)
        new, found[role] = resolve_role(role, named, settings, kind=endpoint_kind(spec.model))
        if new.model != spec.model:
            raise UsageError(
                f"--role {role}={given.urls[0]}: this run was planned with {spec.model.name}: start a new run"
            )
    return msgspec.structs.replace(settings, roles=found)
