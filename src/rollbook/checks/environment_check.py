"""Check whether an environment is sound: without a model, before it costs a GPU."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from os import PathLike

from rollbook.checks import task_checks
from rollbook.checks.container_checks import check_container_tasks
from rollbook.checks.determinism import REPRODUCIBILITY_CHECK, check_determinism, check_reproducibility
from rollbook.checks.findings import Finding, Soundness, not_checked
from rollbook.checks.isolation import check_isolation
from rollbook.checks.verifier_checks import (
    CONCURRENCY,
    AnswerText,
    OpenScorer,
    ScoredAnswers,
    assess_probe,
    make_probes,
    score_all,
)
from rollbook.core import JSON, Limits, Rollout, Settings, Task, encode
from rollbook.engine import (
    AnswerScorer,
    as_list,
    as_text,
    check_struct,
    environment_name,
    is_importable,
    iterate_valid_tasks,
    load_environment,
    open_scorer,
    roundtrip_task,
    update_settings,
)
from rollbook.environments import (
    Environment,
    LoadedEnvironment,
    Solution,
    explain_error,
    open_roles,
    overrides,
    resolve_roles_for,
)
from rollbook.errors import RollbookError, RolloutFailed, UsageError
from rollbook.processes import run_blocking

DEFAULT_TASKS = 200
REPEATED_TASKS = 25
"""Tasks whose probes are verified twice more: again, and in fresh processes."""

TOOL_TASKS = 25
"""Tasks whose own tools are listed."""

SLOW_SHARE = 0.5
"""The share of its deadline that a verification may take without a warning."""


def check(
    env: str | Environment | type[Environment],
    *,
    limit: int = DEFAULT_TASKS,
    data: str | PathLike[str] | None = None,
    template: str | PathLike[str] | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    judge: str | Sequence[str] = (),
    judge_name: str = "",
    **settings: JSON,
) -> Soundness:
    """Check the first `limit` tasks of an environment."""
    check_struct("limits", limits, Limits)
    own = update_settings(Settings(), {**settings, "judge_urls": as_list(judge, "judge")})
    rows, prompt = as_text(data, "data"), as_text(template, "template")
    return run_blocking(lambda: check_environment(load_environment(env, rows, prompt), limit, limits, own, judge_name))


async def check_environment(
    loaded: LoadedEnvironment,
    limit: int,
    limits: Limits,
    settings: Settings = Settings(),  # noqa: B008 - frozen
    judge_name: str = "",
) -> Soundness:
    """Run every check."""
    meaning, settings = resolve_roles_for(loaded, settings, judge_name)
    tasks = list(islice(iterate_valid_tasks(loaded), limit))
    if not tasks:
        raise UsageError(f"{environment_name(loaded)} has no tasks")
    for task in tasks:
        roundtrip_task(task, environment_name(loaded))  # a task that JSON cannot hold cannot be in a run
    findings = [
        task_checks.check_unique_ids(tasks),
        task_checks.check_prompts(tasks),
        task_checks.check_answer_leaks(tasks),
        task_checks.check_duplicates(tasks),
    ]
    if loaded.spec.container:
        if not overrides(loaded.cls, "solve"):
            findings.append(not_checked("the solution gets its reward", f"{loaded.cls.__name__} has no solve()"))
        else:
            findings += await check_container_tasks(loaded, tasks, limits)
        return Soundness(environment_name(loaded), len(tasks), findings)
    async with open_roles(meaning, settings) as roles:
        open_own_scorer = partial(open_scorer, loaded, limits, roles=roles)
        async with open_own_scorer(hosts=CONCURRENCY) as scorer:
            findings.append(await check_tools(scorer, tasks))
            findings.append(await check_other_process(loaded, scorer, tasks))
            deadline_s = limits.verify_s + (settings.judge_s if roles.judge else 0)
            findings += await check_verdicts(
                scorer, open_own_scorer, loaded, tasks, deadline_s, bool(roles.list_clients())
            )
    return Soundness(environment_name(loaded), len(tasks), findings)


async def check_tools(scorer: AnswerScorer, tasks: list[Task]) -> Finding:
    """Check the tools of the environment, and those of its first tasks."""
    shown: dict[bytes, JSON] = {}
    for task in tasks[:TOOL_TASKS] if scorer.spec.offers else tasks[:1]:
        try:
            shown |= {encode(schema): schema for schema in await scorer.tools(task)}
        except RolloutFailed as error:
            return Finding(task_checks.TOOLS_CHECK, "unsound", 0, error.message[:200], task.id)
    return task_checks.check_tool_schemas(list(shown.values()))


async def check_other_process(loaded: LoadedEnvironment, scorer: AnswerScorer, tasks: list[Task]) -> Finding:
    """Make the same environment in another process, if that is possible."""
    if not is_importable(loaded):
        return not_checked(
            REPRODUCIBILITY_CHECK, f"{loaded.cls.__name__} exists only in this process: put it in a file"
        )
    return await check_reproducibility(scorer, tasks)


async def check_verdicts(
    scorer: AnswerScorer,
    open_scorer: OpenScorer,
    loaded: LoadedEnvironment,
    tasks: list[Task],
    deadline_s: float,
    judged: bool,
) -> list[Finding]:
    """Check the verdicts on answers of known value: whether they are right, deterministic, fast and isolated."""
    probes = make_probes(loaded.instance, tasks, lambda task: known_solution(loaded, task))
    scored: list[ScoredAnswers] = [await score_all(scorer, probe.answers, CONCURRENCY) for probe in probes]
    findings = [assess_probe(probe, verdicts) for probe, verdicts in zip(probes, scored, strict=True)]
    few = {task.id for task in tasks[:REPEATED_TASKS]}
    repeated: list[tuple[Task, AnswerText]] = [a for probe in probes for a in probe.answers if a[0].id in few]
    before = [rollout for verdicts in scored for task, rollout in verdicts if task.id in few]
    findings += [
        await check_determinism(scorer, open_scorer, repeated, before, alone=judged or not is_importable(loaded))
    ]
    findings += [check_latency([r for verdicts in scored for _, r in verdicts], deadline_s)]
    findings += [await check_isolation(open_scorer, tasks, probes[0].by_id)]
    findings += [check_sandbox(loaded, [r for verdicts in scored for _, r in verdicts])]
    return findings


def known_solution(loaded: LoadedEnvironment, task: Task) -> Solution:
    """Return the known solution of a task; what `solution` raises is the environment's mistake."""
    try:
        solution = loaded.instance.solution(task)
    except RollbookError:
        raise
    except (Exception, SystemExit) as error:
        root = loaded.path.parent if loaded.path else None
        raise UsageError(f"{loaded.cls.__name__}.solution() raised {explain_error(error, root)}") from error
    texts = solution if isinstance(solution, list) else [solution]
    if solution is None or all(isinstance(text, str) for text in texts):
        return solution
    raise UsageError(
        f"{loaded.cls.__name__}.solution({task.id!r}) is not text, a list of texts or None: {solution!r:.80}"
    )


def check_latency(rollouts: list[Rollout], deadline_s: float) -> Finding:
    """Check how long verification takes: near its deadline, it fails on a busy machine."""
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


def check_sandbox(loaded: LoadedEnvironment, rollouts: list[Rollout]) -> Finding:
    """Check whether an environment that runs code can do so in the sandbox of this machine."""
    check = "it works under the sandbox"
    if not uses_sandbox(loaded.cls):
        return not_checked(check, "it does not use the sandbox")
    broken = [r for r in rollouts if r.failure and r.failure.kind == "sandbox_error"]
    if broken:
        assert broken[0].failure
        return Finding(check, "unsound", len(rollouts), broken[0].failure.message[:200], broken[0].task.id)
    return Finding(check, "ok", len(rollouts), "no sandbox_error")


def uses_sandbox(cls: type[Environment]) -> bool:
    """Return whether a module of the class or of its bases imports the sandbox."""
    return any(_imports_sandbox(module) for module in {base.__module__ for base in cls.__mro__})


def _imports_sandbox(module: str) -> bool:
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):
        return False
    return any(name.startswith("rollbook.sandbox") for node in ast.walk(tree) for name in _imported_names(node))


def _imported_names(node: ast.AST) -> Iterable[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
