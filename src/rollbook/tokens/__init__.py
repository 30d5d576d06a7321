"""Turn turns into exact token sequences: merge and fork, the token sidecar, padding and masks. Pure functions.

Nothing here tokenizes text: token ids come from the server that sampled them, or there are none.
"""

from rollbook._exports import export_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollbook.tokens.padding import Batch, batch
    from rollbook.tokens.prompt_continuation import CUT, Renders, Unproven, continuation
    from rollbook.tokens.sequences import ANSWER_DIFFERS, ANSWER_LEFT_OUT, Fork, Sequence, merge
    from rollbook.tokens.sidecar import HEADER_BYTES, decode_tokens, encode_tokens, read_header
else:
    __getattr__, __dir__ = export_lazily(__name__)

__all__ = [
    "ANSWER_DIFFERS",
    "ANSWER_LEFT_OUT",
    "CUT",
    "HEADER_BYTES",
    "Batch",
    "Fork",
    "Renders",
    "Sequence",
    "Unproven",
    "batch",
    "continuation",
    "decode_tokens",
    "encode_tokens",
    "merge",
    "read_header",
]
