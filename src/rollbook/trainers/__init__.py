"""What trainers plug in, one room for each: `nemo_rl` has the code tool.

torch, ray and the trainers themselves are never needed to import from here: what uses them imports them when it runs.
May import everything below the command line.
"""
