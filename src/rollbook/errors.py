"""Every exception that Rollbook raises on purpose.

    RollbookError
    ├── UsageError          the request is wrong: one line, nothing was done              exit 2
    │   ├── SchedulerError      the batch system cannot be reached, or refuses a request
    │   │   └── SubmitLimitReached  it accepts no more jobs of this user
    │   └── RayUnreachable      a Ray cluster that does not exist or cannot be joined
    ├── BookError           the run directory is missing, damaged or inconsistent         exit 2
    ├── Stopped             the work stopped early and can be resumed                     exit 75
    │   ├── EndpointDown      no model replica answered for the whole outage allowance
    │   │   └── EndpointRefused   every call was refused (401, 403, 404) and none ever answered  exit 2
    │   ├── Drained           a rollout that had not begun its work was given up: its worker was drained
    │   └── BookUnwritable    the disk is full, read-only or gone
    ├── Shortfall           the work is over and some rollouts have no score              exit 3
    ├── LeaderboardIncomplete   some models of several have no score for some rollouts    exit 3
    ├── RolloutFailed       one attempt at one rollout failed (becomes a Failure)         exit 3
    ├── Unsound             an environment that was checked has a fault                   exit 3
    ├── ChildFailed         a child process did not start, or did not die
    ├── SandboxError        the sandbox failed, or cannot do what was requested
    │   ├── SandboxUnsupported  this machine's sandbox does not support these limits
    │   └── SandboxFull         no capacity at the moment
    ├── ContainerError      a container could not be started or used, or ended by itself
    │   ├── ImageError          its image is missing or broken, or cannot be built
    │   └── ClientKilled        the runtime's command on this machine was killed: nobody inside can do that
    ├── TestsBroken         tests that fail before they call the code
    ├── ContextFull         the prompt no longer fits the model (policy: scored, truncated)
    ├── LimitReached        a limit of the run ends the conversation (policy: scored, truncated)
    ├── InvalidReward       a verifier returned something that is not a finite number
    └── TokenError          token ids, masks or logprobs that contradict each other, or are missing

A user's mistake is one line with a way out; anything else that reaches the top is our bug and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class RollbookError(Exception):
    """The root; `exit_code` is what the command line exits with."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback: the message says what to do."""
        return [f"{type(self).__name__}: {self}"]


class UsageError(RollbookError):
    """The request cannot be carried out; the message names the problem, the place and what to do."""

    exit_code = 2


class SchedulerError(UsageError):
    """A batch system that cannot be reached, or that refuses a request."""


class SubmitLimitReached(SchedulerError):
    """The batch system accepts no more jobs of this user."""


class RayUnreachable(UsageError):
    """A Ray cluster that does not exist, or that this process cannot join."""


class BookError(RollbookError):
    """The run directory is missing, damaged or of another meaning."""

    exit_code = 2


class Stopped(RollbookError):
    """The work stopped before its end; what is written is kept, and `rollbook resume` continues."""

    exit_code = 75


class EndpointDown(Stopped):
    """No replica of the model answered for the whole outage allowance; `reasons` says why, replica by replica."""

    def __init__(self, message: str, reasons: str = "") -> None:
        self.reasons = reasons or message
        super().__init__(message)


class EndpointRefused(EndpointDown):
    """Every replica refuses every call, with 401, 403 or 404, and none has ever answered one: waiting does not help.

    `statuses` are those that the replicas answered with. It exits like a wrong request, not like an interrupted run:
    a scheduler that starts the same command again would get the same refusal.
    """

    exit_code = 2

    def __init__(self, message: str, reasons: str = "", statuses: Sequence[int] = ()) -> None:
        self.statuses = list(statuses)
        super().__init__(message, reasons)


class Drained(Stopped):
    """A rollout waited, with nothing done yet, when its worker was drained: it is given up and stays pending."""


class BookUnwritable(Stopped):
    """Results can no longer be made durable: disk full, read-only or gone."""


