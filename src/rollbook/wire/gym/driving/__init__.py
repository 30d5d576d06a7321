"""Running what speaks NeMo Gym's protocol: its resources servers, its agents, and a whole checkout of it.

The environments here reach the registry by entry point: `http` and `https` (server), `gym+agent` (agent), `gym+head`
(routed), `gym` (managed). `output` and `imported` write and read the files of Gym's collector.
"""
