"""The command that asks for one rollout again: the same task, seed, sampling and limits."""

from __future__ import annotations

import shlex

import msgspec

from rollbook.book.book import Book
from rollbook.core.json import encode
from rollbook.core.manifest import EnvironmentSpec, Limits, Sampling, Settings
from rollbook.core.task import Task

FROM_ROWS = {"data": "--data", "template": "--prompt-template"}
LIMITED_BY = {
    "verify_s": "--verify-timeout",
    "tool_s": "--tool-timeout",
    "rollout_s": "--timeout",
    "max_turns": "--max-turns",
    "max_tokens_total": "--max-tokens-total",
    "tool_chars": "--tool-chars",
    "stop_repeats": "--stop-repeats",
}
BLEND = "BLEND.yaml"
URL = "URL"


def replay(book: Book, task: Task, sample: int) -> str:
    """What to type. BLEND.yaml and URL stand for what a run directory does not hold."""
    manifest = book.manifest
    spec = manifest.environments[task.env]
    words = ["rollbook", "run", *(_named(spec) if len(manifest.environments) == 1 else [BLEND])]
    words += ["--task", task.id, "--sample", str(sample), "--seed", str(manifest.seed)]
    words += [*_asked(book), *_model(book), *_judge(book)]
    words += ["--continue-tokens"] if manifest.continue_tokens else []
    words += ["--agent", f"program:{shlex.join(manifest.agent.command)}"] if manifest.agent else []
    return shlex.join(words)


def _named(spec: EnvironmentSpec) -> list[str]:
    """The environment, and the files its rows come from where those are not part of its name."""
    given = {name: spec.args.get(name) for name in FROM_ROWS if name in spec.args and f"{name}=" not in spec.spec}
    return [spec.spec, *(word for name, value in given.items() if value for word in (FROM_ROWS[name], str(value)))]


def _asked(book: Book) -> list[str]:
    """Sampling in full, and the limits that are not the usual ones; a blend has them in its file."""
    manifest = book.manifest
    if len(manifest.environments) > 1:
        return []
    sampled = _sampling(manifest.sampling)
    usual, limits = Limits(), msgspec.structs.asdict(manifest.limits)
    other = {name: value for name, value in limits.items() if name in LIMITED_BY and value != getattr(usual, name)}
    limited = [word for name, value in other.items() for word in (LIMITED_BY[name], _number(value))]
    return [*sampled, *limited, *(["--tool-format", manifest.tool_format] if manifest.tool_format != "native" else [])]


def _sampling(sampling: Sampling) -> list[str]:
    plain = ["--temperature", _number(sampling.temperature), "--top-p", _number(sampling.top_p)]
    extra = [f"{key}={encode(value).decode()}" for key, value in sampling.extra.items()]
    return [
        *plain,
        "--max-tokens",
        str(sampling.max_tokens),
        *(word for pair in extra for word in ("--sampling", pair)),
    ]


def _model(book: Book) -> list[str]:
    """Who was asked last; the embedded model is asked without being named."""
    model, settings = book.manifest.model, _settings(book)
    if model.kind in ("embedded", "remote"):
        return []
    named = ["--model-name", model.name] if model.kind == "chat" else []
    keyed = _changed("--api-key-env", settings.api_key_env, Settings().api_key_env)
    return [*(word for url in settings.urls or [URL] for word in ("-m", url)), *named, *keyed]


def _judge(book: Book) -> list[str]:
    """Who was asked where the rule said no."""
    judge, settings, usual = book.manifest.judge, _settings(book), Settings()
    if judge is None:
        return []
    urls = [word for url in settings.judge_urls or [URL] for word in ("--judge", url)]
    keyed = _changed("--judge-key-env", settings.judge_key_env, usual.judge_key_env)
    timed = _changed("--judge-timeout", _number(settings.judge_s), _number(usual.judge_s))
    return [*urls, *(["--judge-name", judge.name] if judge.kind == "chat" else []), *keyed, *timed]


def _settings(book: Book) -> Settings:
    """How the run was last operated."""
    rounds = book.rounds()
    return rounds[-1].settings if rounds else Settings()


def _changed(option: str, value: str, usual: str) -> list[str]:
    return [] if value == usual else [option, value]


def _number(value: float) -> str:
    """The very number: no digit less, and no exponent in a whole one.

    >>> _number(1_000_000), _number(0.1234567), _number(1.0)
    ('1000000', '0.1234567', '1')
    """
    return repr(value).removesuffix(".0")
