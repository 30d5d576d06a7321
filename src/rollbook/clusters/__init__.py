"""Where workers and model servers run when one machine is not enough. A cluster is only a way of starting them.

`profile` is what people write about their cluster, `script` the text that Slurm is given, `submit` sends it, `node` is
what runs on the other side, `servers` are model servers that a worker brings along. `ray` does the same
with actors of a Ray cluster. All state is the run directory: `jobs.jsonl` says what was submitted, the book what came
of it. May import collect and below; nobody but the command line imports it.
"""
