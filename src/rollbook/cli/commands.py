"""The table of commands: a name, the module that has it, and its line of help. Nothing is imported to show it."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command: its module has the function `command`, or a list SUBCOMMANDS."""

    module: str
    help: str


COMMANDS = {
    "run": Entry("rollbook.cli.run", "Ask a model every task, score each answer, report."),
    "plan": Entry("rollbook.cli.plan", "Write a run directory without asking any model."),
    "work": Entry("rollbook.cli.work", "Join a run as one more worker, from any terminal or machine."),
    "submit": Entry("rollbook.cli.submit", "Hand a run to a cluster: an array of workers and one report."),
    "status": Entry("rollbook.cli.status", "Show how far a run is."),
    "resume": Entry("rollbook.cli.resume", "Finish exactly what a run is missing."),
    "cancel": Entry("rollbook.cli.cancel", "End the jobs of a run; what is scored stays."),
    "logs": Entry("rollbook.cli.logs", "Show what the workers of a run said, wherever they ran."),
    "extend": Entry("rollbook.cli.extend", "Add samples to a run."),
    "report": Entry("rollbook.cli.report", "Show the numbers of a run, computed from its files."),
    "profile": Entry("rollbook.cli.profile", "Write what every task came to, one row a task."),
    "curate": Entry("rollbook.cli.curate", "Choose tasks by what they came to, as data for the next run."),
    "view": Entry("rollbook.cli.view", "Look at runs in a browser, down to the tokens, live."),
    "compare": Entry("rollbook.cli.compare", "Set two runs of the same tasks against each other."),
    "export": Entry("rollbook.cli.export", "Write a run's rollouts in a form that others read."),
    "import": Entry("rollbook.cli.importing", "Make a run directory of what NeMo Gym collected."),
    "reverify": Entry("rollbook.cli.reverify", "Score a run's stored rollouts again, without a model."),
    "check": Entry("rollbook.cli.check", "Say whether an environment is sound, without a model."),
    "score": Entry("rollbook.cli.score", "Score one given answer, without a model."),
    "serve": Entry("rollbook.cli.serve", "Serve an environment to NeMo Gym."),
    "gateway": Entry("rollbook.cli.gateway", "Let any agent ask a model, and record it turn by turn."),
    "gym-config": Entry("rollbook.cli.gym_config", "Write what NeMo Gym needs to use an environment."),
    "sandbox": Entry("rollbook.cli.sandbox", "Run untrusted Python, here or for others over HTTP."),
    "envs": Entry("rollbook.cli.envs", "List the environments that are installed."),
    "doctor": Entry("rollbook.cli.doctor", "Say what this machine can do, with the reason for each no."),
    "local": Entry("rollbook.cli.local", "Fetch the weights of the embedded model."),
}
