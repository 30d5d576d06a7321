"""--config and --save-config: what is written is read again, the command line wins, a mistake names file and key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollbook.cli import build_app
from rollbook.cli.config_files import FIELDS, save_config
from rollbook.errors import UsageError

RUN = typer.main.get_command(build_app("run")).commands["run"]
OPTIONS = [each for each in RUN.params if each.param_type_name == "option" and each.name not in ("config", "save")]
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0:="), max_size=12)
PAIRS = st.builds("{}={}".format, st.text("abcxyz_", min_size=1, max_size=5).map("q_{}".format), TEXT)
SPECIAL = {
    "concurrency": st.one_of(st.just("auto"), st.integers(1, 10**6).map(str)),
    "max_failures": st.one_of(st.integers(0, 99).map(str), st.integers(0, 99).map("{}%".format)),
    "routing": st.sampled_from(["affinity", "least-loaded"]),
    "sampling": PAIRS,
    "judge_sampling": PAIRS,
    "price": st.builds("in={},out={}".format, st.integers(0, 99), st.integers(0, 99)),
    "role": st.builds("{}={}".format, st.text("abcxyz", min_size=1, max_size=5), TEXT.filter(bool)),
    "header": st.builds("X-{}=MY_{}".format, st.text("abc", min_size=1, max_size=5), st.text("ABC", max_size=5)),
}


def join(lists: Iterable[list[str]]) -> list[str]:
    return list(chain.from_iterable(lists))


def values_of(option: Any) -> st.SearchStrategy[list[str]]:
    """Words of the command line that give an option a value it takes."""
    name = max(option.opts, key=len)
    if option.is_flag:
        return st.sampled_from([[each] for each in [name, *option.secondary_opts]])
    kinds = FIELDS[option.name].kinds
    least = 0 if option.min is None else option.min
    texts: Any = SPECIAL.get(option.name, TEXT)
    if kinds == (int,):
        texts = st.integers(int(least), 10**9 if option.max is None else int(option.max)).map(str)
    if kinds == (float,):
        texts = st.floats(least, 1e9 if option.max is None else option.max, allow_nan=False).map(repr)
    single = texts.map(lambda text: [f"{name}={text}"])
    # a parameter that is given twice is refused
    name_of = (lambda words: words[0].split("=")[1]) if texts is PAIRS else None
    return st.lists(single, min_size=1, max_size=3, unique_by=name_of).map(join) if option.multiple else single


LINES = st.lists(st.sampled_from(OPTIONS), unique_by=lambda option: option.name).flatmap(
    lambda chosen: st.tuples(*map(values_of, chosen)).map(join)
)


def parse(*words: str) -> typer.Context:
    """Parse the words of `rollbook run` without running it."""
    return RUN.make_context("rollbook run", list(words))


def read_parameters(context: typer.Context) -> dict[str, Any]:
    return {name: value for name, value in context.params.items() if name != "config"}


@pytest.mark.parametrize("suffix", ["yaml", "toml"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=LINES, environment=TEXT.filter(lambda text: text and not text.startswith("-")))
def test_what_is_saved_is_read_again(tmp_path: Path, suffix: str, words: list[str], environment: str):
    path = tmp_path / f"run.{suffix}"
    path.unlink(missing_ok=True)
    typed = parse(*words, environment)
    save_config(typed, path)
    assert read_parameters(parse("--config", str(path))) == read_parameters(typed)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.tuples(*map(values_of, OPTIONS)).map(join))
def test_every_option_can_be_in_a_file(tmp_path: Path, words: list[str]):
    (tmp_path / "all.yaml").unlink(missing_ok=True)
    save_config(parse(*words, "gsm8k"), tmp_path / "all.yaml")
    keys = {line.partition(":")[0] for line in (tmp_path / "all.yaml").read_text().splitlines()}
    assert keys == {"environment", *(max(option.opts, key=len).removeprefix("--") for option in OPTIONS)}


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_the_command_line_wins_over_the_file_also_for_lists(tmp_path: Path):
    path = write(tmp_path / "run.yaml", "samples: 8\nmodel: [http://a/v1, http://b/v1]\nfail-fast: true\nseed: 3\n")
    given = parse("gsm8k", "--config", path, "-k", "2", "-m", "http://c/v1", "--no-fail-fast").params
    assert (given["samples"], given["model"], given["fail_fast"], given["seed"]) == (2, ["http://c/v1"], False, 3)


def test_keys_have_hyphens_or_underscores_and_pairs_are_mappings(tmp_path: Path):
    text = 'max_tokens = 7\n"top-p" = 0.5\ndata = "rows.jsonl"\n[sampling]\ntop_k = 20\nstop = ["a"]\nmode = "fast"\n'
    text += 'n1 = "3"\n'
    given = parse("gsm8k", "--config", write(tmp_path / "run.toml", text)).params
    assert (given["max_tokens"], given["top_p"], given["data"]) == (7, 0.5, "rows.jsonl")
    assert given["sampling"] == ["top_k=20", 'stop=["a"]', "mode=fast", 'n1="3"']


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", "samples: 1\nsampls: 2\n", r"a.yaml:2: rollbook run has no option 'sampls'; did you mean samples\?"),
        ("a.toml", "sampls = 2\n", r"a.toml: rollbook run has no option 'sampls'; did you mean samples\?"),
        ("a.yaml", "config: b.yaml\n", "no option 'config'"),
        ("a.yaml", "qqqq: 1\n", "no option 'qqqq'; see rollbook run --help"),
        ("a.yaml", "samples: two\n", "a.yaml:1: samples: write a whole number, not 'two'"),
        ("a.yaml", "samples: 1.5\n", "samples: write a whole number, not 1.5"),
        ("a.yaml", "samples: true\n", "samples: write a whole number, not true"),
        ("a.yaml", "samples: 0\n", "a.yaml:1: samples: .*greater than or equal to 1"),
        ("a.yaml", "samples:\n", "samples: write a whole number, not nothing"),
        ("a.yaml", "temperature: hot\n", "temperature: write a number, not 'hot'"),
        ("a.toml", "temperature = inf\n", "a.toml: temperature: write a finite number"),
        ("a.yaml", "fail-fast: 1\n", "fail-fast: write true or false, not 1"),
        ("a.yaml", "data: [a, b]\n", "data: write a text, not a list"),
        ("a.yaml", "model: {a: b}\n", "model: write a list of texts, not a mapping"),
        ("a.yaml", "concurrency: 0\n", "a.yaml:1: concurrency: .*not a whole number from 1"),
        ("a.yaml", "sampling: [top_k]\n", "a.yaml:1: sampling: .*write key=value"),
        ("a.yaml", "out: s3://bucket/run\n", "a.yaml:1: out: s3://bucket/run: .*local files only"),
        ("a.yaml", "max-tokens: 1\nmax_tokens: 2\n", "a.yaml:2: max_tokens is given twice"),
        ("a.yaml", "samples: [\n", "a.yaml:2: not YAML"),
        ("a.yaml", "- samples\n", "a.yaml:1: an option is written as `key: value`"),
        ("a.toml", "samples\n", "a.toml: not TOML"),
        ("a.json", "{}", r"a.json: the name must end in .yaml, .yml or .toml"),
    ],
)
def test_a_mistake_in_a_file_is_one_line_that_names_file_and_key(tmp_path: Path, name: str, text: str, words: str):
    with pytest.raises(UsageError, match=words) as caught:
        parse("gsm8k", "--config", write(tmp_path / name, text))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["none.yaml", "none.toml"])
def test_a_missing_file_is_one_line(tmp_path: Path, name: str):
    with pytest.raises(UsageError, match=f"{name}: No such file"):
        parse("gsm8k", "--config", str(tmp_path / name))


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "https://me:sesame@host/v1"),
        ("-m", "https://host/v1?api-key=sesame"),
        ("--server-arg", "--api-key=sesame"),
        ("--server-command", "serve --api-key sesame --port {port}"),
    ],
)
def test_a_secret_is_never_written_nor_shown(tmp_path: Path, words: tuple[str, ...]):
    with pytest.raises(UsageError, match="seems to hold a secret") as caught:
        save_config(parse("gsm8k", *words), tmp_path / "run.yaml")
    assert "sesame" not in str(caught.value)
    assert not (tmp_path / "run.yaml").exists()


def test_an_existing_file_is_never_overwritten(tmp_path: Path):
    path = write(tmp_path / "run.yaml", "precious")
    with pytest.raises(UsageError, match="the file exists"):
        save_config(parse("gsm8k"), Path(path))
    assert Path(path).read_text() == "precious"


def test_a_run_is_saved_and_repeated_from_its_file(rollbook, endpoint, sums, tmp_path):
    done = rollbook("run", sums, "-m", endpoint, "-k", 2, "-n", 2, "-o", "a", "--save-config", "run.toml", "--json")
    assert json.loads(done.stdout)["scored"] == 4
    again = rollbook("run", "--config", "run.toml", "-o", "b", "--json")
    assert json.loads(again.stdout)["scored"] == 4
    planned = rollbook("plan", "--config", "run.toml", "-o", "c")
    assert planned.returncode == 2
    assert "run.toml: rollbook plan has no option 'json'" in planned.stderr


def test_a_price_may_be_a_mapping(rollbook: Any, sums: str, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("price: {in: 2.5, out: 10}\n")
    (tmp_path / "script.jsonl").write_text('{"answer": "1"}\n')
    done = rollbook("run", sums, "-m", "scripted:script.jsonl", "--config", "own.yaml", "-o", "run")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/rounds/0001.json").read_text())["settings"]["price"] == "in=2.5,out=10"
    (tmp_path / "own.yaml").write_text("price: {in: 2.5}\n")
    assert "own.yaml:1: price: --price in=2.5: in and out" in rollbook("run", sums, "--config", "own.yaml").stderr
