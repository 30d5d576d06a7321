"""Child processes, the event loop, HTTP serving with its OpenAPI descriptions, and expiring sessions.

A `Child` has its own session, is ready by a deadline, does not outlive its parent and is killed with its whole process
tree. `die_with_parent`, `become_subreaper` and `publish_ready` are called by our own entry points on the child's side;
`supervisor` is run with `python -m` for commands that are not ours.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.processes.child import Child, module_argv, publish_ready, start_ready
    from rollbook.processes.event_loop import (
        CANCEL_GRACE_S,
        ENVIRONMENT_CODE_TASK,
        Work,
        is_being_cancelled,
        make_awaitable,
        make_blocking,
        run_blocking,
        run_event_loop,
        run_to_completion,
        timeout_after,
    )
    from rollbook.processes.expiring_sessions import (
        IDLE_TIMEOUT_S,
        MAX_SESSIONS,
        ExpiringSessions,
        NoSession,
        SessionEntry,
        SessionTable,
    )
    from rollbook.processes.http_server import (
        copy_allow,
        join_lines,
        json_response,
        make_refusal_middleware,
        read_json_object,
        serve_app,
        serve_runner,
    )
    from rollbook.processes.openapi import (
        DESCRIPTION_PATH,
        EVENTS_TYPE,
        JSON_TYPE,
        OBJECT,
        ONE_LINE,
        TEXT,
        Operation,
        RequestHandler,
        Schema,
        add_operations,
        describe_operations,
        read_query,
    )
    from rollbook.processes.process_tree import (
        PARENT_PID,
        become_subreaper,
        die_with_parent,
        end_with_parent,
        find_members,
        kill_by_variable,
        kill_descendants,
        trim_log,
        usable_cores,
    )
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "CANCEL_GRACE_S",
    "DESCRIPTION_PATH",
    "ENVIRONMENT_CODE_TASK",
    "EVENTS_TYPE",
    "IDLE_TIMEOUT_S",
    "JSON_TYPE",
    "MAX_SESSIONS",
    "OBJECT",
    "ONE_LINE",
    "PARENT_PID",
    "TEXT",
    "Child",
    "ExpiringSessions",
    "NoSession",
    "Operation",
    "RequestHandler",
    "Schema",
    "SessionEntry",
    "SessionTable",
    "Work",
    "add_operations",
    "become_subreaper",
    "copy_allow",
    "describe_operations",
    "die_with_parent",
    "end_with_parent",
    "find_members",
    "is_being_cancelled",
    "join_lines",
    "json_response",
    "kill_by_variable",
    "kill_descendants",
    "make_awaitable",
    "make_blocking",
    "make_refusal_middleware",
    "module_argv",
    "publish_ready",
    "read_json_object",
    "read_query",
    "run_blocking",
    "run_event_loop",
    "run_to_completion",
    "serve_app",
    "serve_runner",
    "start_ready",
    "timeout_after",
    "trim_log",
    "usable_cores",
]
