"""The pages of a rollout: its line as written, the failed attempts at it, its tokens, the command that repeats it.

The command repeats the rollout with the same task, seed, sampling and limits.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec

from rollbook.book import Book, read_turns
from rollbook.core import (
    JSON,
    JSON_ERRORS,
    EnvironmentSpec,
    FailedLine,
    Limits,
    RoleSettings,
    RunOptions,
    Sampling,
    ScoredLine,
    Settings,
    Task,
    TurnLine,
    default_key_variable,
    encode,
    list_parameters,
)
from rollbook.errors import BookError, UsageError
from rollbook.tokens import merge
from rollbook.viewer.journal_index import LocatedAttempt, read_line
from rollbook.viewer.snapshot import Snapshot

MAX_TOKENS = 4000
"""The most tokens on one page."""


def make_rollout_page(snapshot: Snapshot, row: int, sample: int, attempt: int | None) -> dict[str, JSON]:
    """Return a rollout, or with `attempt` one of its failed attempts; `raw` is the journal's line, byte for byte."""
    task = snapshot.task(row)
    samples = snapshot.samples(row)
    if sample not in samples:
        raise UsageError(f"sample {sample} of task {task.id!r} was not requested")
    _, line = _find_line(snapshot, row, sample, attempt)
    tries = snapshot.tries_of(task.id, sample)
    return {
        "version": snapshot.version,
        "task": {"id": task.id, "env": task.env, "asked": len(task.messages)},
        "verifier": {"answer": task.answer, "fields": task.fields},
        "sample": sample,
        "samples": samples,
        "strip": snapshot.strip(row, task.id),
        "scale": snapshot.scale,
        "shown": attempt,
        "raw": None if line is None else line.decode(),
        "tries": [_make_attempt(each) for each in tries],
        "replay": make_replay_command(snapshot.book, task, sample),
    }


def _make_attempt(each: LocatedAttempt) -> dict[str, JSON]:
    line = each.line
    return {
        "round": line.round,
        "attempt": line.attempt,
        "final": line.final,
        "failure": line.failure,
        "timing": line.timing,
    }


def _find_line(snapshot: Snapshot, row: int, sample: int, attempt: int | None) -> tuple[Path | None, bytes | None]:
    """Return the journal and the line: the scored one, else the last failed one; None while it is pending."""
    tries = snapshot.tries_of(snapshot.task(row).id, sample)
    if attempt is not None:
        if attempt >= len(tries):
            raise UsageError(f"there are {len(tries)} failed tries, numbered from 0; {attempt} does not exist")
        return tries[attempt].path, read_line(tries[attempt].path, tries[attempt].begin, tries[attempt].end)
    place = snapshot.located.find(row, sample)
    if place is not None:
        return snapshot.located.path(place), snapshot.located.line(place)
    last = tries[-1] if tries else None
    return (last.path, read_line(last.path, last.begin, last.end)) if last else (None, None)


_line_decoder = msgspec.json.Decoder(ScoredLine | FailedLine)


def make_token_page(
    snapshot: Snapshot, row: int, sample: int, attempt: int | None, sequence: int, offset: int
) -> dict[str, JSON]:
    """Return the exact ids of a rollout as a trainer gets them: one sequence, or several where it forked."""
    path, line = _find_line(snapshot, row, sample, attempt)
    if path is None or line is None:
        raise UsageError("the rollout has not run yet: there are no tokens")
    turns = _decode_turns(path, line)
    if not any(turn.tokens for turn in turns):
        raise UsageError("no tokens were recorded: the model's server did not report ids, and they are never guessed")
    made = merge(read_turns(path, turns))
    if sequence >= len(made):
        raise UsageError(f"there are {len(made)} sequences, numbered from 0; {sequence} does not exist")
    chosen = made[sequence]
    ids = chosen.prompt_ids + chosen.response_ids
    mask = [0] * len(chosen.prompt_ids) + chosen.mask
    logprobs = [None] * len(chosen.prompt_ids) + [
        p if m else None for p, m in zip(chosen.logprobs, chosen.mask, strict=True)
    ]
    shown = slice(offset, offset + MAX_TOKENS)
    return {
        "version": snapshot.version,
        "sequence": sequence,
        "sequences": [
            {"prompt": len(s.prompt_ids), "tokens": len(s), "trained": s.trained, "fork": s.fork} for s in made
        ],
        "offset": offset,
        "ids": ids[shown],
        "texts": snapshot.vocabulary.texts(ids[shown]) if snapshot.vocabulary else None,
        "mask": mask[shown],
        "logprobs": logprobs[shown],
    }


def _decode_turns(path: Path, line: bytes) -> list[TurnLine]:
    try:
        turns: list[TurnLine] = _line_decoder.decode(line).turns
        return turns
    except JSON_ERRORS as error:
        raise BookError(f"{path}: malformed line ({error}); restore the file from a copy of the run") from None


