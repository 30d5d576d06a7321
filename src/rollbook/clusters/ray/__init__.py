"""Workers as actors of a Ray cluster. Ray only starts them: what they do, and all state, is as everywhere.

`cluster` is the connection, `post` an actor that keeps one process, `hand` a worker as its crew sees it, `worker` and
`foreman` the processes themselves: one worker, and a crew that goes on without a terminal. `crews` runs, submits and
resumes. Ray is imported when a cluster is joined, never before.
"""
