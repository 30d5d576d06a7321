"""Several models on the same tasks, one after another: a run directory each, in one folder.

The folder's models.json has the request of every model, so that a folder can be resumed when some of them were not
even started. It is written before the first run begins.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec

from rollbook.book import Book, refuse_occupied, write_atomically
from rollbook.core import JSON, JSON_ERRORS, SCHEMA_VERSION, RunOptions, Sampling, Settings, StartOptions, encode_pretty
from rollbook.engine.hooks import Hooks
from rollbook.engine.progress import Display
from rollbook.engine.request import (
    Request,
    as_list,
    as_text,
    claim_run_folder,
    make_sampling,
    release_run_folder,
    update_settings,
)
from rollbook.engine.runs import RunResult, count_samples, extend_run, observe_work, plan_and_work, resume_run
from rollbook.engine.tracking import LogTarget
from rollbook.environments import Environment, resolve_judge
from rollbook.errors import BookError, EndpointDown, RollbookError, Stopped, UsageError
from rollbook.models import resolve_model
from rollbook.processes import run_blocking, run_event_loop
from rollbook.reports import (
    MODELS_FILE,
    Leaderboard,
    is_model_folder,
    make_incomplete,
    make_leaderboard,
    read_model_names,
)

SAME_FOR_ALL = ("samples", "limit", "seed", "data", "template", "tasks", "sample")
"""What must be equal for all models of a folder: else their rollouts are not of the same tasks and seeds."""

MAX_NAME_LENGTH = 60
ModelTarget: TypeAlias = str | Mapping[str, JSON]
"""A model, named as with -m; or its options by name: `model`, and others that only this model has."""


class ModelRun(msgspec.Struct, frozen=True):
    """One of the models: the name of its run directory in the folder, and its request.

    `extended_to` is how many samples of every task the folder was extended to later; 0 if it was not.
    """

    name: str
    request: Request
    extended_to: int = 0

    @property
    def path(self) -> Path:
        """Its run directory."""
        return Path(self.request.out)

    @property
    def has_run(self) -> bool:
        """Whether its run was started."""
        return (self.path / "run.json").exists()

    @property
    def needs_samples(self) -> bool:
        """Whether it has fewer samples than the folder was extended to."""
        return bool(self.extended_to) and count_samples(Book(self.path)) < self.extended_to


class StoredModel(msgspec.Struct, frozen=True):
    """A model in models.json. `env` is empty if the environment was given as a Python object."""

    name: str
    env: str
    options: RunOptions
    extended_to: int = 0


class StoredModels(msgspec.Struct, frozen=True):
    """The file models.json."""

    schema: int
    models: list[StoredModel]


def name_models(folder: Path, requests: Sequence[Request], names: Sequence[str] = ()) -> list[ModelRun]:
    """Give every request a run directory in the folder, by its name or else by its model; refuse a repeated one."""
    found: dict[str, Request] = {}
    for number, request in enumerate(requests):
        _check_addresses(request)
        name = names[number] if number < len(names) and names[number] else _derive_name(request)
        if any(_describe_meaning(each) == _describe_meaning(request) for each in found.values()):
            raise UsageError(f"-m {' '.join(request.model)}: given twice; each model has one run")
        if name in found and number < len(names) and names[number]:
            raise UsageError(f"name {name}: two models have it; choose another")
        label, more = name, 1
        while label in found:
            more += 1
            label = f"{name}-{more}"
        found[label] = msgspec.structs.replace(request, out=str(folder / label))
    return [ModelRun(name, request) for name, request in found.items()]


def _check_addresses(request: Request) -> None:
    """Refuse a wrong address, one that holds a secret, and a missing key, before anything is written or shown."""
    if request.model or request.settings.base_urls:
        resolve_model(request.model, request.model_name, request.settings)
    resolve_judge(request.judge, request.judge_name, request.settings)


def _derive_name(request: Request) -> str:
    """Return the name of a run directory: of the model, of the script's file, or else of the host.

    >>> targets = ("openai/gpt-5", "http://host:80/v1", "scripted:answers/a.jsonl")
    >>> [_derive_name(Request(env="gsm8k", out="", model=[target])) for target in targets]
    ['openai-gpt-5', 'host-80', 'a']
    """
    target = request.model_name or (request.model[0] if request.model else "embedded")
    if target.startswith("scripted:"):
        target = Path(target.removeprefix("scripted:")).stem
    target = re.sub(r"^\w+://|/v1/?$", "", target.partition("?")[0])
    return check_name(re.sub(r"[^A-Za-z0-9_.]+", "-", target).strip("-.")[:MAX_NAME_LENGTH] or "model")


def check_name(name: str) -> str:
    """Return the name of a model's run directory; refuse what is not the name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) or name in (MODELS_FILE, "leaderboard.json"):
        raise UsageError(f"name {name}: write letters, digits and ._- only; it becomes the name of a folder")
    return name


