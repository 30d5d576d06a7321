"""Gym's configurations, composed as Gym does it."""

import pytest

from rollbook.errors import UsageError
from rollbook.gym.client.config import compose_config, read_blocks, resolve


@pytest.fixture
def folder(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    write.root = tmp_path
    return write


def compose(write, text, **overrides):
    return compose_config(write("main.yaml", text), [write.root], overrides)


def test_an_including_file_overrides_what_it_includes_and_later_ones_earlier_ones(folder):
    folder("configs/a.yaml", "x: {one: 1, two: 1, list: [1, 2]}\ny: 1\n")
    folder("configs/b.yaml", "x: {two: 2}\nz: ${y}\n")
    result = compose(folder, "config_paths: [configs/a.yaml, configs/b.yaml]\nx: {list: [3]}\n")
    assert result == {"x": {"one": 1, "two": 2, "list": [3]}, "y": 1, "z": "${y}"}


def test_env_yaml_overrides_files_and_arguments_override_all(folder):
    folder("env.yaml", "policy_model_name: secret\nx: {a: 2}\n")
    result = compose(folder, "x: {a: 1, b: 1}\n", **{"x.b": 3, "new": "y"})
    assert result == {"x": {"a": 2, "b": 3}, "policy_model_name": "secret", "new": "y"}


def test_blocks_are_inherited_copied_and_cut(folder):
    text = """
base: {resources_servers: {toy: {entrypoint: app.py, size: 1, odd: 2}}}
moved: {_inherit_from: base, resources_servers: {toy: {size: 5}}}
first: {a: 1, b: {c: 2}}
second: {_copy: first, _delete_key: "a"}
third: ${copy:first.b}
"""
    result = compose(folder, text)
    assert result["moved"] == {"resources_servers": {"toy": {"entrypoint": "app.py", "size": 5, "odd": 2}}}
    assert "base" not in result
    assert (result["second"], result["third"], result["first"]) == ({"b": {"c": 2}}, {"c": 2}, {"a": 1, "b": {"c": 2}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcqa: {a: 1}\nother: 2\nmcqa: {a: 2}\n", "main.yaml:3: mcqa is given twice"),
        ("a: [", "main.yaml:1"),
        ("- a\n", "written as `name: ...`"),
        ("config_paths: x\n", "config_paths must be a list"),
        ("config_paths: [none.yaml]\n", "no file none.yaml"),
        ("config_paths: [main.yaml]\n", "includes itself"),
        ("a: {_inherit_from: b.c}\n", "no b.c"),
    ],
)
def test_a_mistake_is_one_line(folder, text, message):
    with pytest.raises(UsageError, match=message):
        compose(folder, text)


def test_servers_are_told_from_everything_else(folder):
    text = """
plain: 3
settings: {a: {b: 1}}
mcqa: {resources_servers: {mcqa: {entrypoint: app.py, judge: {type: responses_api_models, name: policy_model}}}}
policy_model: {responses_api_models: {vllm_model: {entrypoint: app.py}}}
"""
    result = read_blocks(compose(folder, text))
    assert [(b.name, b.kind, b.implementation, b.references) for b in result] == [
        ("mcqa", "resources_servers", "mcqa", ["policy_model"]),
        ("policy_model", "responses_api_models", "vllm_model", []),
    ]


def test_references_are_resolved(monkeypatch):
    monkeypatch.setenv("HOST_HERE", "h")
    config = {"a": {"b": 7}, "c": "${a.b}", "d": "http://${oc.env:HOST_HERE}:${c}", "e": "${oc.env:NOT_SET_AT_ALL,x}"}
    assert resolve(config["c"], config) == 7
    assert resolve([config["d"], config["e"]], config) == ["http://h:7", "x"]
    for wrong, message in (("${nowhere}", "no nowhere"), ("${oc.env:NOT_SET_AT_ALL}", "no NOT_SET_AT_ALL")):
        with pytest.raises(UsageError, match=message):
            resolve(wrong, config)
    with pytest.raises(UsageError, match="refers to itself"):
        resolve("${x}", {"x": "${y}", "y": "${x}"})


def test_further_files_come_after_the_first(folder):
    folder("model.yaml", "policy: {a: 2}\nx: {b: 2}\n")
    result = compose(folder, "x: {a: 1, b: 1}\n", config_paths=["model.yaml"])
    assert result == {"x": {"a": 1, "b": 2}, "policy": {"a": 2}}
