"""Model servers as managed parts: started on a node, ready by a deadline, watched, started again within a bound.

`kinds` has the command line of each kind of server, `server` is one that runs, `ready` says when it does, `ports` finds
it a port, `endpoints` publishes where it is, `fleet` is all servers of one node.
"""