def _describe_meaning(request: Request) -> dict[str, JSON]:
    """Return what a request asks for, its model included, without how the run is operated."""
    plain = _plain_options(request)
    settings = plain.pop("settings")
    return plain | {"out": "", "base_urls": settings["base_urls"], "env": _describe_environment(request)}


def _plain_options(request: Request) -> dict[str, JSON]:
    return {name: msgspec.to_builtins(getattr(request, name)) for name in RunOptions.__struct_fields__ if name != "out"}


def _describe_environment(request: Request) -> str:
    return request.env if isinstance(request.env, str) else ""


def join_folder(folder: Path, runs: Sequence[ModelRun]) -> list[ModelRun]:
    """Return all models of a folder, those that it has already included; refuse what would not be comparable.

    A model that the folder has keeps its run. Nothing is written.
    """
    if not is_model_folder(folder):
        refuse_occupied(folder)
        known: list[ModelRun] = []
    else:
        known = read_models(folder, runs[0].request.env)
    held = {each.name: each for each in known}
    for each in runs:
        if each.name in held:
            _refuse_difference(folder, held[each.name].request, each.request, ())
        elif known:
            _refuse_difference(folder, known[0].request, each.request, SAME_FOR_ALL)
        extended_to = known[0].extended_to if known else 0
        held[each.name] = msgspec.structs.replace(each, extended_to=extended_to)
    return list(held.values())


def select_models(every: Sequence[ModelRun], runs: Sequence[ModelRun]) -> list[ModelRun]:
    """Return the models of `runs` as they are in the folder, in their own order."""
    held = {each.name: each for each in every}
    return [held[each.name] for each in runs]


def _refuse_difference(folder: Path, then: Request, now: Request, names: Sequence[str]) -> None:
    """Refuse a request whose fields, or those of `names`, differ from what the folder was started with."""
    old, new = _describe_meaning(then), _describe_meaning(now)
    for name in (*(names or old), "env"):
        if old[name] != new[name]:
            words = f"{name} was {_show(old[name])} and is {_show(new[name])} now"
            raise UsageError(f"{folder} was started otherwise: {words}; use the same options, or another --out")


def _show(value: JSON) -> str:
    return "not given" if value in (None, "", [], {}) else str(value)


def write_models(folder: Path, runs: Sequence[ModelRun]) -> None:
    """Write models.json, durably."""
    _write_stored(folder, [_make_stored(each) for each in runs])


def _make_stored(run: ModelRun) -> StoredModel:
    options = RunOptions(out="", **_take_options(run.request))
    return StoredModel(run.name, _describe_environment(run.request), options, run.extended_to)


def _write_stored(folder: Path, stored: list[StoredModel]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / MODELS_FILE, encode_pretty(StoredModels(SCHEMA_VERSION, stored)))
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None


def _take_options(request: Request) -> dict[str, JSON]:
    return {name: getattr(request, name) for name in RunOptions.__struct_fields__ if name != "out"}


def read_models(folder: Path, env: str | Environment | type[Environment] = "") -> list[ModelRun]:
    """Return the models of a folder; `env` is their environment where the file cannot name it."""
    found = []
    for each in _read_stored(folder):
        if not (each.env or env):
            raise UsageError(f"{folder} was started from Python with an environment object: call run_each again")
        options = {name: getattr(each.options, name) for name in RunOptions.__struct_fields__}
        options["out"] = str(folder / check_name(each.name))
        found.append(ModelRun(each.name, Request(env=each.env or env, **options), each.extended_to))
    return found


