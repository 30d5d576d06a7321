"""Whether an environment is sound: found out without a model, before it costs a GPU."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Awaitable, Iterable
from functools import partial
from itertools import islice

from rollbook.collect import appearance, leaks
from rollbook.collect.finding import Finding, Soundness, not_checked
from rollbook.collect.judging import check_judge, resolve_judge, sitting, with_judge
from rollbook.collect.loop import here_or_there
from rollbook.collect.member import found, name_of
from rollbook.collect.probe import Said, Verdicts, play_all, probes, ruling
from rollbook.collect.remake import CHECK, elsewhere
from rollbook.collect.run import settings_of
from rollbook.collect.steadiness import AT_ONCE, Trials, steadiness
from rollbook.collect.trial import Trial, as_kept, importable, tasks_of, trial
from rollbook.collect.twins import isolation
from rollbook.core.json import JSON, encode
from rollbook.core.manifest import Limits, Settings
from rollbook.core.rollout import Rollout
from rollbook.core.task import Task
from rollbook.environments.environment import Environment, Solution
from rollbook.environments.registry import Loaded
from rollbook.environments.source import explain
from rollbook.errors import RollbookError, RolloutFailed, UsageError

TASKS = 200
REPEATED = 25
"""Tasks whose probes are verified twice more: again, and in fresh processes."""

OFFERED = 25
"""Tasks that are asked which tools they have of their own."""

SLOW_SHARE = 0.5
"""How much of its deadline a verification may take before it is worth a word."""


def check(
    env: str | Environment,
    *,
    limit: int = TASKS,
    data: str | None = None,
    template: str | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    judge: str | list[str] = (),  # type: ignore[assignment]
    judge_name: str = "",
    **settings: JSON,
) -> Soundness | Awaitable[Soundness]:
    """Check the first `limit` tasks of an environment; a plain call works, in a running event loop await it."""
    made = settings_of(Settings(), {**settings, "judge_urls": [judge] if isinstance(judge, str) else list(judge)})
    return here_or_there(lambda: examine(found(env, data, template), limit, limits, made, judge_name))


async def examine(
    loaded: Loaded,
    limit: int,
    limits: Limits,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    judge_name: str = "",
) -> Soundness:
    """Every check there is."""
    spec, urls = resolve_judge(settings.judge_urls, judge_name)
    check_judge(loaded, spec is not None)
    tasks = list(islice(tasks_of(loaded), limit))
    if not tasks:
        raise UsageError(f"{name_of(loaded)} has no tasks")
    for task in tasks:
        as_kept(task, name_of(loaded))  # one that JSON cannot hold is in no run
    findings = [appearance.unique(tasks), appearance.prompts(tasks), leaks.hidden(tasks)]
    findings += [appearance.duplicates(tasks)]
    async with sitting(spec, with_judge(settings, urls)) as court:
        trials = partial(trial, loaded, limits, court=court)
        async with trials(hosts=AT_ONCE) as stage:
            findings.append(await tools(stage, tasks))
            findings.append(await made_elsewhere(loaded, stage, tasks))
            deadline_s = limits.verify_s + (settings.judge_s if court else 0)
            findings += await verdicts(stage, trials, loaded, tasks, deadline_s, court is not None)
    return Soundness(name_of(loaded), len(tasks), findings)


async def tools(stage: Trial, tasks: list[Task]) -> Finding:
    """The tools of the environment, and those that its first tasks have of their own."""
    shown: dict[bytes, JSON] = {}
    for task in tasks[:OFFERED] if stage.spec.offers else tasks[:1]:
        try:
            shown |= {encode(schema): schema for schema in await stage.tools(task)}
        except RolloutFailed as error:
            return Finding(appearance.TOOLS, "unsound", 0, error.message[:200], task.id)
    return appearance.tools(list(shown.values()))


async def made_elsewhere(loaded: Loaded, stage: Trial, tasks: list[Task]) -> Finding:
    """The same environment in another process, where there can be one."""
    if not importable(loaded):
        return not_checked(CHECK, f"{loaded.cls.__name__} lives in this process alone: put it in a file")
    return await elsewhere(stage, tasks)


async def verdicts(
    stage: Trial, trials: Trials, loaded: Loaded, tasks: list[Task], deadline_s: float, judged: bool
) -> list[Finding]:
    """What the verifier makes of answers whose worth is known, how steadily and how fast."""
    asked = probes(loaded.instance, tasks, lambda task: solution_of(loaded, task))
    heard: list[Verdicts] = [await play_all(stage, probe.answers, AT_ONCE) for probe in asked]
    findings = [ruling(probe, verdicts) for probe, verdicts in zip(asked, heard, strict=True)]
    few = {task.id for task in tasks[:REPEATED]}
    repeated: list[tuple[Task, Said]] = [a for probe in asked for a in probe.answers if a[0].id in few]
    before = [rollout for verdicts in heard for task, rollout in verdicts if task.id in few]
    findings += [await steadiness(stage, trials, repeated, before, alone=judged or not importable(loaded))]
    findings += [latency([r for verdicts in heard for _, r in verdicts], deadline_s)]
    findings += [await isolation(trials, tasks, asked[0].by_id)]
    findings += [sandboxed(loaded, [r for verdicts in heard for _, r in verdicts])]
    return findings


def solution_of(loaded: Loaded, task: Task) -> Solution:
    """The known solution of a task; what `solution` raises is the environment's mistake."""
    try:
        said = loaded.instance.solution(task)
    except RollbookError:
        raise
    except (Exception, SystemExit) as error:
        root = loaded.path.parent if loaded.path else None
        raise UsageError(f"{loaded.cls.__name__}.solution() raised {explain(error, root)}") from error
    if said is None or isinstance(said, str) or (isinstance(said, list) and all(isinstance(s, str) for s in said)):
        return said
    raise UsageError(f"{loaded.cls.__name__}.solution({task.id!r}) is no text, list of texts or None: {said!r:.80}")


