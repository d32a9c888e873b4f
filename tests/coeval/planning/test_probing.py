"""Whether every model is there, asked without a token."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.commands import plan
from coeval.commands import plan as models_command
from coeval.config.keys import Keys
from coeval.mock.server import MockServer
from coeval.planning.probing import models_needed, probe_models
from coeval.schema import PHASES
from tests.coeval.config.configs import Raw, load, write
from tests.route.providers.lists import Lists, serving


@pytest.fixture
def server() -> Iterator[Lists]:
    with serving() as made:
        made.documents["/v1/models"] = {"data": [{"id": "wasp"}, {"id": "hornet-2024-05-01"}]}
        made.documents["/v1/models/alias"] = {"id": "alias"}
        yield made


def at(server: Lists, *names: str, key: str = "right") -> Any:
    """The first models of the file, at a server."""

    def change(raw: Raw) -> None:
        for entry, name in zip(raw["models"], names, strict=False):
            entry |= {
                "interface": "openai",
                "parameters": {"model": name, "base_url": f"{server.url}/v1", "api_key": key},
            }

    return change


def probed(folder: Path, change: Any = None, env: dict[str, str] | None = None) -> dict[str, str]:
    config = load(folder, change, env=env)
    return asyncio.run(probe_models(config, Keys(env=env or {})))


def test_models_that_are_there_are_ok(tmp_path: Path, server: Lists) -> None:
    assert probed(tmp_path, at(server, "wasp", "hornet")) == {"ant": "ok", "bee": "ok"}
    assert [path for path, _ in server.asked] == ["/v1/models"]
    assert probed(tmp_path, at(server, "alias"))["ant"] == "ok"


@pytest.mark.parametrize("name", ["WASP", "wasp:free", "maker/wasp", "hornet-latest"])
def test_a_name_may_differ_from_the_listed_one_in_what_means_nothing(tmp_path: Path, server: Lists, name: str) -> None:
    assert probed(tmp_path, at(server, name))["ant"] == "ok"


def test_a_model_that_is_not_there_is_named_with_the_nearest(tmp_path: Path, server: Lists) -> None:
    found = probed(tmp_path, at(server, "wsp", "wasp"))
    assert found["bee"] == "ok"
    assert found["ant"] == "openai has no model 'wsp' (did you mean 'wasp'?); correct parameters.model"


def test_a_missing_key_and_a_dead_provider_are_told_each_for_itself(tmp_path: Path) -> None:
    def change(raw: Raw) -> None:
        raw["models"][0] |= {"interface": "groq", "parameters": {"model": "x"}}
        raw["models"][1] |= {"interface": "vllm", "parameters": {"model": "x", "base_url": "http://127.0.0.1:9/v1"}}

    found = probed(tmp_path, change)
    assert found["ant"].startswith("no key for groq: set GROQ_API_KEY")
    assert "127.0.0.1:9 cannot be reached" in found["bee"]


def test_what_nobody_asks_is_there(tmp_path: Path) -> None:
    def change(raw: Raw) -> None:
        raw["tasks"][0]["rubric"]["same"] = {"metric": "bleu"}
        raw["models"] += [
            {"name": "m", "interface": "metric", "roles": ["judge"]},
            {"name": "q", "interface": "benchmark", "roles": ["teacher"]},
        ]

    assert set(probed(tmp_path, change).values()) == {"ok"}


def test_a_local_model_needs_a_gpu_or_to_be_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coeval.planning.probing._has_gpu", lambda: False)

    def local(**parameters: Any) -> Any:
        return lambda raw: raw["models"][0].update(
            interface="huggingface", parameters={"model": str(tmp_path), **parameters}
        )

    assert "write `device: cpu` in its parameters" in probed(tmp_path, local())["ant"]
    assert probed(tmp_path, local(device="cpu"))["ant"] == "ok"


def test_later_phases_need_fewer_models(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert [model.name for model in models_needed(config, PHASES)] == ["ant", "bee"]
    assert [model.name for model in models_needed(config, PHASES[:3])] == ["ant"]
    assert [model.name for model in models_needed(config, PHASES[4:])] == ["bee"]


def run(path: Path, *flags: str) -> int:
    return plan.probe_main(["--config", str(path), *flags])


def test_the_command_says_by_its_exit_code_whether_all_are_there(
    tmp_path: Path, server: Lists, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, at(server, "wasp"))
    assert run(path) == 0
    assert "ant: ok" in capsys.readouterr().out
    path = write(tmp_path, at(server, "none"))
    assert run(path) == 2
    assert run(path, "--probe-on-fail", "warn") == 0
    assert run(path, "--probe", "disable") == 0
    assert not (tmp_path / "runs").exists()


def test_a_wrong_key_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer(api_key="right") as guarded:

        def change(raw: Raw) -> None:
            parameters = {"model": "wasp", "base_url": guarded.url, "api_key": "wrong-key-of-mine"}
            raw["models"][0] |= {"interface": "openai", "parameters": parameters}

        assert run(write(tmp_path, change)) == 2
    said = capsys.readouterr()
    assert "(401" in said.err
    assert "wrong-key" not in said.err + said.out


def test_the_results_are_kept_where_the_run_has_a_folder(tmp_path: Path, server: Lists) -> None:
    folder = tmp_path / "runs" / "first"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(
        json.dumps({"experiment_id": "first", "phases_completed": list(PHASES[:3])}), encoding="utf-8"
    )
    run(write(tmp_path, at(server, "none", "wasp")), "--probe-on-fail", "warn")
    kept = json.loads((folder / "probe_results.json").read_text(encoding="utf-8"))
    assert (kept["mode"], kept["on_fail"], kept["probed_models"]) == ("full", "warn", ["ant", "bee"])
    assert kept["results"]["bee"] == "ok"
    assert kept["results"]["ant"] != "ok"


def test_models_lists_what_keys_can_reach(tmp_path: Path, server: Lists, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"vllm: {{api_key: right, base_url: '{server.url}/v1'}}\n", encoding="utf-8")
    assert models_command.models_main(["--providers", "vllm,vlm", "--verbose", "--keys", str(path)]) == 0
    said = capsys.readouterr()
    assert "vllm: 2 models" in said.out
    assert "  wasp  $0 in, $0 out" in said.out
    assert "vlm: no provider that lists models (did you mean 'vllm'?)" in said.err
