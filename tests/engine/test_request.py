"""What a call from Python and a command line are refused before anything is written."""

from __future__ import annotations

import inspect
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import rollbook
from rollbook.cli.options import parse_sampling
from rollbook.core import Limits, Sampling, Settings
from rollbook.engine.request import check_sampling_secrets, claim_run_folder, make_sampling, release_run_folder
from rollbook.errors import UsageError
from support.sums import write_script, write_sums

NAN = float("nan")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sampling": {"seed": 7}}, "--sampling seed=7: seed is not an extra parameter"),
        ({"sampling": Sampling(extra={"n": 2})}, "--sampling n=2: n is not an extra parameter"),
        ({"sampling": {"max_completion_tokens": 5}}, "give --max-tokens"),
        ({"judge_sampling": {"seed": 7}}, "--judge-sampling seed=7: seed is not an extra parameter"),
        ({"temperature": -1}, "--temperature -1: give a number from 0 on"),
        ({"temperature": "hot"}, "--temperature hot: give a number from 0 on"),
        ({"temperature": NAN}, "--temperature nan: give a number"),
        ({"sampling": {"temperature": "hot"}}, "--temperature hot: give a number"),
        ({"sampling": Sampling(temperature=NAN)}, "--temperature nan: give a number"),
        ({"top_p": 7}, "--top-p 7: give a number from 0 to 1"),
        ({"max_tokens": 0}, "--max-tokens 0: give a whole number from 1"),
        ({"max_tokens": 1.5}, "--max-tokens 1.5: give a whole number"),
        ({"sampling": {"top_k": object()}}, "sampling: .*object"),
        ({"sampling": {1: 2}}, "sampling: Expected `str`"),
        ({"temperature": 0.3, "sampling": {"temperature": 0.7}}, "temperature=0.3: sampling has another temperature"),
        ({"temperature": 0.3, "sampling": Sampling(0.7)}, "temperature=0.3: sampling has another temperature"),
        ({"temperature": 0.3, "sampling": {"temperature": None}}, "give one of them"),
        ({"sampling": [1]}, r"sampling=\[1\]: give a dictionary"),
        ({"headers": {"x": "a value"}}, "--header x=...: give the name of the variable"),
        ({"limits": {"verify_s": 1}}, "limits=.*: give a rollbook.core.Limits"),
        ({"limits": Limits(verify_s=0)}, "--verify-timeout 0: give a number from 0.001 on"),
        ({"limits": Limits(memory_mb=0)}, "memory_mb 0: give a whole number from 1"),
    ],
)
def test_a_wrong_value_is_refused_before_anything_is_written(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    for start in (rollbook.run, rollbook.plan):
        with pytest.raises(UsageError, match=why):
            start(write_sums(tmp_path), write_script(tmp_path), out=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("extra", [{"seed": 7}, {"n": 2}, {"max_completion_tokens": 5}, {"temperature": 1}])
def test_the_command_line_and_python_refuse_the_same_extra_parameters(tmp_path: Path, extra: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError) as typed:
        parse_sampling([f"{name}={value}" for name, value in extra.items()])
    with pytest.raises(UsageError) as called:
        rollbook.plan(write_sums(tmp_path), out=tmp_path / "run", sampling=Sampling(extra=dict(extra)))
    assert str(typed.value) == str(called.value)


def test_a_parameter_given_twice_on_the_command_line_is_refused() -> None:
    with pytest.raises(UsageError, match="--sampling top_k=2: top_k is given twice"):
        parse_sampling(["top_k=1", "top_k=2"])


def test_none_omits_a_parameter_of_python_too() -> None:
    omitted = make_sampling({"temperature": None, "top_p": 0.5})
    assert omitted == Sampling(top_p=0.5, extra={"temperature": None})
    assert omitted.omits("temperature")
    assert make_sampling(Sampling(extra={"top_k": 3}), temperature=0.5) == Sampling(0.5, extra={"top_k": 3})


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda env: rollbook.run(env, None), "model=None: give a string or a list of strings"),
        (lambda env: rollbook.run(env, [7]), r"model=\[7\]: give a string"),
        (lambda env: rollbook.plan(env, judge=3), "judge=3: give a string"),
        (lambda env: rollbook.run(env, data=3), "data=3: give a path"),
        (lambda env: rollbook.run(env, out=3), "out=3: give a path"),
        (lambda env: rollbook.check(env, limits={"verify_s": 1}), "limits=.*: give a rollbook.core.Limits"),
        (lambda env: rollbook.score(env, "sum-1", "2", limits=None), "limits=None: give a rollbook.core.Limits"),
        (lambda env: rollbook.load(None), r"load\(None\): give the path of a run directory"),
    ],
)
def test_an_argument_of_a_wrong_type_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[str], object], why: str
) -> None:
    env = write_sums(tmp_path)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(UsageError, match=why):
        call(env)
    assert list(Path.cwd().iterdir()) == []