class Shortfall(RollbookError):
    """Fewer rollouts were scored than were requested.

    `missing` maps each key (task id, sample) without a score to why, up to a bound; the counts are always complete.
    """

    exit_code = 3

    def __init__(
        self,
        *,
        requested: int,
        scored: int,
        failed: Mapping[str, int],
        missing: Sequence[tuple[str, int, str]] = (),
        cause: str = "",
        setting: str = "",
        log: str = "",
        exit_code: int = exit_code,
    ) -> None:
        self.exit_code = exit_code
        self.requested, self.scored, self.failed = requested, scored, dict(failed)
        self.missing, self.cause, self.setting, self.log = list(missing), cause, setting, log
        super().__init__(self._format_message())

    @property
    def pending(self) -> int:
        """How many were neither scored nor finally failed."""
        return self.requested - self.scored - sum(self.failed.values())

    def _format_message(self) -> str:
        parts = [f"{self.scored} of {self.requested} rollouts were scored"]
        parts += [f"{n} failed: {kind}" for kind, n in sorted(self.failed.items())]
        parts += [f"{self.pending} pending"] if self.pending else []
        parts += [f"missing first: {', '.join(f'{t}#{s}' for t, s, _ in self.missing[:3])}"] if self.missing else []
        parts += [text for text in (self.cause, self.setting) if text]
        parts += [f"log: {self.log}"] if self.log else []
        return "; ".join(parts)


class LeaderboardIncomplete(RollbookError):
    """Some of several models have no score for some rollouts; `leaderboard` has the numbers that there are."""

    exit_code = 3

    def __init__(self, message: str, leaderboard: object = None) -> None:
        self.leaderboard = leaderboard
        super().__init__(message)


class RolloutFailed(RollbookError):
    """One attempt failed: `kind` is a row of the table in core/failure.py, `where` the part that broke.

    `status` is that of the HTTP answer, where the failure is one.
    """

    exit_code = 3

    def __init__(
        self, kind: str, where: str, message: str, *, retry_after_s: float | None = None, status: int | None = None
    ) -> None:
        self.kind, self.where, self.message, self.retry_after_s = kind, where, message, retry_after_s
        self.status = status
        super().__init__(f"{kind} in {where}: {message}")


class Unsound(RollbookError):
    """An environment that was checked has a fault: its scores would be misleading."""

    exit_code = 3


class ChildFailed(RollbookError):
    """A child process did not become ready or did not exit in time; `tail` is the end of its log."""

    def __init__(self, message: str, tail: str = "") -> None:
        self.message, self.tail = message, tail
        super().__init__(f"{message}: {tail.strip().splitlines()[-1]}" if tail.strip() else message)


class SandboxError(RollbookError):
    """The sandbox itself failed, or cannot do what was requested: never a result, never a reward."""


class SandboxUnsupported(SandboxError):
    """The sandbox of this machine does not support these limits, or this kind of guest. Nothing is broken."""


class SandboxFull(SandboxError):
    """There is no capacity for one more at the moment. Nothing is broken: try again."""


class ContainerError(RollbookError):
    """A container could not be started or used, or it ended by itself: never a result, never a reward."""


class ImageError(ContainerError):
    """The image of a container is missing or broken, or cannot be built: trying again does not help."""


class ClientKilled(ContainerError):
    """The command of the runtime that held our connection was killed on this machine: nobody inside can do that."""


class TestsBroken(RollbookError):
    """The tests failed by themselves, before they called the code: nothing can be graded with them."""

    __test__ = False


class ContextFull(RollbookError):
    """The conversation does not fit the model's context: caused by the policy, so it is scored as truncated."""


class LimitReached(RollbookError):
    """A limit of the run, named `which`, ends the conversation: what exists so far is scored."""

    def __init__(self, which: str) -> None:
        self.which = which
        super().__init__(f"the conversation reached {which}")


class InvalidReward(RollbookError):
    """A reward or part that is not a finite number, or a score that JSON cannot hold."""


class TokenError(RollbookError, ValueError):
    """Token ids, masks or logprobs that contradict each other, are damaged, or were never recorded."""
