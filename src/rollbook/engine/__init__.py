"""The engine: plan and run a set of rollouts, and the Collector that trainers hold open.

There is one engine for evaluation, clusters and training: a `Worker` takes jobs from a job source (a run directory or
memory), runs each rollout with `RolloutRunner`, and returns the result.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.engine.blends import (
        Entry,
        environment_name,
        load_environment,
        load_run_environments,
        merge_limits,
        merge_sampling,
        read_blend,
    )
    from rollbook.engine.book_worker import BookJobSource, open_environments, work_on_book
    from rollbook.engine.collector import Collector
    from rollbook.engine.groups import GroupCounts, GroupPolicy, OnFailure, group_shortfall
    from rollbook.engine.planning import (
        change_settings,
        check_unchanged,
        choose_tool_format,
        iterate_tasks,
        package_versions,
        plan,
        resolve_run_model,
    )
    from rollbook.engine.progress import Display, LineDisplay, Progress, ProgressCounter
    from rollbook.engine.request import Request, as_list, choose_run_folder, update_settings
    from rollbook.engine.retries import AttemptResult, run_until_final
    from rollbook.engine.reverification import ReverifyOnly, ReverifyResult, reverify
    from rollbook.engine.rollout_runner import AttemptClock, ModelCaller, RolloutRunner
    from rollbook.engine.runs import (
        RunResult,
        check_run_model,
        count_open_chunks,
        extend,
        extend_samples,
        open_run_model,
        plan_request,
        prepare_round,
        probe_run,
        resume,
        run,
        run_async,
        run_request,
        run_round,
        work,
    )
    from rollbook.engine.scoring import (
        AnswerScorer,
        is_importable,
        iterate_valid_tasks,
        open_scorer,
        roundtrip_task,
        run_answer,
        score,
    )
    from rollbook.engine.worker import FixedLimit, RolloutJob, Worker
    from rollbook.engine.worker_pool import ExitStatus, StartWorker, killed_exit_status
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "AnswerScorer",
    "AttemptClock",
    "AttemptResult",
    "BookJobSource",
    "Collector",
    "Display",
    "Entry",
    "ExitStatus",
    "FixedLimit",
    "GroupCounts",
    "GroupPolicy",
    "LineDisplay",
    "ModelCaller",
    "OnFailure",
    "Progress",
    "ProgressCounter",
    "Request",
    "ReverifyOnly",
    "ReverifyResult",
    "RolloutJob",
    "RolloutRunner",
    "RunResult",
    "StartWorker",
    "Worker",
    "as_list",
    "change_settings",
    "check_run_model",
    "check_unchanged",
    "choose_run_folder",
    "choose_tool_format",
    "count_open_chunks",
    "environment_name",
    "extend",
    "extend_samples",
    "group_shortfall",
    "is_importable",
    "iterate_tasks",
    "iterate_valid_tasks",
    "killed_exit_status",
    "load_environment",
    "load_run_environments",
    "merge_limits",
    "merge_sampling",
    "open_environments",
    "open_run_model",
    "open_scorer",
    "package_versions",
    "plan",
    "plan_request",
    "prepare_round",
    "probe_run",
    "read_blend",
    "resolve_run_model",
    "resume",
    "reverify",
    "roundtrip_task",
    "run",
    "run_answer",
    "run_async",
    "run_request",
    "run_round",
    "run_until_final",
    "score",
    "update_settings",
    "work",
    "work_on_book",
]
