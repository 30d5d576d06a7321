"""The table of commands: name, module, function, one line of help and section. Showing it imports no command."""

from __future__ import annotations

from typing import NamedTuple


class CommandEntry(NamedTuple):
    """A command: `attribute` of a module of this package is the function that runs it, or a list of subcommands.

    `group` is the section of `rollbook --help` that lists it.
    """

    file: str
    attribute: str
    help: str
    group: str

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"rollbook.cli.{self.file}"


RUNS, RESULTS, ENVIRONMENTS, CLUSTERS, SERVERS, MACHINE = (
    "Start and continue runs",
    "Results",
    "Environments",
    "Clusters and several machines",
    "Servers",
    "This machine",
)

COMMANDS = {
    "run": CommandEntry("run_commands", "run_command", "Run a model on every task, score each answer, report.", RUNS),
    "resume": CommandEntry("run_commands", "resume_command", "Finish exactly what a run is missing.", RUNS),
    "extend": CommandEntry("run_commands", "extend_command", "Add samples to a run.", RUNS),
    "status": CommandEntry("job_commands", "status_command", "Show the progress of a run.", RUNS),
    "remove": CommandEntry("model_runs", "remove_command", "Remove models from a folder of run --each.", RUNS),
    "report": CommandEntry("report_commands", "report_command", "Show the results of a run.", RESULTS),
    "compare": CommandEntry(
        "report_commands", "compare_command", "Compare runs of the same tasks with the first one.", RESULTS
    ),
    "view": CommandEntry("report_commands", "view_command", "Look at runs in a browser, also while they run.", RESULTS),
    "profile": CommandEntry(
        "report_commands", "profile_command", "Write the results of each task to a table.", RESULTS
    ),
    "curate": CommandEntry(
        "report_commands", "curate_command", "Select tasks by their results, as data for a run.", RESULTS
    ),
    "export": CommandEntry(
        "report_commands", "export_command", "Write a run's rollouts in a format for other tools.", RESULTS
    ),
    "import": CommandEntry(
        "report_commands", "import_command", "Import rollouts of NeMo Gym as a run directory.", RESULTS
    ),
    "reverify": CommandEntry(
        "verify_commands", "reverify_command", "Score a run's stored rollouts again, without a model.", RESULTS
    ),
    "verify": CommandEntry(
        "verify_commands", "verify_command", "Check every file of a run directory for damage.", RESULTS
    ),
    "envs": CommandEntry("machine_commands", "envs_command", "List the environments, or describe one.", ENVIRONMENTS),
    "check": CommandEntry(
        "verify_commands", "check_command", "Check that an environment is sound, without a model.", ENVIRONMENTS
    ),
    "score": CommandEntry("verify_commands", "score_command", "Score one answer, without a model.", ENVIRONMENTS),
    "plan": CommandEntry("run_commands", "plan_command", "Write a run directory without calling a model.", CLUSTERS),
    "work": CommandEntry("run_commands", "work_command", "Join a run as one more worker, from any machine.", CLUSTERS),
    "submit": CommandEntry("run_commands", "submit_command", "Submit a run to a cluster as jobs.", CLUSTERS),
    "cancel": CommandEntry("job_commands", "cancel_command", "Cancel the jobs of a run; its scores stay.", CLUSTERS),
    "logs": CommandEntry("job_commands", "logs_command", "Show the logs of a run's workers.", CLUSTERS),
    "gateway": CommandEntry(
        "serve_commands", "gateway_command", "Serve a model to any agent, and record every turn.", SERVERS
    ),
    "serve": CommandEntry("serve_commands", "serve_command", "Serve an environment to NeMo Gym.", SERVERS),
    "gym-config": CommandEntry(
        "serve_commands", "gym_config_command", "Write what NeMo Gym needs to use an environment.", SERVERS
    ),
    "doctor": CommandEntry(
        "machine_commands", "doctor_command", "Show what works on this machine, and why the rest does not.", MACHINE
    ),
    "sandbox": CommandEntry(
        "machine_commands", "SANDBOX_COMMANDS", "Run untrusted Python, or serve a sandbox over HTTP.", MACHINE
    ),
    "local": CommandEntry("machine_commands", "LOCAL_COMMANDS", "Download the weights of the embedded model.", MACHINE),
}