def _read_stored(folder: Path) -> list[StoredModel]:
    path = folder / MODELS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredModels).models
    except JSON_ERRORS as error:
        raise BookError(f"{path}: not a list of models: {error}") from None


def extend_models(folder: Path, samples: int) -> list[ModelRun]:
    """Record that the models of a folder have so many samples of every task from now on, and return them.

    The samples are run when the models are: an interrupted command is continued by `resume`.
    """
    runs = read_models(folder)
    known = [count_samples(Book(each.path)) if each.has_run else 0 for each in runs]
    if all(each.has_run and has >= samples for each, has in zip(runs, known, strict=True)):
        raise UsageError(f"{folder} has {min(known)} samples of every task already: give more than that with -k")
    extended = [
        msgspec.structs.replace(
            each, request=msgspec.structs.replace(each.request, samples=samples), extended_to=samples
        )
        for each in runs
    ]
    write_models(folder, extended)
    return extended


def remove_models(folder: Path, names: Sequence[str], *, delete: bool = False) -> None:
    """Take models out of a folder. Their run directories stay where they are, unless they are to be deleted too."""
    if not is_model_folder(folder):
        raise UsageError(f"{folder} is not a folder of run --each: it has no {MODELS_FILE}")
    stored = _read_stored(folder)
    for name in names:
        if name not in [each.name for each in stored]:
            raise UsageError(f"{folder} has no model {name}; it has {', '.join(each.name for each in stored)}")
    left = [each for each in stored if each.name not in names]
    if not left:
        raise UsageError(f"{folder} would have no model left: delete the folder instead")
    _write_stored(folder, left)
    if delete:
        for name in names:
            shutil.rmtree(folder / check_name(name), ignore_errors=True)
    make_leaderboard(folder)


async def start_or_resume(
    run: ModelRun,
    changes: dict[str, JSON],
    retry: list[str] | None,
    display: Display,
    start: StartOptions,
    *,
    handle_signals: bool = False,
) -> RunResult:
    """Run a model, or finish what its run is missing; a finished run is only read."""
    if not run.has_run:
        request = msgspec.structs.replace(run.request, settings=update_settings(run.request.settings, changes))
        result = await plan_and_work(request, display, start, handle_signals=handle_signals)
        if not run.needs_samples:
            return result
    if run.needs_samples:
        return await extend_run(run.path, run.extended_to, changes, display, start, handle_signals=handle_signals)
    return await resume_run(run.path, changes, retry, display, start, handle_signals=handle_signals)


def run_model(
    run: ModelRun, changes: dict[str, JSON], retry: list[str] | None, display: Display, start: StartOptions
) -> RunResult:
    """Run or resume one of the models of a command line: signals drain it."""
    return run_event_loop(lambda: start_or_resume(run, changes, retry, display, start, handle_signals=True))


def work_through(runs: Sequence[ModelRun], work: Callable[[ModelRun], object]) -> dict[str, RollbookError]:
    """Run the models one after another; return what went wrong with which.

    An error of one model, such as an endpoint that is down, does not keep the others from running. An interrupt stops
    all, and so does a disk that cannot be written.
    """
    problems: dict[str, RollbookError] = {}
    for each in runs:
        try:
            work(each)
        except EndpointDown as error:
            problems[each.name] = error
        except Stopped:
            raise
        except RollbookError as error:
            problems[each.name] = error
    return problems


def finish_models(
    folder: Path, problems: Mapping[str, RollbookError], *, allow_shortfall: bool = False
) -> tuple[Leaderboard, RollbookError | None]:
    """Return the leaderboard of a folder after the work, and the error to raise if not every rollout has a score.

    A mistake that is the same for all models, such as a misspelt environment, is raised at once.
    """
    common = _find_common_mistake(folder, problems)
    if common is not None:
        raise common
    board = make_leaderboard(folder, problems={name: str(error) for name, error in problems.items()})
    if (board.complete and not problems) or allow_shortfall:
        return board, None
    return board, make_incomplete(board, dict(problems))


