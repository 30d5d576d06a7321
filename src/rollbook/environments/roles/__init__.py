"""Roles: models besides the policy that environments ask by name, such as a simulated user, an opponent or a judge.

An environment calls `self.model(NAME)`. Every call is recorded in its rollout, apart from the turns of the policy.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.environments.roles.caller import RoleCaller
    from rollbook.environments.roles.client import RoleClient
    from rollbook.environments.roles.role_model import RoleModel
    from rollbook.environments.roles.run_roles import (
        RoleClients,
        RunRoles,
        change_roles,
        check_roles,
        check_same_roles,
        endpoint_kind,
        make_clients,
        merge_roles,
        open_roles,
        probe_roles,
        resolve_judge,
        resolve_roles,
        resolve_roles_for,
        take_judge,
    )
    from rollbook.environments.roles.user_simulator import UserSimulator
    from rollbook.environments.roles.verifying_roles import choose_verifying_roles, find_verifying_roles
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "RoleCaller",
    "RoleClient",
    "RoleClients",
    "RoleModel",
    "RunRoles",
    "UserSimulator",
    "change_roles",
    "check_roles",
    "check_same_roles",
    "choose_verifying_roles",
    "endpoint_kind",
    "find_verifying_roles",
    "make_clients",
    "merge_roles",
    "open_roles",
    "probe_roles",
    "resolve_judge",
    "resolve_roles",
    "resolve_roles_for",
    "take_judge",
]
