"""The parameters of a run are defined once, in the structs of core: the command line and the functions follow them."""

import ast
import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest
import typer

import rollbook
from rollbook import Collector, plan, run, submit
from rollbook.cli import build_app
from rollbook.clusters import ClusterProfile
from rollbook.core import (
    ClusterOptions,
    Limits,
    RunOptions,
    Sampling,
    ServerSpec,
    Settings,
    StartOptions,
    list_parameters,
)
from rollbook.engine import Request

STRUCTS = (RunOptions, Settings, Sampling, Limits, ClusterOptions, ServerSpec, StartOptions)
FIELDS = {field.flag: (struct, field) for struct in STRUCTS for field in list_parameters(struct).values()}
GIVEN_ONLY = (Settings, ClusterOptions, ServerSpec)
"""What is not given of these stays as an earlier start or a file has it."""
OWN_OPTIONS = {
    "run": {"--each", "--wait-jobs", "--json", "--config", "--save-config"},
    "plan": {"--config"},
    "submit": {"--dry-run", "--json", "--config"},
    "work": {"--json"},
    "resume": {"--retry", "--json"},
    "extend": {"--samples", "--json"},
}
"""What a command has besides the parameters of a run; --samples of extend includes the samples that a run has."""
OWN_PARAMETERS = {
    run: {
        *("temperature", "top_p", "max_tokens", "env", "allow_shortfall", "settings"),
        *("on_rollout", "on_progress", "on_end", "progress"),
    },
    plan: {"temperature", "top_p", "max_tokens", "env", "settings"},
    submit: {"env", "workers", "settings", "serve"},
    Collector: {
        *("env", "book", "across_versions", "window", "on_failure", "equal_rewards", "max_staleness"),
        *("agent", "settings"),
    },
}
"""What a function has besides: `agent` of a Collector is an object, `serve` a mapping of the fields of ServerSpec."""
OTHER_DEFAULTS = {
    (submit, "samples"): None,
    (submit, "seed"): None,
    (submit, "on"): "slurm",
    (submit, "cluster"): ClusterProfile(),
}
"""`submit` takes samples and seed from the cluster's profile, and goes to Slurm."""


def read_options(command: str) -> dict[str, typer.models.OptionInfo]:
    """The options of a command by their long names."""
    group = typer.main.get_command(build_app(command))
    found = group.commands[command].params
    return {max(each.opts, key=len): each for each in found if each.param_type_name == "option"}


@pytest.mark.parametrize("command", OWN_OPTIONS)
def test_every_option_is_a_field_with_the_fields_default_range_and_help(command):
    options = read_options(command)
    assert len(options) > 10
    assert OWN_OPTIONS[command] <= set(options)
    for flag in set(options) - OWN_OPTIONS[command]:
        struct, field = FIELDS[flag]
        option = options[flag]
        assert option.help.startswith(field.description)
        assert (option.min, option.max) == (field.details.minimum, field.details.maximum)
        if struct in GIVEN_ONLY or field.flag == "--out" or isinstance(field.default, dict | list):
            assert option.default is None
        else:
            assert option.default == field.default


def test_every_field_is_an_option_of_run():
    options = read_options("run")
    fields = {flag for flag, (_, field) in FIELDS.items() if field.details.on_command_line}
    assert set(options) == fields | OWN_OPTIONS["run"]


@pytest.mark.parametrize("function", OWN_PARAMETERS, ids=lambda function: function.__name__)
def test_every_parameter_is_a_field_with_the_same_default(function: Callable[..., object]):
    parameters = inspect.signature(function).parameters
    assert OWN_PARAMETERS[function] <= set(parameters)
    others = (ClusterOptions, StartOptions)
    defaults = {field.name: field.default for struct in others for field in list_parameters(struct).values()}
    blank = Request(env="gsm8k", out="")
    for name in set(parameters) - OWN_PARAMETERS[function] - {"out"}:
        expected = getattr(blank, name) if name in Request.__struct_fields__ else defaults[name]
        expected = OTHER_DEFAULTS.get((function, name), expected)
        given = parameters[name].default
        assert (list(given) if isinstance(given, tuple) else given) == expected, name


@pytest.mark.parametrize("function", [run, plan, submit, Collector.__init__])
def test_every_parameter_has_the_type_of_its_field(function: Callable[..., object]):
    given, fields = get_type_hints(function), get_type_hints(RunOptions)
    # one URL for a list, a Path for its text, settings and sampling by name
    wider = {"model", "judge", "out", "data", "template", "settings", "sampling"}
    wider |= {"samples", "seed"} if function is submit else set()
    wider |= set() if function in (run, plan, submit) else {"agent"}
    same = set(given) & set(fields) - wider
    assert len(same) >= 5
    for name in same:
        assert given[name] == fields[name], name


@pytest.mark.parametrize("function", [run, plan, submit])
def test_run_plan_and_submit_take_every_field_of_a_request(function: Callable[..., object]):
    assert set(RunOptions.__struct_fields__) <= set(inspect.signature(function).parameters)


def test_submit_takes_every_option_that_a_profile_has_not():
    in_a_profile = set(ClusterProfile.__struct_fields__)
    assert set(ClusterOptions.__struct_fields__) - in_a_profile <= set(inspect.signature(submit).parameters)


def test_no_help_text_is_written_twice():
    home = Path(rollbook.__file__).parent
    texts = Counter(
        node.value
        for path in [*(home / "cli").glob("*.py"), home / "core" / "run_options.py"]
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        for node in [*call.args[:1], *(word.value for word in call.keywords if word.arg == "help")]
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".")
    )
    assert len(texts) > 100
    assert {text: count for text, count in texts.items() if count > 1} == {}
