"""Batch jobs of Bedrock and Vertex: buckets, names by which jobs are known, and every way in which they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coeval.batch.submission import backend_for
from coeval.calling.limits import Retries
from p2l.common.errors import ConfigError
from route.providers.base import Account
from tests.coeval.batch.batch_helpers import KINDS, killed_at
from tests.coeval.batch.served_clouds import BUCKET
from tests.coeval.batch.servers import BatchServer
from tests.coeval.helpers import coeval, ids, meta_of, records, run_of, write_config

pytest.importorskip("botocore")
pytest.importorskip("google.auth")
CLOUDS = ("bedrock", "vertex")


@pytest.fixture(scope="module")
def key() -> dict[str, str]:
    """The key of a service account, without the address of who issues its tokens."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    text = made.private_bytes(*form).decode()
    return {"type": "service_account", "client_email": "me@p-1", "private_key_id": "1", "private_key": text}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchServer]:
    monkeypatch.setattr("coeval.batch.jobs.RETRIES", Retries(base=0.0))
    monkeypatch.setattr("coeval.batch.results._RETRIES", Retries(attempts=4, base=0.0))
    with BatchServer() as server:
        yield server


def written(folder: Path, server: BatchServer, cloud: str, key: dict[str, str]) -> Path:
    """A configuration of one model in all roles, in batches."""
    account = folder / "account.json"
    account.write_text(json.dumps({**key, "token_uri": f"{server.url}/token"}))
    clouds: dict[str, dict[str, Any]] = {
        "bedrock": {
            "model": "amazon.nova-lite-v1:0",
            "access_key_id": "AKIDEXAMPLE",
            "secret_access_key": "hidden",
            "batch_s3_bucket": BUCKET,
            "batch_s3_prefix": "here",
            "batch_role_arn": "arn:aws:iam::1:role/batch",
        },
        "vertex": {
            "model": "gemini-2.0-flash",
            "project": "p-1",
            "service_account_key": str(account),
            "batch_gcs_bucket": BUCKET,
        },
    }
    own = {"base_url": server.url, "max_tokens": 50, **clouds[cloud]}
    model = {"name": "ant", "interface": cloud, "roles": ["teacher", "student", "judge"], "parameters": own}
    batch = {cloud: dict.fromkeys(KINDS, True)}
    return write_config(folder, [model], batch=batch, batch_poll_seconds=0.01, quota={"ant": {"max_calls": 12}})


