"""Checks of an environment without a model: `check` reports whether it is sound."""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.checks.environment_check import check, check_environment
    from rollbook.checks.findings import Soundness
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = ["Soundness", "check", "check_environment"]