BLEND_PLACEHOLDER = "BLEND.yaml"
URL_PLACEHOLDER = "URL"


def make_replay_command(book: Book, task: Task, sample: int) -> str:
    """Return the command. BLEND.yaml and URL are placeholders for what a run directory does not contain."""
    manifest = book.manifest
    spec = manifest.environments[task.env]
    words = ["rollbook", "run", *(_environment_words(spec) if len(manifest.environments) == 1 else [BLEND_PLACEHOLDER])]
    words += ["--task", task.id, "--sample", str(sample), "--seed", str(manifest.seed)]
    words += [*_sampling_and_limits(book), *_model_words(book), *_judge_words(book), *_role_words(book)]
    words += ["--continue-tokens"] if manifest.continue_tokens else []
    words += ["--agent", f"program:{shlex.join(manifest.agent.command)}"] if manifest.agent else []
    return shlex.join(words)


def _environment_words(spec: EnvironmentSpec) -> list[str]:
    """Return the environment, and its data files where those are not part of its name."""
    words, parameters = [spec.spec], list_parameters(RunOptions)
    for name in ("data", "template"):
        if spec.args.get(name) and f"{name}=" not in spec.spec:
            words += [parameters[name].flag, str(spec.args[name])]
    return words


def _sampling_and_limits(book: Book) -> list[str]:
    """Return all sampling options, and the limits that are not defaults; a blend has them in its file."""
    manifest = book.manifest
    if len(manifest.environments) > 1:
        return []
    words = _sampling_words(manifest.sampling)
    for name, field in list_parameters(Limits).items():
        value = getattr(manifest.limits, name)
        if field.details.on_command_line and value != field.default:
            words += [field.flag, _format_number(value)]
    return [*words, *(["--tool-format", manifest.tool_format] if manifest.tool_format != "native" else [])]


def _sampling_words(sampling: Sampling) -> list[str]:
    plain = ["--temperature", _format_number(sampling.temperature), "--top-p", _format_number(sampling.top_p)]
    extra = [f"{key}={encode(value).decode()}" for key, value in sampling.extra.items()]
    return [
        *plain,
        "--max-tokens",
        str(sampling.max_tokens),
        *(word for pair in extra for word in ("--sampling", pair)),
    ]


def _model_words(book: Book) -> list[str]:
    """Return the options of the model used last; the embedded model needs none."""
    model, settings = book.manifest.model, book.last_settings()
    if model.kind in ("embedded", "remote"):
        return []
    sent = [word for name, variable in settings.headers.items() for word in ("--header", f"{name}={variable}")]
    if model.kind == "anthropic":
        return ["-m", f"anthropic/{model.name}", *sent]
    named = ["--model-name", model.name] if model.kind == "chat" else []
    keyed = _option_if_changed("--api-key-env", settings.api_key_env, Settings().api_key_env)
    return [*(word for url in settings.urls or [URL_PLACEHOLDER] for word in ("-m", url)), *named, *keyed, *sent]


def _judge_words(book: Book) -> list[str]:
    """Return the options of the judge."""
    judge, settings, usual = book.manifest.judge, book.last_settings(), Settings()
    if judge is None:
        return []
    if judge.kind == "anthropic":
        return ["--judge", f"anthropic/{judge.name}"]
    urls = [word for url in settings.judge_urls or [URL_PLACEHOLDER] for word in ("--judge", url)]
    keyed = _option_if_changed("--judge-key-env", settings.judge_key_env, usual.judge_key_env)
    timed = _option_if_changed("--judge-timeout", _format_number(settings.judge_s), _format_number(usual.judge_s))
    return [*urls, *(["--judge-name", judge.name] if judge.kind == "chat" else []), *keyed, *timed]


def _role_words(book: Book) -> list[str]:
    """Return the options of the other roles."""
    words: list[str] = []
    for role, spec in book.manifest.roles.items():
        given, name = book.last_settings().roles.get(role, RoleSettings()), spec.model.name
        places = {"anthropic": [f"anthropic/{name}"], "embedded": ["embedded"]}.get(spec.model.kind)
        words += [f"{role}={place}" for place in places or given.urls or [URL_PLACEHOLDER]]
        words += [f"{role}.name={name}"] if spec.model.kind == "chat" else []
        words += [f"{role}.key_env={given.key_env}"] if given.key_env not in ("", default_key_variable(role)) else []
        words += [f"{role}.sampling.{key}={encode(value).decode()}" for key, value in spec.sampling.items()]
    return [word for each in words for word in ("--role", each)]


def _option_if_changed(option: str, value: str, usual: str) -> list[str]:
    return [] if value == usual else [option, value]


def _format_number(value: float) -> str:
    """Return the exact number: all digits, and no exponent in a whole one.

    >>> _format_number(1_000_000), _format_number(0.1234567), _format_number(1.0)
    ('1000000', '0.1234567', '1')
    """
    return repr(value).removesuffix(".0")