def is_whole(folder: Path, server: BatchServer, *, again: int = 0) -> None:
    run = run_of(folder)
    for kind in KINDS:
        assert len(ids(run, kind)) == len(set(ids(run, kind))) == 4, kind
    assert sum(len(job.requests) for job in server.jobs) == 12 + again
    assert meta_of(run)["quota_used"] == {"ant": 12}
    cost = sum(record["usage"]["cost_usd"] for kind in KINDS for record in records(run, kind))
    assert meta_of(run)["spent_usd"] == pytest.approx(cost)
    assert cost > 0
    assert meta_of(run)["status"] == "completed"
    assert "hidden" not in run.config.read_text()


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_run_in_batches_is_complete_whatever_passes(
    tmp_path: Path, server: BatchServer, cloud: str, key: dict[str, str]
) -> None:
    server.refused_looks.extend([429, 503, 0])
    server.torn = 1
    assert coeval("run", "--config", written(tmp_path, server, cloud, key)) == 0
    is_whole(tmp_path, server)
    if cloud == "bedrock":
        assert sorted(server.removed) == sorted(name for name in server.files)
        assert all(name.startswith("here/ce") for name in server.files)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_job_whose_id_was_never_noted_is_known_by_its_name(
    tmp_path: Path, server: BatchServer, cloud: str, key: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, server, cloud, key)
    killed_at(monkeypatch, run_of(tmp_path), "coeval.batch.submission._submitted", 1, ["run", "--config", path])
    assert coeval("run", "--config", path, "--continue") == 0
    is_whole(tmp_path, server)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_was_refused_or_ran_out_of_time_is_asked_again(
    tmp_path: Path, server: BatchServer, cloud: str, key: dict[str, str]
) -> None:
    brain, refused = server.say, iter([503, None])
    server.say = lambda prompt, body: next(refused, None) or brain(prompt, body)
    server.end = "expired"
    assert coeval("run", "--config", written(tmp_path, server, cloud, key)) in (0, 1)
    assert any(len(job.requests) < 4 for job in server.jobs)
    assert len(ids(run_of(tmp_path), "data_generation")) == 4


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_job_that_fails_costs_nothing(
    tmp_path: Path, server: BatchServer, cloud: str, key: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.end = "failed"
    assert coeval("run", "--config", written(tmp_path, server, cloud, key)) == 1
    assert "The model does not exist." in capsys.readouterr().err
    assert meta_of(run_of(tmp_path))["spent_usd"] == 0.0


def test_the_server_is_read_by_the_client_of_aws(server: BatchServer) -> None:
    boto3 = pytest.importorskip("boto3")
    from botocore.config import Config

    more: dict[str, Any] = {"endpoint_url": server.url, "region_name": "us-east-1", "aws_access_key_id": "AKIDEXAMPLE"}
    settings = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    store = boto3.client("s3", aws_secret_access_key="hidden", config=settings, **more)
    jobs = boto3.client("bedrock", aws_secret_access_key="hidden", **more)
    content = [{"role": "user", "content": [{"text": "x"}]}]
    line = json.dumps({"recordId": "r-0", "modelInput": {"messages": content}}).encode()
    store.put_object(Bucket=BUCKET, Key="here/a.jsonl", Body=line)
    place = f"s3://{BUCKET}/here"
    made = jobs.create_model_invocation_job(
        jobName="a",
        roleArn="arn:aws:iam::1:role/batch",
        modelId="m",
        modelInvocationType="Converse",
        inputDataConfig={"s3InputDataConfig": {"s3Uri": f"{place}/a.jsonl"}},
        outputDataConfig={"s3OutputDataConfig": {"s3Uri": f"{place}/answers/"}},
    )["jobArn"]
    states = [jobs.get_model_invocation_job(jobIdentifier=made)["status"] for _ in range(3)]
    assert states == ["InProgress", "Completed", "Completed"]
    assert [job["jobArn"] for job in jobs.list_model_invocation_jobs(nameContains="a")["invocationJobSummaries"]] == [
        made
    ]
    answers = f"here/answers/{made.rpartition('/')[2]}/a.jsonl.out"
    record = json.loads(store.get_object(Bucket=BUCKET, Key=answers)["Body"].read())
    assert (record["recordId"], list(record["modelOutput"])) == ("r-0", ["output", "stopReason", "usage"])


def test_the_server_is_read_by_the_client_of_google(server: BatchServer) -> None:
    genai = pytest.importorskip("google.genai")
    from google.oauth2.credentials import Credentials

    server.files["coeval/a.jsonl"] = json.dumps(
        {"request": {"contents": [{"role": "user", "parts": [{"text": "x"}]}], "labels": {"coeval": "r-0"}}}
    ).encode()
    client = genai.Client(
        vertexai=True,
        project="p-1",
        location="us-central1",
        credentials=Credentials("a-token"),
        http_options={"base_url": server.url, "api_version": "v1"},
    )
    made = client.batches.create(
        model="publishers/google/models/gemini-2.0-flash",
        src=f"gs://{BUCKET}/coeval/a.jsonl",
        config={"display_name": "a", "dest": f"gs://{BUCKET}/coeval/answers/a"},
    )
    states = [client.batches.get(name=made.name).state.name for _ in range(2)]
    assert states == ["JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED"]


def test_what_a_cloud_needs_for_batches_is_named() -> None:
    with pytest.raises(ConfigError, match="bedrock: batch jobs need batch_s3_bucket among the model's parameters"):
        backend_for("bedrock", Account("http://x", options={"region": "us-east-1"}))
    with pytest.raises(ConfigError, match="vertex: batch jobs need batch_gcs_bucket"):
        backend_for("vertex", Account("http://x", options={"project": "p"}))
    with pytest.raises(ConfigError, match="vertex: batch jobs need a project"):
        backend_for("vertex", Account("http://x", "a-key", options={"batch_gcs_bucket": "b"}))
