"""Containers: a whole machine for one rollout, from an image, with a shell that stays open inside.

`Container` says which image and limits; a `ContainerHost` starts them on this node and removes all of them at its end,
also after a crash. The `ContainerHandle` of a running one has `run`, `read`, `write`, `upload`, `download` and
`snapshot`. podman and docker are used through their command lines.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.containers.archives import MAX_LEVELS, is_machine_error, is_too_deep, open_archive
    from rollbook.containers.container import (
        ENV_VALUE,
        IMAGE_NAME,
        LEAST_CPUS,
        LEAST_MEMORY_MB,
        MOST_CPUS,
        MOST_MB,
        USER_NAME,
        VARIABLE_NAME,
        Container,
        Mount,
        is_env_value,
        is_path_inside,
        is_text,
    )
    from rollbook.containers.forwarding import forward_into, forward_out
    from rollbook.containers.handle import ContainerHandle
    from rollbook.containers.host import ContainerHost
    from rollbook.containers.images import ImageBuild, hash_folder
    from rollbook.containers.owners import Owner, list_own_objects, reap_leftovers, temporary_folder
    from rollbook.containers.pristine import (
        clear_test_folders,
        list_absolute,
        repair_user_files,
        restore_pristine_files,
    )
    from rollbook.containers.runtime import Runtime, client_variables, find_runtime
    from rollbook.containers.shell import CommandResult, KeptShell
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "ENV_VALUE",
    "IMAGE_NAME",
    "LEAST_CPUS",
    "LEAST_MEMORY_MB",
    "MAX_LEVELS",
    "MOST_CPUS",
    "MOST_MB",
    "USER_NAME",
    "VARIABLE_NAME",
    "CommandResult",
    "Container",
    "ContainerHandle",
    "ContainerHost",
    "ImageBuild",
    "KeptShell",
    "Mount",
    "Owner",
    "Runtime",
    "clear_test_folders",
    "client_variables",
    "find_runtime",
    "forward_into",
    "forward_out",
    "hash_folder",
    "is_env_value",
    "is_machine_error",
    "is_path_inside",
    "is_text",
    "is_too_deep",
    "list_absolute",
    "list_own_objects",
    "open_archive",
    "reap_leftovers",
    "repair_user_files",
    "restore_pristine_files",
    "temporary_folder",
]
