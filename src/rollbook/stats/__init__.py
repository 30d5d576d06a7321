"""Statistics of scored rollouts: estimators, columns, metrics, comparisons and row selection.

Pure functions over arrays; nothing here reads a file or prints. Everything but `row_selection` needs NumPy: import it
only when numbers are needed.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.stats.agreement import RatedItem, RaterAgreement, compare_raters
    from rollbook.stats.columns import (
        NO_ANSWER,
        PASS_THRESHOLD,
        SCALAR_COLUMNS,
        Bools,
        Columns,
        Ints,
        RewardParts,
        TaskStats,
        TextIds,
        merge_columns,
    )
    from rollbook.stats.estimators import Floats, Interval, finite_or_none
    from rollbook.stats.metrics import Metrics, TaskProfile, compute_metrics
    from rollbook.stats.paired_comparison import Comparison, Difference, PairedRun, compare_columns
    from rollbook.stats.row_selection import Buckets, CuratedRows, CurateOptions, Expression, curate, to_identifier
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "NO_ANSWER",
    "PASS_THRESHOLD",
    "SCALAR_COLUMNS",
    "Bools",
    "Buckets",
    "Columns",
    "Comparison",
    "CurateOptions",
    "CuratedRows",
    "Difference",
    "Expression",
    "Floats",
    "Interval",
    "Ints",
    "Metrics",
    "PairedRun",
    "RatedItem",
    "RaterAgreement",
    "RewardParts",
    "TaskProfile",
    "TaskStats",
    "TextIds",
    "compare_columns",
    "compare_raters",
    "compute_metrics",
    "curate",
    "finite_or_none",
    "merge_columns",
    "to_identifier",
]
