"""Children done right: in a session of their own, ready by a deadline, never outliving us, killed as a whole tree.

`Child` and `start_ready` are the parent's side; `die_with_parent`, `keep_orphans` and `publish` are called by our own
entry points on the child's side. `keeper` is an entry point for commands that are not ours. May import core and errors;
knows nothing of what the children do.
"""
