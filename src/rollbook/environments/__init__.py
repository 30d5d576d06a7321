"""Environments: the base class, the registry, tools, data rows, the models of roles, and the processes that run them.

`resolve` finds an environment by name, file or URL. `write_snapshot` and `load_environment` keep the user's source in
the run directory and load it from there. `builtin` has the built-in environments and `answers` reads and compares
answers. Nothing here calls the policy model or writes a journal, and no built-in imports a heavy package before use.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.environments.catalogue import CatalogueEntry, read_catalogue
    from rollbook.environments.data_rows import ID_FIELDS, DataRow, PromptTemplate, rows
    from rollbook.environments.description import EnvironmentDescription, EnvironmentOption, describe_environment
    from rollbook.environments.environment import (
        SERVERS_FIELD,
        Environment,
        McpServer,
        Solution,
        arguments_of,
        overrides,
        parameters_of,
    )
    from rollbook.environments.judge import (
        Judge,
        JudgeClient,
        JudgeResult,
    )
    from rollbook.environments.pool import SessionLost
    from rollbook.environments.registry import (
        LoadedEnvironment,
        brings_own_model,
        import_class,
        list_environments,
        list_names,
        load_instance,
        names_blend,
        resolve,
    )
    from rollbook.environments.roles import (
        RoleCaller,
        RoleClient,
        RoleClients,
        RoleModel,
        RunRoles,
        UserSimulator,
        change_roles,
        check_roles,
        check_same_roles,
        choose_verifying_roles,
        endpoint_kind,
        find_verifying_roles,
        make_clients,
        merge_roles,
        open_roles,
        probe_roles,
        resolve_judge,
        resolve_roles,
        resolve_roles_for,
        take_judge,
    )
    from rollbook.environments.runtime import EnvironmentRuntime
    from rollbook.environments.sandboxed import Sandboxed, marks
    from rollbook.environments.session import ContainerSession, EnvironmentSession, LoopSession
    from rollbook.environments.snapshot import (
        find_changed_file,
        load_environment,
        require_unedited,
        source_files,
        source_root,
        write_snapshot,
    )
    from rollbook.environments.source import explain_error, import_closure, put_first_on_path
    from rollbook.environments.sync_containers import SyncContainerHandle
    from rollbook.environments.tools import ToolMisuse, read_arguments, read_offered_tools, tool
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "ID_FIELDS",
    "SERVERS_FIELD",
    "CatalogueEntry",
    "ContainerSession",
    "DataRow",
    "Environment",
    "EnvironmentDescription",
    "EnvironmentOption",
    "EnvironmentRuntime",
    "EnvironmentSession",
    "Judge",
    "JudgeClient",
    "JudgeResult",
    "LoadedEnvironment",
    "LoopSession",
    "McpServer",
    "PromptTemplate",
    "RoleCaller",
    "RoleClient",
    "RoleClients",
    "RoleModel",
    "RunRoles",
    "Sandboxed",
    "SessionLost",
    "Solution",
    "SyncContainerHandle",
    "ToolMisuse",
    "UserSimulator",
    "arguments_of",
    "brings_own_model",
    "change_roles",
    "check_roles",
    "check_same_roles",
    "choose_verifying_roles",
    "describe_environment",
    "endpoint_kind",
    "explain_error",
    "find_changed_file",
    "find_verifying_roles",
    "import_class",
    "import_closure",
    "list_environments",
    "list_names",
    "load_environment",
    "load_instance",
    "make_clients",
    "marks",
    "merge_roles",
    "names_blend",
    "open_roles",
    "overrides",
    "parameters_of",
    "probe_roles",
    "put_first_on_path",
    "read_arguments",
    "read_catalogue",
    "read_offered_tools",
    "require_unedited",
    "resolve",
    "resolve_judge",
    "resolve_roles",
    "resolve_roles_for",
    "rows",
    "source_files",
    "source_root",
    "take_judge",
    "tool",
    "write_snapshot",
]