def test_functions_say_what_they_return() -> None:
    for call in (rollbook.run, rollbook.run_async):
        assert inspect.signature(call).return_annotation == "RunResult"
        assert get_type_hints(call)["return"] is rollbook.RunResult
    assert list(inspect.signature(rollbook.run).parameters)[:2] == ["env", "model"]


class Sums(rollbook.Environment):
    """An environment of which only the name matters."""


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("gsm8k", "gsm8k"),
        ("examples/sums.py:Sums?n=3", "examples-sums.py-Sums"),
        ("../../sums.py", "sums.py"),
        ("?n=3", "run"),
        (Sums, "Sums"),
        (Sums.__new__(Sums), "Sums"),
    ],
)
def test_a_folder_of_a_run_is_named_after_the_environment(
    env: str | rollbook.Environment | type[rollbook.Environment],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = claim_run_folder(env)
    assert re.fullmatch(rf"runs/{re.escape(name)}-\d{{4}}-\d{{6}}", str(folder))
    assert folder.is_dir()
    release_run_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_of_one_second_get_folders_of_their_own_and_a_used_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda _: "1118-120000")
    first, second, third = (claim_run_folder("sums") for _ in range(3))
    assert [folder.name for folder in (first, second, third)] == [
        "sums-1118-120000",
        "sums-1118-120000-2",
        "sums-1118-120000-3",
    ]
    (second / "run.json").touch()
    for folder in (first, second, third):
        release_run_folder(folder)
    assert [path.name for path in Path("runs").iterdir()] == [second.name]


def test_a_folder_of_runs_that_was_there_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    release_run_folder(claim_run_folder("sums"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "runs"]


def test_a_folder_that_cannot_be_made_is_left_to_whoever_writes_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").touch()
    monkeypatch.setattr(time, "strftime", lambda _: "1118-120000")
    folder = claim_run_folder("sums")
    assert folder == Path("runs/sums-1118-120000")
    release_run_folder(folder)
    assert Path("runs").is_file()


def test_a_child_process_does_not_release_what_its_parent_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = claim_run_folder("sums")
    own = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: own + 1)
        release_run_folder(folder)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"price": "cheap"}, "--price cheap: write it as"),
        ({"order": "random"}, "--order random: write profile:RUN"),
        ({"order": "profile:none"}, "none is not a run directory: it does not exist"),
    ],
)
def test_prices_and_orders_are_checked_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], why: str
) -> None:
    env, script = write_sums(tmp_path), write_script(tmp_path)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(UsageError, match=why):
        rollbook.run(env, script, **given)
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize(
    ("option", "way"),
    [
        ("--sampling", "use --header NAME=ENV_VAR"),
        ("--role user.sampling", "use --role user.headers.NAME=ENV_VAR"),
        ("--judge-sampling", "name the variable of the key with --judge-key-env NAME"),
    ],
)
def test_a_secret_among_parameters_is_refused_with_the_option_that_takes_it(option: str, way: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_sampling_secrets({"api_token": "abc"}, Settings(), option)
    assert str(caught.value).startswith(f"{option} api_token=...: ")
    assert str(caught.value).endswith(f"; {way}")
