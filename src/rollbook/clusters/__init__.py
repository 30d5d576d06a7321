"""Workers and model servers on more than one machine.

`profile` describes a cluster, `submission` writes scripts and submits them to a `scheduler`, of which `slurm` is one,
`node` is what a job runs, `servers` starts model servers next to workers, `ray` does the same with Ray actors, `ssh`
reaches a cluster from outside. The run directory holds all state: `jobs.jsonl` lists what was submitted, the journals
hold the results.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.clusters.job_files import ClusterJob, SubmissionOrder
    from rollbook.clusters.job_status import ClusterStatus, cancel_run, find_logs, read_cluster_status, wait_for_jobs
    from rollbook.clusters.profile import ClusterProfile, check_profile, read_profile
    from rollbook.clusters.resubmission import (
        choose_cluster,
        extend_submitted_run,
        find_last_place,
        resubmit,
        was_submitted,
    )
    from rollbook.clusters.scheduler import (
        DEFAULT_SCHEDULER,
        ENDED_STATES,
        BatchJob,
        CurrentTask,
        JobTask,
        Scheduler,
        StepRank,
        find_scheduler,
        scheduler_names,
    )
    from rollbook.clusters.ssh import read_ssh_run
    from rollbook.clusters.submission import Submission, find_run_path, preview_scripts, submit, submit_request
    from rollbook.core import ServerKind, ServerSpec
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "DEFAULT_SCHEDULER",
    "ENDED_STATES",
    "BatchJob",
    "ClusterJob",
    "ClusterProfile",
    "ClusterStatus",
    "CurrentTask",
    "JobTask",
    "Scheduler",
    "ServerKind",
    "ServerSpec",
    "StepRank",
    "Submission",
    "SubmissionOrder",
    "cancel_run",
    "check_profile",
    "choose_cluster",
    "extend_submitted_run",
    "find_last_place",
    "find_logs",
    "find_run_path",
    "find_scheduler",
    "preview_scripts",
    "read_cluster_status",
    "read_profile",
    "read_ssh_run",
    "resubmit",
    "scheduler_names",
    "submit",
    "submit_request",
    "wait_for_jobs",
    "was_submitted",
]