def latency(rollouts: list[Rollout], deadline_s: float) -> Finding:
    """How long verification takes; near its deadline, a busy machine makes failures of it."""
    seconds = sorted(rollout.timing.verify_s for rollout in rollouts)
    if not seconds:
        return not_checked("verification is fast enough", "nothing was verified")
    p50, p95, most = (seconds[min(len(seconds) - 1, int(share * len(seconds)))] for share in (0.5, 0.95, 1.0))
    words = f"{len(seconds)} times: p50 {1000 * p50:.1f} ms, p95 {1000 * p95:.1f} ms, max {1000 * most:.1f} ms"
    slow = most > SLOW_SHARE * deadline_s
    slowest = max(rollouts, key=lambda rollout: rollout.timing.verify_s).task.id
    return Finding(
        "verification is fast enough", "warning" if slow else "ok", len({r.task.id for r in rollouts}), words, slowest
    )


def sandboxed(loaded: Loaded, rollouts: list[Rollout]) -> Finding:
    """Whether an environment that runs code can do so in the sandbox of this machine."""
    check = "it works under the sandbox"
    if not uses_sandbox(loaded.cls):
        return not_checked(check, "it does not use the sandbox")
    broken = [r for r in rollouts if r.failure and r.failure.kind == "sandbox_error"]
    if broken:
        assert broken[0].failure
        return Finding(check, "unsound", len(rollouts), broken[0].failure.message[:200], broken[0].task.id)
    return Finding(check, "ok", len(rollouts), "no sandbox_error")


def uses_sandbox(cls: type[Environment]) -> bool:
    """Whether a module that the class is made of imports the sandbox."""
    return any(_imports_sandbox(module) for module in {base.__module__ for base in cls.__mro__})


def _imports_sandbox(module: str) -> bool:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return False
    return any(name.startswith("rollbook.sandbox") for node in ast.walk(tree) for name in _names(node))


def _names(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
