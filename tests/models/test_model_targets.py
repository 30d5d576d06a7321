import subprocess
import sys
from pathlib import Path

import pytest

from rollbook.core import ModelSpec, Settings
from rollbook.errors import UsageError
from rollbook.models.anthropic import AnthropicModel
from rollbook.models.chat import ChatModel
from rollbook.models.embedded import EmbeddedModel
from rollbook.models.model import AbsentModel, open_model, resolve_model
from rollbook.models.scripted import ScriptedModel
from rollbook.models.weights import SHA256


def test_no_target_is_the_embedded_model_pinned_by_its_weights() -> None:
    assert resolve_model([], "") == (ModelSpec("SmolLM2-135M-Instruct", "embedded", SHA256), Settings())
    with pytest.raises(UsageError, match="-m URL"):
        resolve_model([], "gpt")


def test_urls_are_operational_and_the_name_is_meaning() -> None:
    spec, settings = resolve_model(["http://a:1/v1/", "http://b:1/v1"], "tiny")
    assert spec == ModelSpec("tiny", "chat")
    assert settings.urls == ["http://a:1/v1", "http://b:1/v1"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (["http://a:1", "scripted:x"], "-m scripted:x"),
        (["scripted:x", "scripted:y"], "-m scripted:x -m scripted:y: a script answers alone; give one -m"),
        (["http://b:1", "http://a:1", "http://a:1/"], "-m http://a:1: given twice; each replica has its own URL"),
        (["gpt-4"], "-m gpt-4"),
    ],
)
def test_targets_that_do_not_go_together_are_one_line(targets: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_model(targets, "")


def test_each_kind_opens_its_own_model(tmp_path: Path) -> None:
    settings = Settings(urls=["http://a:1/v1"])
    assert isinstance(open_model(ModelSpec("m", "chat"), settings), ChatModel)
    assert isinstance(open_model(ModelSpec("m", "anthropic"), settings), AnthropicModel)
    assert isinstance(open_model(ModelSpec("m", "remote"), settings), AbsentModel)
    assert isinstance(open_model(ModelSpec("m", "embedded"), Settings()), EmbeddedModel)
    assert isinstance(open_model(ModelSpec("m", "scripted"), Settings(urls=["scripted:x"])), ScriptedModel)
    with pytest.raises(UsageError, match="anthropic, chat, embedded, remote, scripted"):
        open_model(ModelSpec("m", "magic"), settings)


def test_resolving_a_model_imports_nothing_heavy() -> None:
    code = "import sys; from rollbook.models.model import resolve_model; resolve_model(['http://a:1/v1'], 'm')\n"
    code += "assert not {'aiohttp', 'xllamacpp', 'numpy'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
