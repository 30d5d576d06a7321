"""The numbers of a run, computed from its files: report, profile, comparison, export, tables.

`read_all_columns` reads journals into columns (in several processes, cached in `RUN/index`), `make_report` computes the
metrics. Nothing here starts a run.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.reports.compare import ComparedRun, RunComparison, check_and_pair, compare_run_data, compare_runs
    from rollbook.reports.curation import write_curated
    from rollbook.reports.export import (
        PASSING_FILTER,
        CountedRollouts,
        ExportCounts,
        check_filter_names,
        export_rollouts,
        rollout_facts,
    )
    from rollbook.reports.hub_upload import HubUpload, upload_rollouts
    from rollbook.reports.journal_columns import JournalColumns, read_journal_columns, renumber_columns
    from rollbook.reports.leaderboard import (
        LEADERBOARD_FILE,
        MODELS_FILE,
        NOT_STARTED,
        Leaderboard,
        LeaderboardRow,
        format_p,
        is_model_folder,
        make_incomplete,
        make_leaderboard,
        rank_models,
        read_model_names,
    )
    from rollbook.reports.loaded_run import Run, load
    from rollbook.reports.profile import ProfileFile, ProfileRows, profile_lines, write_profile
    from rollbook.reports.report import (
        Report,
        RunData,
        build_report,
        check_measures,
        describe_damage,
        has_live_worker,
        make_report,
        make_shortfall,
        read_cost,
        write_report,
    )
    from rollbook.reports.run_columns import RunColumns, group_by_run, read_all_columns
    from rollbook.reports.run_tables import make_html_table
    from rollbook.reports.server_use import CacheUse, Tail, describe_tail
    from rollbook.reports.table_files import (
        check_suffix,
        read_table,
        replace_file,
        write_atomically,
        write_lines_atomically,
        write_table,
    )
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "LEADERBOARD_FILE",
    "MODELS_FILE",
    "NOT_STARTED",
    "PASSING_FILTER",
    "CacheUse",
    "ComparedRun",
    "CountedRollouts",
    "ExportCounts",
    "HubUpload",
    "JournalColumns",
    "Leaderboard",
    "LeaderboardRow",
    "ProfileFile",
    "ProfileRows",
    "Report",
    "Run",
    "RunColumns",
    "RunComparison",
    "RunData",
    "Tail",
    "build_report",
    "check_and_pair",
    "check_filter_names",
    "check_measures",
    "check_suffix",
    "compare_run_data",
    "compare_runs",
    "describe_damage",
    "describe_tail",
    "export_rollouts",
    "format_p",
    "group_by_run",
    "has_live_worker",
    "is_model_folder",
    "load",
    "make_html_table",
    "make_incomplete",
    "make_leaderboard",
    "make_report",
    "make_shortfall",
    "profile_lines",
    "rank_models",
    "read_all_columns",
    "read_cost",
    "read_journal_columns",
    "read_model_names",
    "read_table",
    "renumber_columns",
    "replace_file",
    "rollout_facts",
    "upload_rollouts",
    "write_atomically",
    "write_curated",
    "write_lines_atomically",
    "write_profile",
    "write_report",
    "write_table",
]
