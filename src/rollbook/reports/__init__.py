"""The numbers of a run, computed from its files: report, profile, comparison, export, tables.

`read_all_columns` reads journals into columns (in several processes, cached in `RUN/index`), `make_report` computes the
metrics. Nothing here starts a run.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.reports.compare import ComparedRun, RunComparison, check_and_pair, compare_run_data, compare_runs
    from rollbook.reports.export import (
        PASSING_FILTER,
        CountedRollouts,
        ExportCounts,
        check_filter_names,
        export_rollouts,
        rollout_facts,
    )
    from rollbook.reports.journal_columns import JournalColumns, read_journal_columns, renumber_columns
    from rollbook.reports.loaded_run import Run, load
    from rollbook.reports.profile import ProfileRows, profile_lines
    from rollbook.reports.report import (
        Report,
        RunData,
        build_report,
        describe_damage,
        has_live_worker,
        make_report,
        make_shortfall,
        read_cost,
        write_report,
    )
    from rollbook.reports.run_columns import RunColumns, group_by_run, read_all_columns
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
    "PASSING_FILTER",
    "ComparedRun",
    "CountedRollouts",
    "ExportCounts",
    "JournalColumns",
    "ProfileRows",
    "Report",
    "Run",
    "RunColumns",
    "RunComparison",
    "RunData",
    "build_report",
    "check_and_pair",
    "check_filter_names",
    "check_suffix",
    "compare_run_data",
    "compare_runs",
    "describe_damage",
    "export_rollouts",
    "group_by_run",
    "has_live_worker",
    "load",
    "make_report",
    "make_shortfall",
    "profile_lines",
    "read_all_columns",
    "read_cost",
    "read_journal_columns",
    "read_table",
    "renumber_columns",
    "replace_file",
    "rollout_facts",
    "write_atomically",
    "write_lines_atomically",
    "write_report",
    "write_table",
]
