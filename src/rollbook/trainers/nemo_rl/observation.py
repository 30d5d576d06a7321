"""What a model gets to read: one `<result>` for every block, in one form whatever happened.

<result>7</result>                      one line of code, one line to tell

<result>                                otherwise; in this order what was printed to stdout, what to stderr,
printed                                 the value of the last expression, and a problem as
error[runtime]: line 2: ValueError: no  error[KIND]: MESSAGE
session: rolled back; ...               what became of the session, when it is not simply kept
</result>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollbook.trainers.nemo_rl.outcome import Outcome

_TAG = re.compile(r"<(?=\s*/?\s*result)", re.IGNORECASE)


def observation(
    outcomes: Sequence[Outcome], blocks: Sequence[str], after: str, most_chars: int, alike: bool = False
) -> str:
    """The results of a message's blocks. Line ends that the model wrote after its code are not written again."""
    bodies = [body(outcome, most_chars, alike) for outcome in outcomes]
    if len(bodies) == 1 and "\n" not in bodies[0] + "".join(blocks):
        return f"<result>{bodies[0]}</result>"
    text = "\n\n" + "\n".join(f"<result>\n{one}\n</result>" if one else "<result></result>" for one in bodies)
    return text.removeprefix(after) if after.isspace() else text


def body(outcome: Outcome, most_chars: int, alike: bool = False) -> str:
    """What stands inside one result. Nothing that code said can close it. `alike` shows exceptions as NeMo RL does."""
    parts = [f"session: {outcome.before}"] if outcome.before else []
    parts += [cut(text.rstrip("\n"), most_chars) for text in (outcome.stdout, outcome.stderr) if text.rstrip("\n")]
    parts += [cut(outcome.value, most_chars)] if outcome.value is not None else []
    if outcome.problem:
        plainly = f"error[{outcome.problem.kind}]: {cut(outcome.problem.message, most_chars)}"
        parts.append(cut(outcome.problem.repr, most_chars) if alike and outcome.problem.repr else plainly)
    parts += [f"session: {outcome.after}"] if outcome.after else []
    return plain("\n".join(parts))


def cut(text: str, most_chars: int) -> str:
    """The head of a long text, and a mark that there was more."""
    return text if len(text) <= most_chars else f"{text[:most_chars]}\n[cut after {most_chars} characters]"


def plain(text: str) -> str:
    """Text that any tokenizer can encode, and that holds no tag of ours."""
    return _TAG.sub("&lt;", text.encode(errors="replace").decode())
