"""What -m takes: a provider's model, a URL, or a name beside --base-url; and headers whose values are in variables."""

import asyncio
import os
from pathlib import Path

import pytest

from rollbook import run
from rollbook.core import Message, ModelSpec, RoleSettings, Sampling, Settings
from rollbook.errors import UsageError
from rollbook.models import providers
from rollbook.models.chat import ChatModel
from rollbook.models.model import normalize_base_url, resolve_model
from rollbook.models.providers import PROVIDERS, list_secrets
from support.hosted import Azure, NewerOpenAI


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.endswith(("_API_KEY", "_BASE_URL")) or name.startswith(("AZURE_", "OPENAI_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("prefix", PROVIDERS)
def test_every_provider_fills_in_url_key_and_kind(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = PROVIDERS[prefix]
    monkeypatch.setenv(provider.key_env, "k-123456")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://res.openai.azure.com/")
    spec, settings = resolve_model([f"{prefix}/org/model-1"])
    assert spec == ModelSpec("org/model-1", provider.kind)
    assert settings.urls == [provider.base_url or "https://res.openai.azure.com/openai/v1"]
    assert settings.api_key_env == provider.key_env
    assert settings.headers == ({"api-key": "AZURE_OPENAI_API_KEY"} if prefix == "azure" else {})
    assert "k-123456" not in str(settings)


@pytest.mark.parametrize("prefix", [name for name, row in PROVIDERS.items() if row.needs_key])
def test_a_missing_key_names_its_variable_before_any_request(prefix: str) -> None:
    with pytest.raises(UsageError, match=f"{PROVIDERS[prefix].key_env} is not set"):
        resolve_model([f"{prefix}/m"])


def test_a_plan_needs_no_key_and_another_variable_may_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(["openai/m"], needs_key=False)[1].api_key_env == "OPENAI_API_KEY"
    monkeypatch.setenv("MY_KEY", "k")
    assert resolve_model(["together/m"], "", Settings(api_key_env="MY_KEY"))[1].api_key_env == "MY_KEY"


def test_azures_older_urls_are_used_where_a_version_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "k")
    with pytest.raises(UsageError, match="AZURE_OPENAI_ENDPOINT is not set"):
        resolve_model(["azure/d"])
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://res.openai.azure.com")
    monkeypatch.setenv("OPENAI_API_VERSION", "2024-10-21")
    (url,) = resolve_model(["azure/d"])[1].urls
    assert url == "https://res.openai.azure.com/openai/deployments/d?api-version=2024-10-21"


def test_a_base_url_from_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://proxy.example/")
    assert resolve_model(["anthropic/claude-9"])[1].urls == ["https://proxy.example/v1"]
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "proxy")
    with pytest.raises(UsageError, match="ANTHROPIC_BASE_URL: proxy: not a URL"):
        resolve_model(["anthropic/claude-9"])


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("gpt-5", "did you mean openai/gpt-5"),
        ("claude-9", "did you mean anthropic/claude-9"),
        ("opnai/gpt-5", "did you mean openai/gpt-5"),
        ("Qwen/Qwen3-8B", "openai/ anthropic/ gemini/ openrouter/ together/ azure/ ollama/ vllm/ sglang/"),
        ("openai/", "name the model after openai/"),
        ("opnai/", "opnai/: write PROVIDER/NAME"),
        ("gpt-5 x", "or the endpoint as -m URL --model-name 'gpt-5 x'"),
        ("localhost:8000", "give one like http://host:8000/v1"),
        ("localhost:8000/v1", "give one like http://host:8000/v1"),
    ],
)
def test_a_target_without_a_provider_is_one_line_with_a_suggestion(target: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        resolve_model([target])
    assert "\n" not in str(caught.value)


def test_beside_a_base_url_the_name_is_taken_verbatim() -> None:
    base = Settings(base_urls=["http://a:1/v1", "http://b:1/v1"])
    spec, settings = resolve_model(["openai/gpt-oss"], "", base)
    assert spec == ModelSpec("openai/gpt-oss", "chat")
    assert (settings.urls, settings.base_urls) == (["http://a:1/v1", "http://b:1/v1"], [])


@pytest.mark.parametrize(
    ("targets", "name", "base"),
    [
        (["openai/m"], "other", []),
        (["m"], "other", ["http://a:1/v1"]),
        (["http://a:1/v1"], "", ["http://b:1/v1"]),
        (["a", "b"], "", ["http://b:1/v1"]),
        (["openai/a", "openai/b"], "", []),
    ],
)
def test_what_contradicts_itself_is_refused(
    targets: list[str], name: str, base: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(UsageError, match=r"^(-m|--model-name)"):
        resolve_model(targets, name, Settings(base_urls=base))


@pytest.mark.parametrize("name", ["key", "api_key", "api-key", "token", "access_token", "sig", "password", "code"])
def test_a_secret_in_the_query_is_refused_with_advice_and_not_repeated(name: str) -> None:
    with pytest.raises(UsageError, match="--header NAME=ENV_VAR") as caught:
        normalize_base_url(f"https://host/v1?{name}=hunter2")
    assert "hunter2" not in str(caught.value)


def test_a_query_that_is_no_secret_stays() -> None:
    assert normalize_base_url("https://host/v1/?api-version=1") == "https://host/v1?api-version=1"


def ask(url: str, name: str, **settings: object) -> str:
    async def main() -> str:
        model = ChatModel(ModelSpec(name), Settings(urls=[url], outage_s=1.0, **settings))  # type: ignore[arg-type]
        await model.open()
        try:
            done = await model.complete([Message("user", "What is 1 + 1?")], Sampling(), seed=1, rollout="t#0")
            return done.message.text
        finally:
            await model.close()

    return asyncio.run(main())


def test_query_and_headers_go_with_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another-services-key")
    monkeypatch.setenv("MY_AZURE", "azure-secret-1")
    monkeypatch.setenv("TEAM", "blue-team")
    with Azure() as server:
        headers = {"api-key": "MY_AZURE", "X-Team": "TEAM"}
        assert ask(server.deployment_url, "my-deployment", headers=headers) == "The answer is 2."
    assert {request.query.get("api-version") for request in server.requests} == {"2024-10-21"}
    assert {request.headers["x-team"] for request in server.requests} == {"blue-team"}
    assert not any("authorization" in request.headers for request in server.requests)


def test_a_wrong_header_is_named_by_its_variable_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_AZURE", "wrong-hunter2")
    with Azure() as server, pytest.raises(UsageError, match="the key in MY_AZURE was not accepted") as caught:
        ask(server.deployment_url, "my-deployment", headers={"api-key": "MY_AZURE"})
    assert "hunter2" not in str(caught.value)


class Echo(NewerOpenAI):
    def reply(self, request):  # type: ignore[no-untyped-def]
        if request.method == "GET":
            return super().reply(request)
        return 400, {"error": {"message": f"you sent {dict(request.headers)}"}}


def test_values_of_headers_are_taken_out_of_every_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_HEADER", "hunter2-hunter2")
    with Echo() as server, pytest.raises(Exception, match=r"you sent .*\[X-Mine\]") as caught:
        ask(server.url, "newer-1", headers={"X-Mine": "MY_HEADER"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("value", [None, "", "a\nb", "schlüssel"])
def test_a_variable_that_cannot_be_a_header_is_one_line(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv("MY_HEADER", value)
    with pytest.raises(UsageError, match="--header X-Mine=MY_HEADER: MY_HEADER") as caught:
        ask("http://127.0.0.1:9/v1", "m", headers={"X-Mine": "MY_HEADER"})
    assert "\n" not in str(caught.value)


def test_a_secret_in_place_of_a_variables_name_is_neither_stored_nor_shown(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(UsageError, match="not the value") as caught:
        run("gsm8k", "http://127.0.0.1:9/v1", out=out, headers={"api-key": "sk-hunter2"}, workers=2)
    assert "hunter2" not in str(caught.value)
    assert not out.exists()


def test_variables_of_headers_are_secrets_too() -> None:
    found = list_secrets(Settings(headers={"a": "ONE"}, judge_headers={"b": "TWO"}))
    assert found == ["OPENAI_API_KEY", "JUDGE_API_KEY", "ONE", "TWO"]
    roles = {"user": RoleSettings(headers={"c": "THREE"}), "rival": RoleSettings(key_env="ONE")}
    assert list_secrets(Settings(headers={"a": "ONE"}, roles=roles))[2:] == ["ONE", "USER_API_KEY", "THREE"]


@pytest.mark.parametrize("headers", [{"a b": "V"}, {"api-key": "not-a-name"}, {"Host": "V"}])
def test_no_header_is_read_that_may_not_be_sent(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in headers.values():
        monkeypatch.setenv(name, "value")
    with pytest.raises(UsageError, match="--header"):
        providers.read_headers(headers)
