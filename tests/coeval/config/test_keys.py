"""Where keys come from, in which order, and what is said when there is none."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from coeval.config.keys import Keys, load_keys
from coeval.config.models import read_models
from coeval.config.reading import ConfigErrors, NoKeyError, Problems
from coeval.interfaces import INTERFACES, LOCAL, VIRTUAL
from coeval.schema import Model

REMOTE = [name for name in INTERFACES if name not in (*VIRTUAL, *LOCAL)]


def a_model(interface: str, access_key: str | None = None, **parameters: Any) -> Model:
    return Model("x", interface, ("student",), {"model": "m", **parameters}, access_key=access_key)


def key_file(folder: Path, content: Any, name: str = "keys.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def keys(folder: Path, content: Any, env: dict[str, str] | None = None) -> Keys:
    return load_keys(key_file(folder, content), env or {})


def test_the_first_file_that_is_there_is_read(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    env = {"HOME": str(home)}
    assert load_keys(None, env, folder=here).path is None
    in_home = key_file(home, {"openai": "of-home"}, ".coeval/keys.yaml")
    assert load_keys(None, env, folder=here).path == in_home
    local = key_file(here, {"openai": "of-here"})
    assert load_keys(None, env, folder=here).path == local
    named = key_file(tmp_path, {"openai": "of-variable"}, "named.yaml")
    assert load_keys(None, env | {"COEVAL_KEYS_FILE": str(named)}, folder=here).path == named
    flag = key_file(tmp_path, {"openai": "of-flag"}, "flag.yaml")
    found = load_keys(flag, env | {"COEVAL_KEYS_FILE": str(named)}, folder=here)
    assert found.account(a_model("openai")).api_key == "of-flag"


def test_a_home_that_belongs_to_somebody_else_has_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)
    assert load_keys(None, {"HOME": "/root"}).path is None


@pytest.mark.parametrize("source", ["--keys", "COEVAL_KEYS_FILE"])
def test_a_file_that_is_named_has_to_be_there(tmp_path: Path, source: str) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigErrors, match=rf"{source}: there is no file .*none\.yaml"):
        load_keys(path if source == "--keys" else None, {source: str(path)}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("openai: {secret\n", "is not YAML"),
        ("- secret\n", "must be a mapping"),
        ("opnai: secret\n", "opnai: unknown key (did you mean 'openai'?)"),
        ("openai: {api_kye: secret}\n", "openai.api_kye: unknown key (did you mean 'api_key'?)"),
        ("openai: 5\n", "openai: must be a key in quotes, or a map"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_without_its_content(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigErrors) as caught:
        load_keys(path, {})
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("interface", [name for name in REMOTE if name != "azure_openai"])
@pytest.mark.parametrize("form", ["text", "map", "below providers"])
def test_every_provider_takes_both_forms(tmp_path: Path, interface: str, form: str) -> None:
    entry: Any = "the-key" if form == "text" else {"api_key": "the-key"}
    content = {interface: entry}
    found = keys(tmp_path, {"providers": content} if form == "below providers" else content)
    assert found.account(a_model(interface)).api_key == "the-key"


def test_azure_needs_its_address_too(tmp_path: Path) -> None:
    entry = {"api_key": "k", "endpoint": "https://mine.openai.azure.com", "api_version": "v"}
    account = keys(tmp_path, {"azure_openai": entry}).account(a_model("azure_openai"))
    assert (account.base_url, account.options["api_version"]) == ("https://mine.openai.azure.com", "v")
    with pytest.raises(NoKeyError, match="AZURE_OPENAI_ENDPOINT"):
        keys(tmp_path, {"azure_openai": "k"}).account(a_model("azure_openai"))
    given = keys(tmp_path, {"azure_openai": "k"}).account(
        a_model("azure_openai", azure_endpoint="https://other.openai.azure.com", api_version="w")
    )
    assert (given.base_url, given.options["api_version"]) == ("https://other.openai.azure.com", "w")


def test_a_models_own_key_goes_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    env = {"GROQ_API_KEY": "of-environment", "MINE": "of-variable"}
    stored = keys(tmp_path, {"groq": "of-file"}, env)
    assert stored.account(a_model("groq", "own")).api_key == "own"
    assert stored.account(a_model("groq", "${MINE}")).api_key == "of-variable"
    assert stored.account(a_model("groq")).api_key == "of-file"
    assert Keys(env=env).account(a_model("groq")).api_key == "of-environment"


def test_a_missing_key_names_the_variable_and_the_file(tmp_path: Path) -> None:
    stored = keys(tmp_path, {"groq": "x"})
    with pytest.raises(NoKeyError) as caught:
        stored.account(a_model("gemini"))
    assert "no key for gemini: set GEMINI_API_KEY or GOOGLE_API_KEY, or write `gemini: KEY`" in str(caught.value)
    assert f"looked in {tmp_path / 'keys.yaml'}, which has no gemini" in str(caught.value)
    nothing = load_keys(None, {"HOME": str(tmp_path / "home")}, folder=tmp_path / "here")
    with pytest.raises(NoKeyError, match=r"looked for .*here/keys\.yaml and .*home/\.coeval/keys\.yaml"):
        nothing.account(a_model("openai"))


def test_a_key_goes_to_its_provider_alone(tmp_path: Path) -> None:
    stored = keys(tmp_path, {"openai": "of-file"}, {"OPENAI_API_KEY": "of-environment"})
    assert stored.account(a_model("openai", base_url="http://127.0.0.1:9/v1")).api_key is None
    assert stored.account(a_model("openai", "own", base_url="http://127.0.0.1:9/v1")).api_key == "own"
    assert stored.account(a_model("openai", base_url="https://api.openai.com/v1")).api_key == "of-file"


def test_a_key_that_was_not_stored_with_the_run_is_named(tmp_path: Path) -> None:
    def left_out(**keys: Any) -> Model:
        made = {"base_url": "http://127.0.0.1:9/v1", **keys}
        entry = {"name": "ant", "interface": "openai", "roles": ["judge"], "access_key": "<redacted>"}
        problems = Problems()
        [found] = read_models([{**entry, "parameters": {"model": "m", **made}}], problems)
        assert not problems
        return found

    stored = keys(tmp_path, {"groq": "x"})
    with pytest.raises(NoKeyError) as caught:
        stored.account(left_out())
    assert "the access_key of model ant is not stored with the run; write `openai: {api_key: KEY," in str(caught.value)
    assert f"(looked in {tmp_path / 'keys.yaml'})" in str(caught.value)
    with pytest.raises(NoKeyError, match=r"of model ant is not stored .*; no key for openai: set OPENAI_API_KEY"):
        stored.account(left_out(base_url=None))
    named = {"openai": {"api_key": "k", "base_url": "http://127.0.0.1:9/v1"}}
    assert keys(tmp_path, named).account(left_out()).api_key == "k"


def test_no_key_is_shown(tmp_path: Path) -> None:
    stored = keys(tmp_path, {"openai": "hidden-one"}, {"GROQ_API_KEY": "hidden-two"})
    shown = f"{stored} {stored.account(a_model('openai'))} {a_model('openai', 'hidden-three')}"
    assert "hidden" not in shown
    assert stored.secrets() == {"hidden-one", "hidden-two"}


def test_openrouter_is_told_whose_requests_these_are() -> None:
    account = Keys(env={"OPENROUTER_API_KEY": "k"}).account(
        a_model("openrouter", site_url="https://me", site_name="Me")
    )
    assert account.headers == {"HTTP-Referer": "https://me", "X-Title": "Me"}


def test_anthropic_answers_with_1024_tokens_where_nothing_says_how_many() -> None:
    assert Keys(env={"ANTHROPIC_API_KEY": "k"}).account(a_model("anthropic")).options["max_tokens"] == 1024


def test_clouds_are_asked_with_their_own_credentials(tmp_path: Path) -> None:
    env = {"AWS_REGION": "eu-west-1", "AWS_SECRET_ACCESS_KEY": "hidden-one", "GOOGLE_CLOUD_PROJECT": "p"}
    assert [Keys(env=env).has(name) for name in ("bedrock", "vertex")] == [True, True]
    assert [Keys(env={"AWS_REGION": "x"}).has(name) for name in ("bedrock", "vertex")] == [False, False]
    assert "hidden-one" in Keys(env=env).secrets()
    stored = keys(tmp_path, {"bedrock": {"access_key_id": "a", "secret_access_key": "b", "region": "us-west-2"}})
    account = stored.account(a_model("bedrock"))
    assert account.base_url == "https://bedrock-runtime.us-west-2.amazonaws.com"
    assert (account.options["secret_access_key"], account.options["max_tokens"]) == ("b", 1024)
    account = Keys().account(a_model("vertex", project="p", location="europe-west1"))
    assert account.base_url == "https://europe-west1-aiplatform.googleapis.com"
    assert account.options == {"project": "p", "location": "europe-west1"}


def test_ollama_needs_an_address_and_no_key(tmp_path: Path) -> None:
    assert Keys().account(a_model("ollama")).base_url == "http://localhost:11434/v1"
    assert Keys(env={"OLLAMA_HOST": "box:1"}).account(a_model("ollama")).base_url == "http://box:1/v1"
    stored = keys(tmp_path, {"ollama": {"base_url": "http://shed:2/v1"}})
    assert stored.account(a_model("ollama")).base_url == "http://shed:2/v1"


def test_the_hubs_token_is_the_key_of_local_models(tmp_path: Path) -> None:
    assert keys(tmp_path, {"huggingface": {"token": "t"}}).account(a_model("huggingface")).api_key == "t"
    assert Keys(env={"HF_TOKEN": "e"}).account(a_model("huggingface")).api_key == "e"
    assert Keys().account(a_model("huggingface")).api_key is None
