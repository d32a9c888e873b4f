"""The clients, and the snippets that users have, against the service itself."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from p2l.client import AsyncP2LClient, ModelAnswer, P2LClient
from p2l.common.errors import AnswerTimeoutError, BadRequestError, KeyRefusedError
from p2l.inference import P2L

KEY = "the-secret-key"
NAMES = ["ant", "bee", "cat", "dog"]
PROMPTS = ["what is 1 plus 2", ["write a poem", "shorter"], "", "\ud800 \x00 <|cls|>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from p2l.model.model import P2LModel
    from p2l.model.scratch import make_tfidf
    from p2l.model.tokenizer import load_tokenizer

    backbone, saved = (tmp_path_factory.mktemp(name) for name in ("backbone", "saved"))
    texts = [["write a long poem"], ["what is 12 plus 34"]]
    make_tfidf(backbone, texts, hidden_size=4, ngrams=(1, 2), max_features=50, min_df=1)
    tokenizer = load_tokenizer(backbone, max_length=48)
    model = P2LModel.create(
        backbone, model_type="tfidf", head_type="rk", loss_type="grk", model_list=NAMES, tokenizer=tokenizer
    )
    model.save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    return saved


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import uvicorn

    from p2l.common.access import digest_of
    from p2l.serving.app import build_app
    from p2l.serving.reload import load
    from p2l.serving.settings import Settings

    control = tmp_path_factory.mktemp("control")
    settings = Settings(
        str(folder),
        device="cpu",
        dtype="float32",
        api_key_digest=digest_of(KEY),
        max_body_mb=1,
        control=str(control),
    )
    server = uvicorn.Server(uvicorn.Config(build_app(settings, load(settings)), log_level="warning"))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_the_client_hears_what_the_model_says(url: str, folder: Path) -> None:
    said = P2L.from_pretrained(folder, device="cpu", dtype="float32").predict(PROMPTS)
    with P2LClient(url, KEY) as client:
        answers = client.predict_batch(PROMPTS)
        alone = [client.predict(prompt) for prompt in PROMPTS]
        names, board, info, health = client.models(), client.leaderboard(PROMPTS[0]), client.info(), client.health()
    np.testing.assert_allclose([answer.coefs for answer in answers], said.coefs, atol=1e-6)
    np.testing.assert_allclose([answer.coefs for answer in alone], said.coefs, atol=1e-6)
    np.testing.assert_allclose([answer.eta for answer in answers], said.eta, atol=1e-6)
    assert names.names == NAMES
    assert [row.model for row in board.rows] == [NAMES[n] for n in np.argsort(-said.coefs[0], kind="stable")]
    revisions = {answer.revision for answer in answers + alone} | {names.revision, board.revision, health.revision}
    assert revisions == {info["revision"]}


def test_hundreds_of_calls_at_once(url: str) -> None:
    async def ask() -> list[ModelAnswer]:
        async with AsyncP2LClient(url, KEY) as client:
            return await asyncio.gather(*(client.predict(f"prompt {number}") for number in range(300)))

    answers = asyncio.run(ask())
    assert {len(answer.coefs) for answer in answers} == {len(NAMES)}


def test_refusals_keep_the_sentence_of_the_endpoint(url: str) -> None:
    with P2LClient(url, "wrong") as client, pytest.raises(KeyRefusedError):
        client.predict("a")
    with P2LClient(url, KEY) as client:
        with pytest.raises(BadRequestError, match="larger than 1 MiB"):
            client.predict("long " * 2_000_000)
        with pytest.raises(BadRequestError, match=r"\(status 422\): prompts: "):
            client.predict_batch([])
    with P2LClient(url, KEY, timeout=1e-4) as client, pytest.raises(AnswerTimeoutError):
        client.predict("b")


def test_the_snippets_that_users_have(url: str) -> None:
    requests = pytest.importorskip("requests")
    names = requests.get(f"{url}/models", headers={"api-key": KEY}).json()["models"]
    coefs = requests.post(
        f"{url}/predict",
        headers={"Content-Type": "application/json", "api-key": KEY},
        json={"prompt": ["What is the capital of France?"]},
    ).json()["coefs"]
    assert names == NAMES
    assert len(coefs) == len(NAMES)
