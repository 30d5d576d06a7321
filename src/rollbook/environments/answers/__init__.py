"""Read the answer that a text gives, and decide whether two answers mean the same."""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.environments.answers.comparison import canonicalize, is_equal, is_same_answer
    from rollbook.environments.answers.extraction import extract_answer, extract_math_answer, last_block, strip_thinking
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "canonicalize",
    "extract_answer",
    "extract_math_answer",
    "is_equal",
    "is_same_answer",
    "last_block",
    "strip_thinking",
]
