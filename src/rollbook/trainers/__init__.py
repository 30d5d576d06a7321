"""What trainers plug in, one room for each: `verl`, `trl`, `nemo_rl`. What they share lies beside them.

`sample` is what a trainer is given of a rollout, `players` are environments held open for tasks it brings.

torch, ray and the trainers themselves are never needed to import from here: what uses them imports them when it runs.
May import everything below the command line.
"""