def _find_common_mistake(folder: Path, problems: Mapping[str, RollbookError]) -> UsageError | None:
    """Return the mistake that kept every model from starting, which is not about the models; then forget the list.

    Otherwise the corrected command would be refused in this folder, as another one.
    """
    names = read_model_names(folder)
    errors = [problems.get(name) for name in names]
    first = errors[0]
    if not isinstance(first, UsageError) or {str(error) for error in errors} != {str(first)} or len(errors) < 2:
        return None
    if any((folder / name / "run.json").exists() for name in names):
        return None
    (folder / MODELS_FILE).unlink()
    with suppress(OSError):  # something else is in it
        folder.rmdir()
    return first


def list_changes(folder: Path, runs: Sequence[ModelRun]) -> dict[str, dict[str, JSON]]:
    """Return, for models that a folder has already, the settings that differ from those it was started with."""
    if not is_model_folder(folder):
        return {}
    then = {each.name: each.request.settings for each in read_models(folder, runs[0].request.env)}
    return {
        each.name: {
            name: getattr(each.request.settings, name)
            for name in Settings.__struct_fields__
            if getattr(each.request.settings, name) != getattr(then[each.name], name)
        }
        for each in runs
        if each.name in then
    }


def run_each(
    env: str | Environment | type[Environment],
    models: Sequence[ModelTarget],
    *,
    out: str | Path | None = None,
    wait_s: float = 0.0,
    probe: bool = True,
    allow_shortfall: bool = False,
    log: Sequence[LogTarget] = (),
    progress: bool = True,
    **options: JSON,
) -> Leaderboard:
    """Run several models on the same tasks with the same seeds, one after another, and return their leaderboard.

    Each model has its own run directory in the folder `out`. A model is named as in `run`, or is a dictionary of its
    own parameters: {"model": ..., "name": ..., "price": ...}. `options` are the other parameters of `run`, for all.
    If the folder has some of the models already, only what they are missing is run. Raises LeaderboardIncomplete if
    some rollouts have no score; one model's failure does not keep the others from running.
    """
    folder = Path(as_text(out, "out") or claim_run_folder(env))
    try:
        runs = name_models(folder, *_read_targets(env, models, options))
        every, changes = join_folder(folder, runs), list_changes(folder, runs)
        runs = select_models(every, runs)
        write_models(folder, every)
        start = StartOptions(wait_s=wait_s, probe=probe)

        def work(each: ModelRun) -> RunResult:
            async def one(display: Display) -> RunResult:
                return await start_or_resume(each, changes.get(each.name, {}), None, display, start)

            return run_blocking(observe_work(each.path, one, Hooks(), log, progress=progress))

        board, error = finish_models(folder, work_through(runs, work), allow_shortfall=allow_shortfall)
    finally:
        release_run_folder(folder)
    if error is not None:
        raise error
    return board


def _read_targets(
    env: str | Environment | type[Environment], models: Sequence[ModelTarget], options: dict[str, JSON]
) -> tuple[list[Request], list[str]]:
    """Return the requests of a call from Python, and the names that were given."""
    if isinstance(models, str | Mapping) or not models:
        raise UsageError(f"models={models!r}: give a list of models, as in models=['openai/a', 'openai/b']")
    given = [{"model": each} if isinstance(each, str) else dict(each) for each in models]
    names = [check_name(str(each.pop("name"))) if "name" in each else "" for each in given]
    for each in given:
        if each.keys().isdisjoint(("model", "model_name", "base_urls")):
            raise UsageError(f"models: {each!r} names no model; give it as 'model', such as a URL")
        for name in SAME_FOR_ALL:
            if name in each:
                raise UsageError(f"models: {name} is the same for all models; give it to run_each")
    return [_make_request(env, {**options, **each}) for each in given], names


def _make_request(env: str | Environment | type[Environment], given: dict[str, JSON]) -> Request:
    """Return the request of parameters of `run` by name."""
    own = {name: given.pop(name) for name in RunOptions.__struct_fields__ if name in given}
    own |= {name: as_list(own[name], name) for name in ("model", "judge") if name in own}
    own |= {name: as_text(own[name], name) for name in ("data", "template") if name in own}
    apart = {name: given.pop(name, None) for name in ("temperature", "top_p", "max_tokens")}
    own["sampling"] = make_sampling(own.get("sampling", Sampling()), **apart)
    return Request(env=env, **own, out="", settings=update_settings(Settings(), given))
