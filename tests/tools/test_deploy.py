"""What `deploy/` says is true of the checkout: manifests fit their schemas, commands and paths exist.

No image is built and no cluster started here.
"""

from __future__ import annotations

import copy
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from p2l.cli import COMMANDS as P2L
from p2l.common.errors import InputError
from route.cli import COMMANDS as ROUTE
from route.config import load_config
from tests.conftest import ROOT
from tools.chart import CHART, chart, rendered

DEPLOY = ROOT / "deploy"
CONTAINERS = sorted((DEPLOY / "containers").glob("*.Containerfile"))
ALL = {"ingress.enabled": True, "router.config": (DEPLOY / "router.yaml").read_text(encoding="utf-8")}
"""Values of the chart with which everything is rendered."""
MANIFESTS = {name: [each for each in yaml.safe_load_all(text) if each] for name, text in chart(ALL).items()}
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
VARIABLES = {
    line.partition("=")[0]
    for line in (DEPLOY / "example.env").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
}


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def parsed(words: list[str]) -> None:
    """A command line is one that its command understands."""
    program, name, *flags = words
    commands = {"p2l": P2L, "p2l-route": ROUTE}[program]
    importlib.import_module(commands[name][0]).build_parser().parse_args(flags)


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_fits_the_schema_of_kubernetes(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs `pip install kubernetes-validate`")
    assert MANIFESTS[name]
    for document in MANIFESTS[name]:
        validate.validate(document, validate.latest_version(), strict=True)


def test_a_manifest_that_does_not_fit_is_refused() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs `pip install kubernetes-validate`")
    document = copy.deepcopy(MANIFESTS["redis"][0])
    document["spec"]["replica"] = 1
    with pytest.raises(validate.ValidationError):
        validate.validate(document, validate.latest_version(), strict=True)


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for manifest in MANIFESTS.values():
        for document in manifest:
            pod = document.get("spec", {}).get("template", {}).get("spec", {})
            yield from ((document["metadata"]["name"], each) for each in pod.get("containers", []))


def test_manifests_have_probes_resources_and_commands_that_are_understood() -> None:
    names = dict(containers())
    assert names.keys() == {"router", "endpoint", "redis"}
    for container in names.values():
        assert {"readinessProbe", "livenessProbe", "resources", "securityContext"} <= container.keys()
        assert container["imagePullPolicy"] == "IfNotPresent"
    # The endpoint knows no key but its own.
    secrets = {name: each.get("envFrom") for name, each in names.items()}
    assert secrets["endpoint"] == [{"secretRef": {"name": "p2l-endpoint"}}]
    assert secrets["router"] == [{"secretRef": {"name": "p2l-router"}}]
    parsed(["p2l-route", "serve", *names["router"]["args"]])
    parsed(["p2l", "endpoint", *names["endpoint"]["args"]])


def test_references_between_manifests_lead_somewhere() -> None:
    every = [document for manifest in MANIFESTS.values() for document in manifest]
    labels = [
        document["spec"]["template"]["metadata"]["labels"]
        for document in every
        if "template" in document.get("spec", {})
    ]
    selectors = [document["spec"]["selector"] for document in every if document["kind"] == "Service"]
    selectors += [d["spec"]["selector"]["matchLabels"] for d in every if d["kind"] == "PodDisruptionBudget"]
    assert all(selector in labels for selector in selectors)
    places = {(document["kind"], document["metadata"]["name"]) for document in every}
    targets = [d["spec"]["scaleTargetRef"] for d in every if d["kind"] == "HorizontalPodAutoscaler"]
    assert {(target["kind"], target["name"]) for target in targets} <= places
    policies = [document["spec"] for document in every if document["kind"] == "NetworkPolicy"]
    assert [policy["podSelector"]["matchLabels"] for policy in policies] == sorted(
        labels, key=lambda each: ["router", "endpoint", "redis"].index(each["app"])
    )
    [ingress] = [document["spec"]["rules"][0]["http"]["paths"] for document in every if document["kind"] == "Ingress"]
    assert [(path["path"], path["backend"]["service"]["name"]) for path in ingress] == [("/v1", "router")]
    [config] = [document["data"] for document in every if document["kind"] == "ConfigMap"]
    assert yaml.safe_load(config["router.yaml"]) == documents(DEPLOY / "router.yaml")[0]


def test_disks_of_routers_that_are_scaled_away_stay() -> None:
    [routers] = [document["spec"] for document in MANIFESTS["router"] if document["kind"] == "StatefulSet"]
    assert routers["persistentVolumeClaimRetentionPolicy"] == {"whenScaled": "Retain", "whenDeleted": "Retain"}


def test_the_chart_renders_what_its_values_say() -> None:
    usual = chart({})
    assert yaml.safe_load(usual["ingress"]) is None
    assert yaml.safe_load(chart({"networkPolicy.enabled": False})["network"]) is None
    pushed = chart({"images.router.name": "registry.example.com/p2l-router", "images.router.tag": "1.2"})["router"]
    assert "image: registry.example.com/p2l-router:1.2\n" in pushed
    for template, problem in (
        ("{{ .Values.nothing }}", "is no value"),
        ("{{- range .Values.images }}", "not known here"),
    ):
        with pytest.raises(InputError, match=problem):
            rendered(template, yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_a_container_file_copies_what_there_is_and_runs_what_is_understood(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in line.split()[:-1]), line
    extras = {name for found in re.findall(r"/src\[([\w,]+)\]", text) for name in found.split(",")}
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras)
    lines = dict(re.findall(r"^(ENTRYPOINT|CMD) (.*)$", text, re.MULTILINE))
    entry, arguments = json.loads(lines["ENTRYPOINT"]), json.loads(lines["CMD"])
    if arguments == ["--help"]:
        return
    parsed([*entry, *arguments])
    assert "USER 10001" in text


def test_arguments_of_serve_applications_are_flags_of_an_endpoint() -> None:
    service = documents(DEPLOY / "ray" / "rayservice.yaml")[0]["spec"]
    configs = [*documents(DEPLOY / "ray" / "serve.yaml"), yaml.safe_load(service["serveConfigV2"])]
    for application in [each for config in configs for each in config["applications"]]:
        module, _, name = application["import_path"].partition(":")
        assert hasattr(importlib.import_module(module), name)
        own = {"fronts", "cpus", "gpus", "direct", "open"}
        flags = [(key.replace("_", "-"), text) for key, text in application["args"].items() if key not in own]
        parsed(["p2l", "endpoint", *(word for key, text in flags for word in (f"--{key}", text))])
    version = re.search(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert version
    assert service["rayClusterConfig"]["rayVersion"] == version[1]


# Keys of KubeRay's API, ray.io/v1: its operator is not here, and its schema is in no package.
_SERVICE = {"serveConfigV2", "rayClusterConfig", "serveService", "upgradeStrategy", "excludeHeadPodFromServeSvc"}
_CLUSTER = {"headGroupSpec", "workerGroupSpecs", "rayVersion", "enableInTreeAutoscaling", "autoscalerOptions"}
_HEAD = {"rayStartParams", "template", "headService", "serviceType"}
_WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams", "template"}


def test_a_ray_service_is_made_of_pods_and_an_application_of_serve() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="needs `pip install kubernetes-validate`")
    schema = pytest.importorskip("ray.serve.schema", reason="needs `pip install ray[serve]`")
    service = documents(DEPLOY / "ray" / "rayservice.yaml")[0]
    assert (service["apiVersion"], service["kind"]) == ("ray.io/v1", "RayService")
    spec, cluster = service["spec"], service["spec"]["rayClusterConfig"]
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert spec.keys() <= _SERVICE
    assert cluster.keys() <= _CLUSTER
    assert {"rayStartParams", "template"} <= head.keys() <= _HEAD
    assert all({"groupName", "rayStartParams", "template"} <= group.keys() <= _WORKERS for group in workers)
    for group in (head, *workers):
        assert all(isinstance(text, str) for text in group["rayStartParams"].values())
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        validate.validate(pod, validate.latest_version(), strict=True)
    for config in (yaml.safe_load(spec["serveConfigV2"]), *documents(DEPLOY / "ray" / "serve.yaml")):
        schema.ServeDeploySchema.model_validate(config)


def test_compose_mounts_what_there_is_and_starts_what_is_understood() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = volume.rpartition(":/")[0] if volume.count(":/") == 1 else volume.partition(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).exists(), source
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        assert set(service.get("depends_on", {})) <= COMPOSE["services"].keys()
    parsed(["p2l-route", "serve", *COMPOSE["services"]["router"]["command"]])
    used = re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(used) <= VARIABLES


def test_the_configuration_is_one_of_a_router(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, f"a-{name.lower()}")
    config = load_config(DEPLOY / "router.yaml")
    assert config.shared_limits == "redis://redis:6379/0"
    assert config.journal == Path("/data/votes.journal.sqlite")
    [scrape] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    assert scrape["static_configs"][0]["targets"] == ["router:8000"]


def test_the_documented_commands_name_files_that_there_are() -> None:
    page = (ROOT / "docs" / "operate" / "deploy.md").read_text(encoding="utf-8")
    for line in re.findall(r"(?:podman|kubectl) [^\n`]*", page):
        for word in shlex.split(line, comments=True):
            if "deploy/" in word:
                name = word.rpartition("=")[2]
                assert (ROOT / name).exists() or name == "deploy/.env", line
