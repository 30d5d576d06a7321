"""The table of commands: name, module, function and one line of help. Showing it imports no command."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """A command: `attribute` of a module of this package is the function that runs it, or a list of subcommands."""

    file: str
    attribute: str
    help: str

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"rollbook.cli.{self.file}"


COMMANDS = {
    "run": CommandEntry("run_commands", "run_command", "Ask a model every task, score each answer, report."),
    "plan": CommandEntry("run_commands", "plan_command", "Write a run directory without asking any model."),
    "work": CommandEntry(
        "run_commands", "work_command", "Join a run as one more worker, from any terminal or machine."
    ),
    "submit": CommandEntry(
        "run_commands", "submit_command", "Hand a run to a cluster: an array of workers and one report."
    ),
    "status": CommandEntry("job_commands", "status_command", "Show how far a run is."),
    "resume": CommandEntry("run_commands", "resume_command", "Finish exactly what a run is missing."),
    "cancel": CommandEntry("job_commands", "cancel_command", "End the jobs of a run; what is scored stays."),
    "logs": CommandEntry("job_commands", "logs_command", "Show what the workers of a run said, wherever they ran."),
    "extend": CommandEntry("run_commands", "extend_command", "Add samples to a run."),
    "report": CommandEntry("report_commands", "report_command", "Show the numbers of a run, computed from its files."),
    "profile": CommandEntry("report_commands", "profile_command", "Write what every task came to, one row a task."),
    "curate": CommandEntry(
        "report_commands", "curate_command", "Choose tasks by what they came to, as data for the next run."
    ),
    "view": CommandEntry("report_commands", "view_command", "Look at runs in a browser, down to the tokens, live."),
    "compare": CommandEntry("report_commands", "compare_command", "Set two runs of the same tasks against each other."),
    "export": CommandEntry("report_commands", "export_command", "Write a run's rollouts in a form that others read."),
    "import": CommandEntry("report_commands", "import_command", "Make a run directory of what NeMo Gym collected."),
    "reverify": CommandEntry(
        "verify_commands", "reverify_command", "Score a run's stored rollouts again, without a model."
    ),
    "verify": CommandEntry("verify_commands", "verify_command", "Check every file of a run directory for damage."),
    "check": CommandEntry("verify_commands", "check_command", "Say whether an environment is sound, without a model."),
    "score": CommandEntry("verify_commands", "score_command", "Score one given answer, without a model."),
    "serve": CommandEntry("serve_commands", "serve_command", "Serve an environment to NeMo Gym."),
    "gateway": CommandEntry(
        "serve_commands", "gateway_command", "Let any agent ask a model, and record it turn by turn."
    ),
    "gym-config": CommandEntry(
        "serve_commands", "gym_config_command", "Write what NeMo Gym needs to use an environment."
    ),
    "sandbox": CommandEntry(
        "machine_commands", "SANDBOX_COMMANDS", "Run untrusted Python, here or for others over HTTP."
    ),
    "envs": CommandEntry("machine_commands", "envs_command", "List the environments that are installed."),
    "doctor": CommandEntry(
        "machine_commands", "doctor_command", "Say what this machine can do, with the reason for each no."
    ),
    "local": CommandEntry("machine_commands", "LOCAL_COMMANDS", "Fetch the weights of the embedded model."),
}
